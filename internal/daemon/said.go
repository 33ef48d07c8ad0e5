package daemon

import (
	"fmt"
	"slices"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"golang.org/x/sys/unix"
)

// word is what was said of a process and all that descend from it, by 'giveway run' or by
// 'giveway set --tree'. It counts for those of the same user, and root's for all.
type word struct {
	root   proc.Process
	change api.Change
}

func (w *word) countsFor(p *proc.Process) bool { return w.root.UID == 0 || w.root.UID == p.UID }

// resolve merges the attributes of a process: backend < rule < run < hint and set, of
// which the last counts, but for the class, where set does. Laxity, work and expected
// arrival come from hints only and stay. d.mu is held.
func (d *Daemon) resolve(p *process) {
	had := p.attr
	p.attr, p.from = p.backendAttr, "default"
	p.attr.Laxity, p.attr.Work, p.attr.Expect = had.Laxity, had.Work, had.Expect
	p.bound, p.bounded, p.predict = hal.Bound{}, false, false
	if d.cfg.Rule != nil {
		if attr, ok := d.cfg.Rule(p.info, p.attr); ok {
			p.attr, p.from = attr, "rule"
		}
	}
	if p.run != nil {
		if p.apply(p.run.change); p.run.change.Class != nil {
			p.from = "run"
		}
	}
	p.apply(p.said)
	switch {
	case p.classed:
		p.from = "set"
	case p.said.Class != nil:
		p.from = "hint"
	}
}

// announce tells the backends and the scheduler of a process's attributes. d.mu is held.
func (d *Daemon) announce(p *process) {
	d.publish(p)
	d.events.post(p.appendAttrs(nil)...)
}

// runOf is the nearest run that a process belongs to, or nil. It may outlive it, or get
// another parent: who wants to know later has kept it. d.mu is held.
func (d *Daemon) runOf(info *proc.Process) (run *word) {
	if len(d.runs) == 0 {
		return nil
	}
	proc.Ancestors(info.PID, func(pid int) bool {
		if all := d.runs[pid]; len(all) > 0 && all[len(all)-1].countsFor(info) {
			run = all[len(all)-1]
		}
		return run != nil
	})
	return run
}

// BeginRun implements server.Node: a process and its tree, now and to come. The shim may
// find a daemon that is new before 'giveway run' does, so some may be known already.
func (d *Daemon) BeginRun(pid int, c api.Change) (end func(), err error) {
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", server.ErrBadRequest, err)
	}
	if c.Paused != nil {
		return nil, fmt.Errorf("%w: a run is not paused; pause its programs", server.ErrBadRequest)
	}
	info, err := proc.Look(pid)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w: %w", pid, server.ErrNotFound, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	run := &word{info, c}
	d.runs[pid] = append(d.runs[pid], run) // the last counts
	for _, p := range d.processes {
		if d.runOf(&p.info) == run {
			p.run = run
			d.resolve(p)
			d.announce(p)
		}
	}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.runs[pid] = slices.DeleteFunc(d.runs[pid], func(r *word) bool { return r == run })
		if len(d.runs[pid]) == 0 {
			delete(d.runs, pid)
		}
	}, nil
}

// Change implements server.Node.
func (d *Daemon) Change(pid int, c api.Change) (api.Process, error) {
	if err := c.Check(); err != nil {
		return api.Process{}, fmt.Errorf("%w: %w", server.ErrBadRequest, err)
	}
	do := d.changeOne
	if c.Tree {
		do = d.changeTree
	}
	p, err := do(pid, c)
	if err != nil {
		return api.Process{}, err
	}
	return d.description(p), nil
}

func (d *Daemon) changeOne(pid int, c api.Change) (p *process, err error) {
	err = d.with(pid, func(known *process) error {
		p = known
		return d.change(p, c)
	})
	return p, err
}

// change does as the owner of a process says, if it can be done. d.mu is held.
func (d *Daemon) change(p *process, c api.Change) error {
	switch {
	case (c.Bound != nil || c.Batch != nil) && p.gate == nil:
		return fmt.Errorf("process %d was not started with the shim, so its commands in flight cannot be bounded: %w", p.info.PID, server.ErrConflict)
	case c.Paused != nil && *c.Paused && !p.stoppable():
		return fmt.Errorf("process %d cannot be paused: its queue can be sliced and no more: %w", p.info.PID, server.ErrConflict)
	}
	p.say(c)
	d.announce(p)
	return nil
}

// changeTree does so with a process and all that descend from it, those of them that it
// can be done with, and has it done with those to come. The root itself may be a shell
// that has nothing to do with a device.
func (d *Daemon) changeTree(pid int, c api.Change) (*process, error) {
	info, err := proc.Look(pid)
	if err != nil {
		return nil, fmt.Errorf("there is no process %d: %w", pid, server.ErrNotFound)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	said := word{info, c}
	var root *process
	var refused error
	done := 0
	for pid, p := range d.processes {
		if !descends(pid, info.PID) || !said.countsFor(&p.info) || pid == info.PID && p.info.Start != info.Start {
			continue
		}
		if pid == info.PID {
			root = p
		}
		if err := d.change(p, c); err != nil {
			refused = err
		} else {
			done++
		}
	}
	if done == 0 && refused != nil {
		return nil, refused
	}
	d.buryTrees()
	if w := d.trees[info.PID]; w == nil || w.root.Start != info.Start {
		d.trees[info.PID] = &word{root: info}
	}
	for pid, w := range d.trees { // what was said of a part of it before counts no more
		if said.countsFor(&w.root) && descends(pid, info.PID) {
			w.change = w.change.And(c)
		}
	}
	if root == nil {
		root = d.newProcess(info) // to be told of, and forgotten
	}
	return root, nil
}

// descends reports whether a process is another, or below it.
func descends(pid, from int) (yes bool) {
	proc.Ancestors(pid, func(p int) bool {
		yes = p == from
		return yes
	})
	return yes
}

// treesOf is what was said of the trees that a process is in, the widest first. d.mu is held.
func (d *Daemon) treesOf(p *proc.Process) (words []*word) {
	if len(d.trees) == 0 {
		return nil
	}
	proc.Ancestors(p.PID, func(pid int) bool {
		w := d.trees[pid]
		if w == nil || !w.countsFor(p) {
			return false
		}
		if now, err := proc.Look(pid); err == nil && now.Start == w.root.Start {
			words = append(words, w)
		}
		return false
	})
	slices.Reverse(words)
	return words
}

// buryTrees forgets what was said of trees whose root is no more. d.mu is held.
func (d *Daemon) buryTrees() {
	for pid := range d.trees {
		if unix.Kill(pid, 0) == unix.ESRCH {
			delete(d.trees, pid)
		}
	}
}
