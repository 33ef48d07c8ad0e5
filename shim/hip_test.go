package shim_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/shimpage"
)

const runtimeHIP = 2 // in gw_page.runtimes

// testHIP uses a fake HIP library, which runs streams in order and is as strict as the real one. It
// has not been run on an AMD GPU.
func testHIP(b builder) {
	t := b.t
	const library = "libamdhip64.so.6"
	b.compile(library, "-fPIC", "-shared", "test/fakehip.c", "-Wl,-Bsymbolic,-soname,"+library)
	b.compile("hip-dlsym", "test/hipwork.c")
	b.compile("hip-linked", "-DLINKED", "test/hipwork.c", "-l:"+library)
	b.compile("hip-conform", "test/hip_conform.c", b.path("shim.o"), "-l:"+library)

	t.Run("conform", func(t *testing.T) { builder{t, b.dir}.conforms("hip-conform") })
	for _, how := range []string{"hip-linked", "hip-dlsym"} {
		t.Run(how, func(t *testing.T) { testHIPOrder(t, b.dir, how) })
		t.Run(how+", held", func(t *testing.T) { testHIPHeld(t, b.dir, how) })
	}
	t.Run("capture is not held", func(t *testing.T) { testHIPCapture(t, b.dir) })
	t.Run("event recorded again", func(t *testing.T) { testHIPEventAgain(t, b.dir) })
	t.Run("destroyed stream", func(t *testing.T) { testHIPDestroyed(t, b.dir) })
	t.Run("devices", func(t *testing.T) { testHIPDevices(t, b.dir) })
	t.Run("dead daemon", func(t *testing.T) { testHIPDeadDaemon(t, b.dir) })
	t.Run("late entry", func(t *testing.T) { testHIPLate(t, b.dir) })
	t.Run("late entry and sharing", func(t *testing.T) { testHIPShared(t, b.dir) })
	t.Run("stream classes", func(t *testing.T) { testHIPClasses(t, b.dir) })
}

func testHIPOrder(t *testing.T, dir, how string) {
	for _, work := range []struct {
		mode, n  string
		launched uint64 // 0: varies
		slack    uint64 // commands that may be in flight over the bound
		free     bool   // the bound does not apply
	}{
		{mode: "order", n: "40", launched: 40*2 + 5 + 5*2},
		{mode: "steps", n: "100", launched: 100},
		{mode: "threads", n: "60", launched: 121, slack: 1}, // two threads may pass at the same time
		{mode: "capture", n: "10", free: true},              // there is no bound during a capture
		{mode: "later", n: "5", launched: 10, free: true},
	} {
		for _, bound := range []uint32{0, 1, 4} {
			t.Run(fmt.Sprintf("%s, bound %d", work.mode, bound), func(t *testing.T) {
				d := newDaemon(t, func(p *shimpage.Page) { p.SetBound(bound, 1) })
				p := start(t, d.Socket(), dir, how, work.mode, work.n)
				page := d.Page()
				line := p.expectOK()
				c := page.Counters()
				if c.Runtimes != runtimeHIP || work.launched != 0 && c.Launched != work.launched {
					t.Errorf("launched %d, runtimes %b; want %d, %b", c.Launched, c.Runtimes, work.launched, runtimeHIP)
				}
				if c.Completed != c.Launched || c.Flags != 0 {
					t.Errorf("%d of %d commands known to be done at the end, flags %b; want all, 0", c.Completed, c.Launched, c.Flags)
				}
				most, err := strconv.ParseUint(line[strings.Index(line, "most=")+len("most="):], 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				if bound > 0 && !work.free && most > uint64(bound)+work.slack && !stalled(t, c) {
					t.Errorf("%d commands in flight, want at most %d", most, bound)
				}
				if work.mode == "later" && bound == 1 && c.Overruns == 0 {
					t.Error("a kernel waited for a launch beyond the bound, but there was no overrun")
				}
			})
		}
	}
}

func testHIPHeld(t *testing.T, dir, how string) {
	d := newDaemon(t, func(p *shimpage.Page) { p.Hold(lease) })
	p := start(t, d.Socket(), dir, how, "steps", "50")
	page := d.Page()
	waitUntilHeld(t, page)
	p.expectSilence(300 * time.Millisecond)
	if c := page.Counters(); c.Launched != 0 || c.Overruns != 0 {
		t.Errorf("%d commands passed a closed gate, %d overruns; want 0, 0", c.Launched, c.Overruns)
	}
	page.Release()
	p.expectOK()
}

// testHIPCapture: captured commands pass a closed gate; the launch of the graph does not.
func testHIPCapture(t *testing.T, dir string) {
	d := newDaemon(t, func(p *shimpage.Page) { p.Hold(lease); p.SetBound(1, 1) })
	p := start(t, d.Socket(), dir, "hip-linked", "graph", "20")
	page := d.Page()
	p.waitFor("captured")
	waitUntilHeld(t, page)
	p.expectSilence(100 * time.Millisecond)
	page.Release()
	p.expectOK()
	if c := page.Counters(); c.Launched != 1 {
		t.Errorf("%d commands launched, want 1: the graph", c.Launched)
	}
}

// testHIPEventAgain: a completed event tells about the stream in which it was last recorded.
func testHIPEventAgain(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "hip-linked", "again", "3")
	page := d.Page()
	p.waitFor("busy")
	if c := page.Counters(); c.Launched != 3 || c.Completed != 0 {
		t.Errorf("%d of %d commands count as done on a busy stream, want 0 of 3", c.Completed, c.Launched)
	}
	p.send("go on")
	p.expectOK()
}

