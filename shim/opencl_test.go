package shim_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

const runtimeOpenCL = 4 // in gw_page.runtimes

// testOpenCL uses the installed OpenCL implementation, for example PoCL on the CPU.
func testOpenCL(b builder) {
	t := b.t
	b.compile("cl-dlsym", "test/openclwork.c")
	if native := start(t, noShim, b.dir, "cl-dlsym", "chain", "1", "1"); native.cmd.Wait() != nil {
		const why = "no OpenCL; install pocl-opencl-icd and ocl-icd-libopencl1"
		if os.Getenv("GIVEWAY_TEST_OPENCL") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	b.compile("cl-linked", "-DLINKED", "test/openclwork.c", "-l:libOpenCL.so.1")
	b.compile("cl-conform", "test/opencl_conform.c", b.path("shim.o"), "-l:libOpenCL.so.1")

	t.Run("conform", func(t *testing.T) { builder{t, b.dir}.conforms("cl-conform") })
	for _, how := range []string{"cl-linked", "cl-dlsym"} {
		t.Run(how, func(t *testing.T) { testOpenCLResults(t, b.dir, how) })
	}
	t.Run("user event", func(t *testing.T) { testOpenCLUserEvent(t, b.dir) })
	t.Run("released queue", func(t *testing.T) { testOpenCLReleased(t, b.dir) })
	t.Run("rests", func(t *testing.T) { testOpenCLRests(t, b.dir) })
	t.Run("extension", func(t *testing.T) { testOpenCLExtension(t, b.dir) })
	t.Run("two programs", func(t *testing.T) { testOpenCLPair(t, b.dir) })
	t.Run("drain", func(t *testing.T) { testOpenCLDrain(t, b.dir) })
	t.Run("dead daemon", func(t *testing.T) { testOpenCLDeadDaemon(t, b.dir) })
	t.Run("late entry", func(t *testing.T) { testOpenCLLate(t, b.dir) })
	t.Run("late entry, flags", func(t *testing.T) { testOpenCLLateFlags(t, b.dir) })
	t.Run("late entry, beside CUDA", func(t *testing.T) { testOpenCLLateBeside(builder{t, b.dir}) })
	t.Run("late entry, random programs", func(t *testing.T) { testOpenCLLateRandom(builder{t, b.dir}) })
	t.Run("late entry, killed daemons", func(t *testing.T) { testOpenCLLateKilled(t, b.dir) })
}

// testOpenCLResults: the results are the same whatever the gate does, and all commands are counted.
func testOpenCLResults(t *testing.T, dir, how string) {
	for _, work := range []struct {
		args     []string
		commands uint64 // put on queues
	}{
		{[]string{how, "chain", "100", "200"}, 1 + 100 + 1},
		{[]string{how, "mixed", "10"}, 10 * 8},
	} {
		native := checksum(start(t, noShim, dir, work.args...).expectOK())
		for _, bound := range []uint32{0, 1, 4} {
			t.Run(fmt.Sprintf("%s, bound %d", work.args[1], bound), func(t *testing.T) {
				d := newDaemon(t, func(p *shimpage.Page) { p.SetBound(bound, 1) })
				p := start(t, d.Socket(), dir, work.args...)
				page := d.Page()
				if got := checksum(p.expectOK()); got != native {
					t.Errorf("checksum %s, without the shim %s", got, native)
				}
				c := page.Counters()
				if c.Launched != work.commands || c.Runtimes != runtimeOpenCL {
					t.Errorf("launched %d, runtimes %b; want %d, %b", c.Launched, c.Runtimes, work.commands, runtimeOpenCL)
				}
				if c.Completed != c.Launched || c.Flags != 0 {
					t.Errorf("%d of %d commands known to be done at the end, flags %b; want all, 0", c.Completed, c.Launched, c.Flags)
				}
			})
		}
		t.Run(work.args[1]+", held", func(t *testing.T) {
			d := newDaemon(t, func(p *shimpage.Page) { p.Hold(lease) })
			p := start(t, d.Socket(), dir, work.args...)
			page := d.Page()
			waitUntilHeld(t, page)
			time.Sleep(300 * time.Millisecond)
			if c := page.Counters(); c.Launched != 0 || c.Overruns != 0 {
				t.Errorf("%d commands passed a closed gate, %d overruns; want 0, 0", c.Launched, c.Overruns)
			}
			page.Release()
			if got := checksum(p.expectOK()); got != native {
				t.Errorf("checksum %s, without the shim %s", got, native)
			}
			if c := page.Counters(); c.Holds == 0 || c.HeldFor < 300*time.Millisecond {
				t.Errorf("held %d times for %v, want at least once for 300ms", c.Holds, c.HeldFor)
			}
		})
	}
}

// checksum returns the checksum from a process's last line.
func checksum(line string) string {
	_, rest, _ := strings.Cut(line, "sum=")
	s, _, _ := strings.Cut(rest, " ")
	return s
}

// testOpenCLReleased: the commands of a queue that the program has released are in flight until they
// are done.
func testOpenCLReleased(t *testing.T, dir string) {
	for _, n := range []uint32{0, 8} {
		d := newDaemon(t, bound(n, 1))
		p := start(t, d.Socket(), dir, "cl-linked", "released", "5")
		page := d.Page()
		expectCounts(p, page, "released", 1+5, 1)
		expectCounts(p, page, "the event is reached", 1+5, 1+5)
		expectCounts(p, page, "waited", 1+5+1, 1+5+1)
		p.expectOK()
	}
}

// testOpenCLRests: a program that asks for the status of an event, and does not wait, tells that its
// commands are done.
func testOpenCLRests(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "cl-linked", "rests", "5")
	page := d.Page()
	expectCounts(p, page, "rests", 1+5, 1+5)
	p.expectOK()
}

