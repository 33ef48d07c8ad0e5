package shim_test

import (
	"testing"

	"github.com/giveway/giveway/internal/shim/shimpage"
)

// TestSharedContext: a context that one of its users releases lives on, and so do other contexts. What
// runs there is not done. Only the commands of a context that is gone are.
func TestSharedContext(t *testing.T) {
	b := buildHarm(t)
	b.compile("shared", "test/shared.c", "-l:libcuda.so.1")
	for name, prepare := range map[string]func(*shimpage.Page){
		"open": noSetup, "bound": bound(8, 1), "late entry": lateEntry(shimpage.LateOn),
	} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t, prepare)
			p := start(t, d.Socket(), b.dir, "shared")
			page := d.Page()
			for _, c := range []struct {
				line           string
				launched, done uint64
				ready          bool
			}{
				{"released", 1, 0, true},
				{"reset another device", 1, 0, true},
				{"destroyed the green context", 3, 2, true},
				{"released again", 4, 2, true},
				{"released for good", 4, 3, true},
				{"waited for the other context", 4, 4, false},
				{"detached", 5, 4, true},
				{"detached for good", 5, 5, false},
			} {
				p.waitFor(c.line)
				n := page.Counters()
				if ready := n.Flags&shimpage.Ready != 0; n.Launched != c.launched || n.Completed != c.done || ready != c.ready {
					t.Errorf("%s: %d launched, %d done, ready %v; want %d, %d, %v",
						c.line, n.Launched, n.Completed, ready, c.launched, c.done, c.ready)
				}
				p.send("")
			}
			p.expectOK()
		})
	}
}
