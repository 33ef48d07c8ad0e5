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

// testHIP is over a HIP of our own, which runs streams in order and is as touchy as
// the real one. No AMD GPU has seen this.
func testHIP(b bench) {
	t := b.t
	const library = "libamdhip64.so.6"
	b.compile(library, "-fPIC", "-shared", "test/fakehip.c", "-Wl,-Bsymbolic,-soname,"+library)
	b.compile("hip-dlsym", "test/hipwork.c")
	b.compile("hip-linked", "-DLINKED", "test/hipwork.c", "-l:"+library)
	b.compile("hip-conform", "test/hip_conform.c", b.path("shim.o"), "-l:"+library)

	t.Run("conform", func(t *testing.T) { bench{t, b.dir}.conforms("hip-conform") })
	for _, how := range []string{"hip-linked", "hip-dlsym"} {
		t.Run(how, func(t *testing.T) { testHIPOrder(t, b.dir, how) })
		t.Run(how+", held", func(t *testing.T) { testHIPHeld(t, b.dir, how) })
	}
	t.Run("capture is not held", func(t *testing.T) { testHIPCapture(t, b.dir) })
	t.Run("event recorded again", func(t *testing.T) { testHIPEventAgain(t, b.dir) })
	t.Run("dead daemon", func(t *testing.T) { testHIPDeadDaemon(t, b.dir) })
}

func testHIPOrder(t *testing.T, dir, how string) {
	for _, work := range []struct {
		mode, n  string
		launched uint64 // 0: not the same each time
		slack    uint64 // commands that may be in flight over the bound
		free     bool   // the bound does not hold, and should not
	}{
		{mode: "order", n: "40", launched: 40*2 + 5 + 5*2},
		{mode: "steps", n: "100", launched: 100},
		{mode: "threads", n: "60", launched: 121, slack: 1}, // two threads may pass together
		{mode: "capture", n: "10", free: true},              // nothing is bounded beside a capture
		{mode: "later", n: "5", launched: 10, free: true},
	} {
		for _, bound := range []uint32{0, 1, 4} {
			t.Run(fmt.Sprintf("%s, bound %d", work.mode, bound), func(t *testing.T) {
				k := keep(t, func(p *shimpage.Page) { p.SetBound(bound, 1) })
				p := start(t, k, dir, how, work.mode, work.n)
				page := k.page()
				line := p.ok()
				c := page.Counters()
				if c.Runtimes != runtimeHIP || work.launched != 0 && c.Launched != work.launched {
					t.Errorf("launched %d of %d, runtimes %b", c.Launched, work.launched, c.Runtimes)
				}
				if c.Completed != c.Launched || c.Flags != 0 {
					t.Errorf("%d of %d known to be done at the end, flags %b", c.Completed, c.Launched, c.Flags)
				}
				most, err := strconv.ParseUint(line[strings.Index(line, "most=")+len("most="):], 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				if bound > 0 && !work.free && most > uint64(bound)+work.slack && !stoodStill(t, c) {
					t.Errorf("%d commands in flight at once, bound %d", most, bound)
				}
				if work.mode == "later" && bound == 1 && c.Overruns == 0 {
					t.Error("a kernel waited for one behind the bound, and the bound was never let go")
				}
			})
		}
	}
}

func testHIPHeld(t *testing.T, dir, how string) {
	k := keep(t, func(p *shimpage.Page) { p.Hold(lease) })
	p := start(t, k, dir, how, "steps", "50")
	page := k.page()
	held(t, page)
	p.silent(300 * time.Millisecond)
	if c := page.Counters(); c.Launched != 0 || c.Overruns != 0 {
		t.Errorf("%d commands got past a shut gate; %d times it was taken for open", c.Launched, c.Overruns)
	}
	page.Release()
	p.ok()
}

// What goes into a graph passes a gate that is shut; the graph does not.
func testHIPCapture(t *testing.T, dir string) {
	k := keep(t, func(p *shimpage.Page) { p.Hold(lease); p.SetBound(1, 1) })
	p := start(t, k, dir, "hip-linked", "graph", "20")
	page := k.page()
	p.until("captured")
	held(t, page)
	p.silent(100 * time.Millisecond)
	page.Release()
	p.ok()
	if c := page.Counters(); c.Launched != 1 {
		t.Errorf("%d commands launched, of one graph", c.Launched)
	}
}

// The end of an event tells of the stream it was recorded in last.
func testHIPEventAgain(t *testing.T, dir string) {
	k := keep(t, open)
	p := start(t, k, dir, "hip-linked", "again", "3")
	page := k.page()
	p.until("busy")
	if c := page.Counters(); c.Launched != 3 || c.Completed != 0 {
		t.Errorf("%d of %d commands taken for done, of a stream that nobody has waited for", c.Completed, c.Launched)
	}
	p.tell("go on")
	p.ok()
}

func testHIPDeadDaemon(t *testing.T, dir string) {
	k := keep(t, func(p *shimpage.Page) { p.Hold(lease) })
	p := start(t, k, dir, "hip-linked", "steps", "50")
	held(t, k.page())
	k.Die()
	p.ok()
}
