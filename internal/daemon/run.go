package daemon

import (
	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/discover"
)

// joinRun gives the programs of a run that are known already what the run says: the shim
// may find a daemon that is new before 'giveway run' does. What their owner has set counts
// for more, and so does the class that they gave themselves. d.mu is held.
func (d *Daemon) joinRun(root int, c api.Change) {
	for _, p := range d.processes {
		if p.from == "set" || d.runOf(p.info.PID) != root {
			continue
		}
		own, from := c, "run"
		if p.from == "hint" {
			own.Class, from = nil, "hint"
		}
		if p.change(own) == nil {
			p.from = from
			p.setBound()
			d.box.post(p.hinted(nil)...)
			d.attachAsked(p)
		}
	}
}

// runOf is the root of the nearest run that a process belongs to; 0: none. d.mu is held.
func (d *Daemon) runOf(pid int) (root int) {
	discover.Ancestors(pid, func(parent int) bool {
		if len(d.runs[parent]) > 0 {
			root = parent
		}
		return root != 0
	})
	return root
}
