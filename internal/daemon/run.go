package daemon

import (
	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/discover"
)

// joinRun gives the programs of a run that are known already what the run says: the shim
// may find a daemon that is new before 'giveway run' does. d.mu is held.
func (d *Daemon) joinRun(root int) {
	for _, p := range d.processes {
		if d.runOf(p.info.PID) == root {
			d.applyRun(p)
			p.setBound()
			d.box.post(p.hinted(nil)...)
			d.attachAsked(p)
		}
	}
}

// applyRun gives a program what the run that it belongs to says. What its owner has set
// counts for more, and so does the class that it gave itself. d.mu is held.
func (d *Daemon) applyRun(p *process) {
	c := api.Change{}
	if runs := d.runs[d.runOf(p.info.PID)]; len(runs) > 0 {
		c = *runs[len(runs)-1]
	}
	if p.from == "hint" {
		c.Class = nil
	}
	p.apply(c)
	p.apply(p.owner)
	if c.Class != nil && p.owner.Class == nil {
		p.from = "run"
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
