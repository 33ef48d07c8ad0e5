package shim_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/shimpage"
)

const runtimeOpenCL = 4 // in gw_page.runtimes

// testOpenCL is on whatever OpenCL is here: PoCL, on the CPU.
func testOpenCL(b bench) {
	t := b.t
	b.compile("cl-dlsym", "test/openclwork.c")
	if native := start(t, nil, b.dir, "cl-dlsym", "chain", "1", "1"); native.cmd.Wait() != nil {
		const why = "no OpenCL here: pocl-opencl-icd and ocl-icd-libopencl1 bring one"
		if os.Getenv("GIVEWAY_TEST_OPENCL") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	b.compile("cl-linked", "-DLINKED", "test/openclwork.c", "-l:libOpenCL.so.1")
	b.compile("cl-conform", "test/opencl_conform.c", b.path("shim.o"), "-l:libOpenCL.so.1")

	t.Run("conform", func(t *testing.T) { bench{t, b.dir}.conforms("cl-conform") })
	for _, how := range []string{"cl-linked", "cl-dlsym"} {
		t.Run(how, func(t *testing.T) { testOpenCLResults(t, b.dir, how) })
	}
	t.Run("user event", func(t *testing.T) { testOpenCLUserEvent(t, b.dir) })
	t.Run("extension", func(t *testing.T) { testOpenCLExtension(t, b.dir) })
	t.Run("two programs", func(t *testing.T) { testOpenCLPair(t, b.dir) })
	t.Run("dead daemon", func(t *testing.T) { testOpenCLDeadDaemon(t, b.dir) })
}

// The results are the same whatever the gate does, and what was launched is known.
func testOpenCLResults(t *testing.T, dir, how string) {
	for _, work := range []struct {
		args     []string
		commands uint64 // that are put on queues
	}{
		{[]string{how, "chain", "100", "200"}, 1 + 100 + 1},
		{[]string{how, "mixed", "10"}, 10 * 8},
	} {
		native := sum(start(t, nil, dir, work.args...).ok())
		for _, bound := range []uint32{0, 1, 4} {
			t.Run(fmt.Sprintf("%s, bound %d", work.args[1], bound), func(t *testing.T) {
				k := keep(t, func(p *shimpage.Page) { p.SetBound(bound, 1) })
				p := start(t, k, dir, work.args...)
				page := k.page()
				if got := sum(p.ok()); got != native {
					t.Errorf("sum %s, without the shim %s", got, native)
				}
				c := page.Counters()
				if c.Launched != work.commands || c.Runtimes != runtimeOpenCL {
					t.Errorf("launched %d of %d, runtimes %b", c.Launched, work.commands, c.Runtimes)
				}
				if c.Completed != c.Launched || c.Flags != 0 {
					t.Errorf("%d of %d known to be done at the end, flags %b", c.Completed, c.Launched, c.Flags)
				}
			})
		}
		t.Run(work.args[1]+", held", func(t *testing.T) {
			k := keep(t, func(p *shimpage.Page) { p.Hold(lease) })
			p := start(t, k, dir, work.args...)
			page := k.page()
			held(t, page)
			time.Sleep(300 * time.Millisecond)
			if c := page.Counters(); c.Launched != 0 || c.Overruns != 0 {
				t.Errorf("%d commands got past a shut gate; %d times it was taken for open", c.Launched, c.Overruns)
			}
			page.Release()
			if got := sum(p.ok()); got != native {
				t.Errorf("sum %s, without the shim %s", got, native)
			}
			if c := page.Counters(); c.Holds == 0 || c.HeldFor < 300*time.Millisecond {
				t.Errorf("held %d times, for %v", c.Holds, c.HeldFor)
			}
		})
	}
}

// sum is the checksum in a program's last line.
func sum(line string) string {
	_, rest, _ := strings.Cut(line, "sum=")
	s, _, _ := strings.Cut(rest, " ")
	return s
}

// Commands that cannot begin before the program has launched more of them do not
// hang at the bound.
func testOpenCLUserEvent(t *testing.T, dir string) {
	for _, bound := range []uint32{1, 4} {
		k := keep(t, func(p *shimpage.Page) { p.SetBound(bound, 1) })
		p := start(t, k, dir, "cl-linked", "user", "30")
		page := k.page()
		p.ok()
		if c := page.Counters(); c.Overruns == 0 {
			t.Errorf("bound %d: 30 commands that wait for the last of them, and the bound was never let go", bound)
		}
	}
}

// A function that the program asked its platform for is held too.
func testOpenCLExtension(t *testing.T, dir string) {
	k := keep(t, func(p *shimpage.Page) { p.SetBound(1, 1) })
	p := start(t, k, dir, "cl-linked", "extension", "10")
	page := k.page()
	if line := p.until("ready"); line != "ready" {
		t.Skip("this OpenCL has no command buffers: " + line)
	}
	page.Hold(lease)
	p.tell("go on")
	held(t, page)
	p.silent(100 * time.Millisecond)
	page.Release()
	p.ok()
	if c := page.Counters(); c.Launched != 1+10+1 {
		t.Errorf("launched %d of 12", c.Launched)
	}
}

// While one program is held the other has the device: the first puts nothing on
// it, and finishes with the right results when it may.
func testOpenCLPair(t *testing.T, dir string) {
	k := keep(t, func(p *shimpage.Page) { p.SetBound(2, 1) })
	low := start(t, k, dir, "cl-linked", "chain", "200", "500", "halfway")
	page := k.page()
	low.until("halfway")
	page.Hold(lease)
	low.tell("go on")
	held(t, page)
	before := page.Counters()

	high := start(t, k, dir, "cl-dlsym", "chain", "200", "500")
	other := k.page()
	high.ok()
	low.silent(50 * time.Millisecond)
	if c := page.Counters(); c.Launched != before.Launched || c.Overruns != before.Overruns || c.Flags&flagHeld == 0 {
		t.Errorf("the held program went from %+v to %+v", before, c)
	}
	if c := other.Counters(); c.Holds != 0 || c.Launched != 202 {
		t.Errorf("the other program was held %d times, and launched %d of 202", c.Holds, c.Launched)
	}

	page.Release()
	low.ok()
	if c := page.Counters(); c.Launched != 202 {
		t.Errorf("%d commands of 202", c.Launched)
	}
}

// A program that is held by a daemon that dies runs on.
func testOpenCLDeadDaemon(t *testing.T, dir string) {
	k := keep(t, func(*shimpage.Page) {})
	p := start(t, k, dir, "cl-dlsym", "chain", "100", "100", "halfway")
	page := k.page()
	p.until("halfway")
	page.Hold(lease)
	p.tell("go on")
	held(t, page)
	k.Die()
	p.ok()
}