// testOpenCLUserEvent: commands that can begin only after later launches do not hang at the bound.
func testOpenCLUserEvent(t *testing.T, dir string) {
	for _, bound := range []uint32{1, 4} {
		d := newDaemon(t, func(p *shimpage.Page) { p.SetBound(bound, 1) })
		p := start(t, d.Socket(), dir, "cl-linked", "user", "30")
		page := d.Page()
		p.expectOK()
		if c := page.Counters(); c.Overruns == 0 {
			t.Errorf("bound %d: no overrun for 30 commands that wait for the last of them", bound)
		}
	}
}

// testOpenCLExtension: a function that the program looked up in its platform is held too.
func testOpenCLExtension(t *testing.T, dir string) {
	d := newDaemon(t, func(p *shimpage.Page) { p.SetBound(1, 1) })
	p := start(t, d.Socket(), dir, "cl-linked", "extension", "10")
	page := d.Page()
	if line := p.waitFor("ready"); line != "ready" {
		t.Skip("this OpenCL has no command buffers: " + line)
	}
	page.Hold(lease)
	p.send("go on")
	waitUntilHeld(t, page)
	p.expectSilence(100 * time.Millisecond)
	page.Release()
	p.expectOK()
	if c := page.Counters(); c.Launched != 1+10+1 {
		t.Errorf("launched %d, want 12", c.Launched)
	}
}

// testOpenCLPair: a held process launches nothing while another one runs, and finishes with the
// right results afterwards.
func testOpenCLPair(t *testing.T, dir string) {
	d := newDaemon(t, func(p *shimpage.Page) { p.SetBound(2, 1) })
	low := start(t, d.Socket(), dir, "cl-linked", "chain", "200", "500", "halfway")
	page := d.Page()
	low.waitFor("halfway")
	page.Hold(lease)
	low.send("go on")
	waitUntilHeld(t, page)
	before := page.Counters()

	high := start(t, d.Socket(), dir, "cl-dlsym", "chain", "200", "500")
	other := d.Page()
	high.expectOK()
	low.expectSilence(50 * time.Millisecond)
	if c := page.Counters(); c.Launched != before.Launched || c.Overruns != before.Overruns || c.Flags&shimpage.Held == 0 {
		t.Errorf("the counters of the held process changed from %+v to %+v", before, c)
	}
	if c := other.Counters(); c.Holds != 0 || c.Launched != 202 {
		t.Errorf("the other process was held %d times and launched %d, want 0 and 202", c.Holds, c.Launched)
	}

	page.Release()
	low.expectOK()
	if c := page.Counters(); c.Launched != 202 {
		t.Errorf("launched %d, want 202", c.Launched)
	}
}

// testOpenCLDrain: a process that is held reports when the commands that it launched before are
// done, with a bound and without, and wakes the daemon when the last one is.
func testOpenCLDrain(t *testing.T, dir string) {
	for _, bound := range []uint32{0, 3, 100} {
		t.Run(fmt.Sprintf("bound %d", bound), func(t *testing.T) {
			d := newDaemon(t, func(p *shimpage.Page) { p.SetBound(bound, 2) })
			p := start(t, d.Socket(), dir, "cl-linked", "chain", "41", "5000", "halfway")
			page := d.Page()
			p.waitFor("halfway")
			page.Hold(lease)
			page.AckDoorbell()
			p.send("go on")
			waitUntilHeld(t, page)
			pagetest.Until(t, "all launched commands are known to be done", func() bool {
				c := page.Counters()
				return c.Completed == c.Launched
			})
			pagetest.Until(t, "the doorbell rings", page.AckDoorbell)
			c := page.Counters()
			if c.Launched != 1+21 || c.Flags&shimpage.Held == 0 || c.Overruns != 0 {
				t.Errorf("launched %d, flags %b, %d overruns; want 22 while held, 0 overruns", c.Launched, c.Flags, c.Overruns)
			}
			page.Release()
			p.expectOK()
		})
	}
}

// testOpenCLDeadDaemon: a process that is held goes on when the daemon dies.
func testOpenCLDeadDaemon(t *testing.T, dir string) {
	d := newDaemon(t, func(*shimpage.Page) {})
	p := start(t, d.Socket(), dir, "cl-dlsym", "chain", "100", "100", "halfway")
	page := d.Page()
	p.waitFor("halfway")
	page.Hold(lease)
	p.send("go on")
	waitUntilHeld(t, page)
	d.Die()
	p.expectOK()
}