// testHIPDevices: a wait for a stream or an event tells that commands are done whatever device is current.
func testHIPDevices(t *testing.T, dir string) {
	d := newDaemon(t, noSetup)
	p := start(t, d.Socket(), dir, "hip-linked", "devices", "3")
	page := d.Page()
	expectCounts(p, page, "waited for a stream", 6, 3)
	expectCounts(p, page, "waited for an event", 6, 6)
	p.expectOK()
}

func testHIPDeadDaemon(t *testing.T, dir string) {
	d := newDaemon(t, func(p *shimpage.Page) { p.Hold(lease) })
	p := start(t, d.Socket(), dir, "hip-linked", "steps", "50")
	waitUntilHeld(t, d.Page())
	d.Die()
	p.expectOK()
}

// testHIPClasses: launches wait for a stream of higher priority of the same process if the owner asks
// for it, and only then. The results are the same.
func testHIPClasses(t *testing.T, dir string) {
	for _, on := range []bool{false, true} {
		d := newDaemon(t, func(p *shimpage.Page) { p.SetStreamClasses(on) })
		p := start(t, d.Socket(), dir, "hip-linked", "classes", "50")
		page := d.Page()
		p.expectOK()
		if c := page.Counters(); on != (c.ClassHolds > 0) {
			t.Errorf("stream classes %v: %d launches waited for the stream of higher priority", on, c.ClassHolds)
		}
	}
}

// testHIPLate: programs get the same results if their requests enter late, which they do only if
// the owner asks for it.
func testHIPLate(t *testing.T, dir string) {
	for _, work := range []struct {
		mode, n  string
		launched uint64 // 0: varies
		late     uint64 // at least so many requests enter late
	}{
		{"requests", "100", 100*8 + 20, 80},
		{"frees", "40", 40 * 8, 30},
		{"order", "40", 40*2 + 5 + 5*2, 0},
		{"steps", "100", 100, 0},
		{"threads", "60", 121, 0},
		{"capture", "10", 0, 0},
		{"graph", "20", 1, 0},
		{"later", "5", 10, 0},
		{"unseen", "10", 1 + 10*9, 9},
	} {
		for _, setting := range []shimpage.LateEntry{shimpage.LateAuto, shimpage.LateOn} {
			t.Run(fmt.Sprint(work.mode, setting), func(t *testing.T) {
				d := newDaemon(t, lateEntry(setting))
				p := start(t, d.Socket(), dir, "hip-linked", work.mode, work.n)
				page := d.Page()
				p.expectOK()
				c := page.Counters()
				if work.launched != 0 && c.Launched != work.launched || c.Completed != c.Launched || c.Flags != 0 {
					t.Errorf("%d commands launched, %d done, flags %b; want %d, all, 0", c.Launched, c.Completed, c.Flags, work.launched)
				}
				if on := setting == shimpage.LateOn; on && c.LateRequests < work.late || !on && c.LateRequests > 0 {
					t.Errorf("%d requests entered late", c.LateRequests)
				}
				t.Logf("%d requests entered late, %v, %d early", c.LateRequests, c.LateFor, c.LateEarly)
			})
		}
	}
}

// testHIPShared: other processes may wait for a process that shares memory or an event, so its requests
// enter at once.
func testHIPShared(t *testing.T, dir string) {
	for call := range 10 {
		d := newDaemon(t, lateEntry(shimpage.LateOn))
		p := start(t, d.Socket(), dir, "hip-linked", "shares", fmt.Sprint(call))
		page := d.Page()
		p.expectOK()
		if c := page.Counters(); c.LateRequests != 0 {
			t.Errorf("call %d: %d requests entered late after it, want 0", call, c.LateRequests)
		}
	}
}

// testHIPDestroyed: the commands of a stream are in flight until the call that destroys it, which
// waits for them, returns. Those of a thread's default stream are done when the thread has ended.
func testHIPDestroyed(t *testing.T, dir string) {
	for _, n := range []uint32{0, 8} {
		d := newDaemon(t, bound(n, 8))
		p := start(t, d.Socket(), dir, "hip-linked", "destroyed", "3")
		page := d.Page()
		expectCounts(p, page, "destroying", 23, 20)
		expectCounts(p, page, "destroyed", 23, 23)
		p.expectOK()
		p = start(t, d.Socket(), dir, "hip-linked", "ended", "3")
		page = d.Page()
		expectCounts(p, page, "ended", 3, 3)
		p.expectOK()
	}
}
