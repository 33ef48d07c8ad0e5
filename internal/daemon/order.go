package daemon

import (
	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
)

// orderKind says what an order changes.
type orderKind string

const (
	orderSet     orderKind = "set"     // Values of the process Target
	orderTree    orderKind = "tree"    // Values of Target and its descendants, now and later
	orderRun     orderKind = "run"     // Values of Target and its descendants, until orderRunEnd
	orderRunEnd  orderKind = "run-end" // the run with the number Run is over
	orderPolicy  orderKind = "policy"  // Policy is in force
	orderRestore orderKind = "restore" // policy native; no values by set and hint
)

// order is a change that a caller asked for and that lasts longer than the request. Every
// order passes through Daemon.apply. Orders are plain data, so that they can be kept
// across a restart of the daemon.
type order struct {
	Seq    uint64        `json:"seq"` // orders took effect in this sequence
	Kind   orderKind     `json:"kind"`
	By     server.Caller `json:"by"`
	Target proc.ID       `json:"target,omitzero"`
	Values attr.Values   `json:"values,omitzero"`
	Run    uint64        `json:"run,omitempty"` // the number of a run
	Policy api.Policy    `json:"policy,omitzero"`
	// Repeated means that the order is from an earlier daemon. It is not recorded again,
	// and a process that no backend has found yet is known from then on.
	Repeated bool `json:"-"`
}

// apply carries out an order and records it. An order that fails changes nothing.
func (d *Daemon) apply(o order) error {
	if err := d.carryOut(&o); err != nil {
		return err
	}
	if d.record != nil && !o.Repeated {
		d.record(o)
	}
	return nil
}

// carryOut carries out an order and gives it a number.
func (d *Daemon) carryOut(o *order) error {
	switch o.Kind {
	case orderPolicy:
		return d.choosePolicy(o)
	case orderRestore:
		return d.restoreAll(o)
	}
	if o.Repeated {
		if err := d.expect(o.Target); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	o.Seq = d.nextOrder()
	switch o.Kind {
	case orderSet:
		p := d.processes[o.Target.PID]
		if p == nil || p.info.ID() != o.Target {
			return server.NotFound("process %d has exited", o.Target.PID)
		}
		return d.change(p, o.Values)
	case orderTree:
		return d.changeDescendants(o)
	case orderRun:
		d.beginRun(o)
	case orderRunEnd:
		d.endRun(o)
	}
	return nil
}

// nextOrder returns the number of an order that takes effect now. d.mu is held.
func (d *Daemon) nextOrder() uint64 {
	d.lastOrder++
	return d.lastOrder
}

// expect makes the record of a process that a repeated order is for, if the process still
// exists.
func (d *Daemon) expect(id proc.ID) error {
	info, err := proc.Look(id.PID)
	if err != nil || info.ID() != id {
		return server.NotFound("process %d has exited", id.PID)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.process(info)
	return nil
}

// Change implements server.Node.
func (d *Daemon) Change(by server.Caller, pid int, c api.Change) (api.Process, error) {
	if err := c.Check(attr.BySet); err != nil {
		return api.Process{}, server.BadRequest("%w", err)
	}
	if c.Tree {
		return d.changeTree(by, pid, c.Values)
	}
	p, err := d.find(pid)
	if err != nil {
		return api.Process{}, err
	}
	if err := d.apply(order{Kind: orderSet, By: by, Target: p.info.ID(), Values: c.Values}); err != nil {
		return api.Process{}, err
	}
	return d.description(p), nil
}
