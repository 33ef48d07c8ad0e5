package discover

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"github.com/giveway/giveway/internal/proc"
)

// TestRemadeGroupIsAnother checks that a group which is freed and made again between two scans,
// with the same handles and number, is reported as gone and as new: by the traced free, and
// without eBPF by its slice.
func TestRemadeGroupIsAnother(t *testing.T) {
	for name, noBPF := range map[string]bool{"eBPF": false, "no eBPF": true} {
		t.Run(name, func(t *testing.T) {
			_, path, _ := mounted(t)
			p := startProcess(t, path)
			c := p.make()
			var slice atomic.Int64
			config := Config{Control: path, Only: proc.Everyone, NoBPF: noBPF}
			if noBPF {
				config.Slice = func(proc.ID, Key) time.Duration { return time.Duration(slice.Load()) }
			}
			w := startWatcher(t, config)
			var g Group
			for len(g.Channels) < len(c.Compute.Channels) {
				g = *w.nextEvent().Found
				defer g.File.Close()
			}
			if err := (nvrm.Group{File: g.File, Client: g.Client, Handle: g.Handle}).SetTimeslice(time.Microsecond); err != nil {
				t.Fatal(err)
			}
			slice.Store(int64(time.Microsecond))
			w.wantNothing()
			p.order("remake")
			if gone := w.wantGone(); gone.Key != g.Key || gone.PID != p.PID {
				t.Errorf("got %+v, want group %+v of process %d", gone, g.Key, p.PID)
			}
			slice.Store(0)
			if again := w.wantComplete(c); again.ID != g.ID || again.Key != g.Key {
				t.Errorf("got %+v, want the same key and number as %+v", again, g)
			}
			w.wantNothing()
		})
	}
}

// TestFreeOfAnotherObjectKeepsTheGroup checks which traced frees make a group another one.
func TestFreeOfAnotherObjectKeepsTheGroup(t *testing.T) {
	c := nvrmtest.Context{Client: 1, Device: 2, Subdevice: 3, Compute: nvrmtest.Channels{Group: 4, Channels: []nvrm.Handle{5}}}
	for object, want := range map[nvrm.Handle]bool{c.Client: true, c.Device: true, c.Compute.Group: true, c.Subdevice: false, 5: false} {
		g := &Group{Key: Key{c.Client, c.Compute.Group}, Device: c.Device, Subdevice: c.Subdevice, Channels: c.Compute.Channels}
		h := &opener{groups: map[Key]*Group{g.Key: g}}
		h.noteFree(c.Client+10, object)
		if g.remade {
			t.Errorf("object %v of another client: the group counts as freed", object)
		}
		if h.noteFree(c.Client, object); g.remade != want {
			t.Errorf("object %v: freed: got %v, want %v", object, g.remade, want)
		}
	}
}
