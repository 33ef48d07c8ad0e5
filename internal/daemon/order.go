package daemon

import (
	"errors"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/hal"
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
	orderConfig  orderKind = "config"  // Config is in force
)

// order is a change that a caller asked for and that lasts longer than the request. Every
// order passes through Daemon.apply. What orders have led to is kept across a restart of the
// daemon: see kept.go.
type order struct {
	Kind   orderKind
	By     server.Caller
	Target proc.ID
	Values attr.Values
	Run    uint64 // the number of a run
	Policy api.Policy
	Config *config.Config
}

// apply carries out an order and writes its result to the journal. An order that is refused
// changes nothing; a restore that takes too long has changed a part.
//
// An error notKept says that the order is carried out and not written. While the daemon ends, orders are refused: see endOrders.
func (d *Daemon) apply(o order) error {
	d.orders.RLock()
	defer d.orders.RUnlock()
	switch {
	case d.ending() && o.Kind == orderRunEnd:
		return nil // it goes on under the next daemon, which its root tells of it
	case d.ending():
		return errEnding()
	}
	if o.By.All {
		o.Values = o.Values.Unlimited()
	}
	// A run beyond the limits has as much as the limits of its processes allow. Processes of uid 0 have no
	// limits, so a run by root of a container, which is not root here, is refused as other orders are.
	reduced := o.Kind == orderRun && (o.By.UID != 0 || o.By.Pod != "")
	if !reduced && o.Kind != orderRunEnd {
		if err := d.checkLimits(o.By, o.Values); err != nil {
			return err
		}
	}
	if err := d.carryOut(&o); err != nil {
		return err
	}
	if d.journalOrder != nil {
		return d.journalOrder(o)
	}
	return nil
}

// applyAndWarn is apply for orders whose answer can have a warning: that the order is in force, and the
// next daemon will not know of it.
func (d *Daemon) applyAndWarn(o order) (warning string, err error) {
	lost := notKept{}
	if err = d.apply(o); errors.As(err, &lost) {
		return lost.Error(), nil
	}
	return "", err
}

// applyOnly is apply for orders whose answer cannot have one. The log has it, and giveway doctor.
func (d *Daemon) applyOnly(o order) error {
	_, err := d.applyAndWarn(o)
	return err
}

// carryOut carries out an order.
func (d *Daemon) carryOut(o *order) error {
	switch o.Kind {
	case orderSet:
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.changeOne(o)
	case orderTree:
		return d.changeDescendants(o)
	case orderRun:
		return d.beginRun(o)
	case orderRunEnd:
		d.mu.Lock()
		defer d.mu.Unlock()
		d.endRun(o)
	case orderPolicy:
		return d.choosePolicy(o.Policy)
	case orderRestore:
		return d.restoreAll()
	case orderConfig:
		return d.useConfig(o.Config)
	}
	return nil
}

func errExited(pid int) error { return server.NotFound("process %d has exited", pid) }

// changeOne sets attributes of one process. d.mu is held.
func (d *Daemon) changeOne(o *order) error {
	p := d.processByID(o.Target)
	if p == nil {
		return errExited(o.Target.PID)
	}
	if err := p.refusal(o.Values); err != nil {
		return err
	}
	d.give(p, o.Values)
	return nil
}

// Change implements server.Node.
func (d *Daemon) Change(by server.Caller, pid int, c api.Change) (api.Process, error) {
	if err := c.Check(attr.BySet); err != nil {
		return api.Process{}, server.BadRequest("%w", err)
	}
	leave, err := d.callers.enter(by)
	if err != nil {
		return api.Process{}, err
	}
	defer leave()
	if c.Tree {
		return d.changeTree(by, pid, c.Values)
	}
	p, err := d.target(by, pid)
	if err != nil {
		return api.Process{}, err
	}
	warning, err := d.applyAndWarn(order{Kind: orderSet, By: by, Target: p.info.ID(), Values: c.Values})
	if err != nil {
		return api.Process{}, err
	}
	answer := d.description(p)
	answer.Warning = warning
	return answer, nil
}

// identify returns the process that has a pid now, which the caller may change.
func (d *Daemon) identify(by server.Caller, pid int) (proc.Process, error) {
	info, err := d.procs.Process(pid)
	switch {
	case err == nil && d.mayChange(by, &info):
		return info, nil
	case err == nil:
		return info, server.Forbidden("process %d belongs to another user or group, or has more rights than you: only its owner and root may change it", pid)
	case by.All:
		d.mu.Lock()
		defer d.mu.Unlock()
		if p := d.processes[pid]; p != nil && p.simulated() {
			return p.info, nil
		}
	}
	return info, server.NotFound("there is no process %d; 'giveway ps' lists those that use a device", pid)
}

// mayChange reports whether a caller may change a process: one whom the kernel would let
// trace it. A setuid program belongs to root; uid 0 of a container, which is not root, may
// not change it. A process in a pod may change those of its pod, and no others.
func (d *Daemon) mayChange(by server.Caller, p *proc.Process) bool {
	setuid := p.UID == 0 && p.Starter != 0
	same := by.UID == p.UID && by.GID == p.GID
	if pod := d.podOf(p.Containers); pod != "" || by.Pod != "" {
		same = pod == by.Pod
	}
	return by.All || !setuid && same
}

// target returns a process that the caller may change. Backends look for a
// process that is not known. A known process with another start time is an earlier one with
// the same pid, and is never changed.
func (d *Daemon) target(by server.Caller, pid int) (*process, error) {
	info, err := d.identify(by, pid)
	if err != nil {
		return nil, err
	}
	known := func() *process {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.processByID(info.ID())
	}
	if p := known(); p != nil {
		return p, nil
	}
	if err := d.callers.spend(by, scans); err != nil {
		return nil, err
	}
	notes := d.scan(pid)
	if p := known(); p != nil {
		return p, nil
	}
	return nil, server.NotFound("process %d is not known here: it uses no device, and was not started by 'giveway run' or has launched nothing yet%s", pid, notes)
}

// scan asks the backends to look for a process at once. It returns their notes.
func (d *Daemon) scan(pid int) (notes string) {
	for _, b := range d.cfg.Backends {
		finder, ok := b.(hal.Finder)
		if !ok {
			continue
		}
		found := finder.Find(pid)
		if found.Pending != nil {
			d.lockProcess(*found.Pending)
			d.mu.Unlock()
		}
		if found.Note != "" {
			notes += " (" + found.Note + ")"
		}
	}
	return notes
}
