package shim_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// testOpenCLLate: programs get the same results if their requests enter late, and all commands
// are counted. Programs that learn of the end of a request without a call that
// waits are not delayed for long.
func testOpenCLLate(t *testing.T, dir string) {
	for _, work := range []struct {
		args     []string
		commands uint64
		late     uint64 // at least so many requests enter late
	}{
		{[]string{"chain", "100", "200"}, 1 + 100 + 1, 0},
		{[]string{"paced", "100", "200", "0"}, 1 + 100*5, 90},
		{[]string{"paced", "20", "200", "3000"}, 1 + 20*5, 15},
		{[]string{"mixed", "10"}, 10 * 8, 0},
		{[]string{"user", "10"}, 1 + 10 + 1, 0},
		{[]string{"polled", "50"}, 1 + 50*5, 40},
		{[]string{"callback", "50"}, 1 + 50*5, 40},
		{[]string{"watched", "50"}, 50 * 4, 40}, // only the timer releases
		{[]string{"leave", "10"}, 1 + 10*5 + 4, 5},
	} {
		for _, how := range []string{"cl-linked", "cl-dlsym"} {
			t.Run(fmt.Sprint(how, work.args), func(t *testing.T) {
				args := append([]string{how}, work.args...)
				native := checksum(start(t, noShim, dir, args...).expectOK())
				d := newDaemon(t, lateEntry(shimpage.LateOn))
				p := start(t, d.Socket(), dir, args...)
				page := d.Page()
				if got := checksum(p.expectOK()); got != native {
					t.Errorf("checksum %s, without the shim %s", got, native)
				}
				c := page.Counters()
				if c.Launched != work.commands {
					t.Errorf("launched %d, want %d", c.Launched, work.commands)
				}
				if c.LateRequests < work.late {
					t.Errorf("%d requests entered late, want at least %d", c.LateRequests, work.late)
				}
				t.Logf("%d requests entered late, %v, %d early", c.LateRequests, c.LateFor, c.LateEarly)
			})
		}
	}
}

// testOpenCLLateKilled: daemons die and come back at random instants while requests enter late.
// The program goes on and finishes with the right results.
func testOpenCLLateKilled(t *testing.T, dir string) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	d := newDaemon(t, lateEntry(shimpage.LateOn))
	p := start(t, d.Socket(), dir, "cl-linked", "endless")
	p.waitFor("ready")
	late := uint64(0)
	for range 8 {
		page := d.Page()
		begin := page.Counters().LateRequests
		eventually(t, "requests enter late", func() bool { return page.Counters().LateRequests > begin+5 })
		time.Sleep(time.Duration(r.IntN(5_000)) * time.Microsecond)
		late += page.Counters().LateRequests - begin
		d.Die()
		d = pagetest.At(t, d.Socket(), lateEntry(shimpage.LateOn))
	}
	p.send("end")
	t.Logf("%s; %d requests entered late", p.expectOK(), late)
}

// testOpenCLLateFlags: a daemon that watches sees when a request waits and when it has entered, and
// is woken for the latter.
func testOpenCLLateFlags(t *testing.T, dir string) {
	d := newDaemon(t, func(p *shimpage.Page) {
		p.SetLateEntry(shimpage.LateOn)
		p.SetWatch(shimpage.WatchReady)
	})
	p := start(t, d.Socket(), dir, "cl-linked", "endless")
	page := d.Page()
	const both = shimpage.Ready | shimpage.WaitsLate
	for range 5 {
		eventually(t, "a request waits", func() bool { return page.Counters().Flags&both == both })
		eventually(t, "it has entered", func() bool { return page.Counters().Flags&shimpage.WaitsLate == 0 })
	}
	p.send("end")
	p.expectOK()
	c := page.Counters()
	if c.Flags != 0 || !page.AckDoorbell() {
		t.Errorf("flags %b at the end, want 0, and a doorbell that has rung", c.Flags)
	}
}

// testOpenCLLateBeside: a program that gives back a context of CUDA goes on with late entry in
// OpenCL, with one thread of the library.
func testOpenCLLateBeside(b builder) {
	t := b.t
	const requests = 20
	b.compileFakeCUDA()
	d := newDaemon(t, lateEntry(shimpage.LateOn))
	p := start(t, d.Socket(), b.dir, "cl-linked", "beside", fmt.Sprint(requests))
	page := d.Page()
	threads := field(t, p.waitFor("threads="), "threads")
	p.expectOK()
	if late := page.Counters().LateRequests; late < requests-2 || threads != 1 {
		t.Errorf("%d of %d requests entered late, with %d threads; want nearly all, with 1", late, requests, threads)
	}
}

// TestOpenCLLate runs the parts of late entry that belong to OpenCL against functions that count
// their calls: no queue may wait for an event that nothing sets, also while the process exits.
func TestOpenCLLate(t *testing.T) {
	b := newBuilder(t)
	b.compile("opencl_late", "test/opencl_late.c", "sys.c")
	for _, name := range []string{"exit", "exits", "threads", "futex", "word"} {
		t.Run(name, func(t *testing.T) { start(t, noShim, b.dir, "opencl_late", name).expectOK() })
	}
}
