package shim_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/pagetest"
)

// TestPageVersions: shims of versions 1 and 2, of this version and of the next work with daemons of the
// release with version 1, of version 2, of this version and of the next, on a page of the highest version
// that both have.
func TestPageVersions(t *testing.T) {
	b := buildHarm(t)
	first, last, next := b.ofVersion("first", 1), b.ofVersion("last", 2), b.ofVersion("next", pageabi.Version+1)
	ofLast := func(d *pagetest.Daemon) { d.Speak(pageabi.Versions{Lowest: 1, Highest: 2}) }
	future := pageabi.Versions{Lowest: pageabi.LowestVersion, Highest: pageabi.Version + 1}
	for _, c := range []struct {
		name, dir string
		daemon    func(*pagetest.Daemon)
		want      uint32 // version of the page; zero: none
	}{
		{"shim of version 1, released daemon", first.dir, (*pagetest.Daemon).Released, 1},
		{"shim of version 1, this daemon", first.dir, func(*pagetest.Daemon) {}, 1},
		{"shim of version 1, next daemon", first.dir, func(d *pagetest.Daemon) { d.Speak(future) }, 1},
		{"shim of version 1, daemon of version 2", first.dir, ofLast, 1},
		{"shim of version 2, released daemon", last.dir, (*pagetest.Daemon).Released, 1},
		{"shim of version 2, this daemon", last.dir, func(*pagetest.Daemon) {}, 2},
		{"shim of version 2, next daemon", last.dir, func(d *pagetest.Daemon) { d.Speak(future) }, 2},
		{"this shim, daemon of version 2", b.dir, ofLast, 2},
		{"this shim, daemon of version 1", b.dir, func(d *pagetest.Daemon) { d.Speak(pageabi.Versions{Lowest: 1, Highest: 1}) }, 1},
		{"this shim, released daemon", b.dir, (*pagetest.Daemon).Released, 1},
		{"this shim, this daemon", b.dir, func(*pagetest.Daemon) {}, pageabi.Version},
		{"this shim, next daemon", b.dir, func(d *pagetest.Daemon) { d.Speak(future) }, pageabi.Version},
		{"next shim, released daemon", next.dir, (*pagetest.Daemon).Released, 1},
		{"next shim, this daemon", next.dir, func(*pagetest.Daemon) {}, pageabi.Version},
		{"next shim, next daemon", next.dir, func(d *pagetest.Daemon) { d.Speak(future) }, pageabi.Version + 1},
		{"this shim, a daemon without its versions", b.dir, func(d *pagetest.Daemon) {
			d.Speak(pageabi.Versions{Lowest: pageabi.Version + 1, Highest: pageabi.Version + 1})
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDaemon(t, noSetup)
			c.daemon(d)
			p := start(t, d.Socket(), c.dir, "harm", "plain")
			if c.want == 0 {
				p.expectOK()
				if n := d.Waiting(); n != 0 {
					t.Errorf("the process has taken %d pages, want none", n)
				}
				return
			}
			page := d.Page()
			line := p.expectOK()
			expectAllGated(t, page.Counters(), line)
			if got := pagetest.PageVersion(t, page); got != c.want {
				t.Errorf("the page has version %d, want %d", got, c.want)
			}
		})
	}
	t.Run("next shim, real daemon", func(t *testing.T) {
		socket, c := startDaemon(t)
		start(t, socket, next.dir, "harm", "forever")
		eventually(t, "its launches are counted", func() bool {
			all, err := c.Processes(t.Context())
			return err == nil && len(all) == 1 && all[0].Shim != nil && all[0].Shim.Launched > 100
		})
	})
}

// ofVersion builds a shim whose highest version of the page is version, in a directory with the
// other files that TestPageVersions needs.
func (b builder) ofVersion(name string, version uint32) builder {
	b.t.Helper()
	other := builder{b.t, b.path(name)}
	if err := os.Mkdir(other.dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	for _, file := range []string{"harm", "libcuda.so.1"} {
		if err := os.Link(b.path(file), other.path(file)); err != nil {
			b.t.Fatal(err)
		}
	}
	other.compileShim("libgiveway.so", fmt.Sprintf("-DGW_ABI=%du", version))
	return other
}
