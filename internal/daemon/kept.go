package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
)

// The journal keeps what orders have led to, so that the next daemon goes on with it: the
// attributes of processes, trees and runs, and the policies that differ from the
// configuration's. It keeps results, not orders: their number is bounded, and the next
// daemon need not repeat how they came about.

// Keys of the journal.
const (
	keptProcesses  = "process/"   // and pid.start: a keptProcess
	keptTrees      = "tree/"      // and pid.start of the root: a keptTree
	keptRuns       = "run/"       // and the run's number: a keptTree
	keptContainers = "container/" // and the id: an api.Container
	keptPolicies   = "policy/"    // and the device's ID, or nothing for all devices: a keptPolicy
)

// keptProcess is what orders gave to a process.
type keptProcess struct {
	ID       proc.ID    `json:"id"`
	Set      keptValues `json:"set,omitzero"`
	ByRoot   keptValues `json:"by_root,omitzero"` // set by a caller without limits
	Owned    bool       `json:"owned,omitempty"`
	Run      keptTree   `json:"run,omitzero"` // it may have ended, and its root exited
	Restored bool       `json:"restored,omitempty"`
}

// keptTree is a tree or a run.
type keptTree struct {
	Root   proc.ID       `json:"root"`
	By     server.Caller `json:"by"`
	Values keptValues    `json:"values,omitzero"`
	ByRoot keptValues    `json:"by_root,omitzero"` // given by a caller without limits
	Run    uint64        `json:"run,omitempty"`
}

// keptValues are attributes as the journal has them.
type keptValues struct{ attr.Values }

// UnmarshalJSON leaves out attributes that this version does not have: a daemon of another version
// may have written them, and the others must not be lost.
func (v *keptValues) UnmarshalJSON(data []byte) error {
	_, err := v.ReadJSON(data)
	return err
}

// keptPolicy is a policy that was chosen by an order. Configured is the policy that the
// configuration had then: if it has another one now, the file is the newer order.
type keptPolicy struct {
	InForce    api.Policy `json:"in_force"`
	Configured api.Policy `json:"configured"`
}

func idKey(prefix string, id proc.ID) string { return fmt.Sprintf("%s%d.%d", prefix, id.PID, id.Start) }

func runKey(n uint64) string { return fmt.Sprint(keptRuns, n) }

func (t *treeAttrs) kept() keptTree {
	k := keptTree{Root: t.root(), By: t.by, Run: t.run}
	k.Values.Values, k.ByRoot.Values = t.values.Split()
	return k
}

// kept returns what orders gave to a process; ok is false if that is nothing. d.mu is held.
func (p *process) kept() (k keptProcess, ok bool) {
	k = keptProcess{ID: p.info.ID(), Owned: p.hasOrders, Restored: p.restored}
	k.Set.Values, k.ByRoot.Values = p.layers[attr.FromSet].Split()
	if p.run != nil {
		k.Run = p.run.kept()
	}
	return k, k != keptProcess{ID: k.ID}
}

// While the daemon ends, connections are closed and queues withdrawn. What that leads to is not for the
// next daemon, so the journal must not change any more. An order that was answered with success must be
// in it. So every order but the end of a run is refused from then on, and those under way are carried
// out and written first. A run whose connection the end of the daemon closes goes on.

// ending reports whether the daemon is ending.
func (d *Daemon) ending() bool {
	ctx := d.runContext.Load()
	return ctx != nil && (*ctx).Err() != nil
}

// errEnding refuses an order.
func errEnding() error {
	return server.Unavailable("the daemon is ending: try again in a moment, when the next one runs")
}

// ordersTime is how long the daemon waits at its end for orders that are under way.
const ordersTime = time.Second

// endOrders waits for the orders under way, and leaves the journal as it is from then on. An order
// that takes too long is answered with an error.
func (d *Daemon) endOrders() {
	for end := time.Now().Add(ordersTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if d.orders.TryLock() {
			d.orders.Unlock()
			break
		}
	}
	d.keeping.Lock()
	defer d.keeping.Unlock()
	d.keptClosed = true
}

// notKept means that an order is in force and that the journal does not have it.
type notKept struct{ error }

func (n notKept) Unwrap() error { return n.error }

// keepOrder writes the result of an order to the journal. If the next daemon will not know of the order,
// it returns an error: notKept, or one that refuses the order because this daemon ends.
func (d *Daemon) keepOrder(o order) error {
	d.keeping.Lock() // an earlier state is not written after a later one
	defer d.keeping.Unlock()
	if d.keptClosed {
		return errEnding()
	}
	if o.Kind == orderSet {
		of, err := d.keepProcess(o.Target)
		d.logKept(d.kept.once(of, err))
		return lost(err, errors.Is(err, errNoRoom))
	}
	err := d.kept.replace(d.cfg.Journal, d.inForce())
	d.logKept(err)
	if errors.Is(err, errNoRoom) { // perhaps another user's
		err = nil
	}
	return lost(err, d.kept.full[ownerOf(o.By)])
}

// lost returns the error of an order that the journal does not have, because of an error of writing or
// because its owner's share is full; otherwise nil.
func lost(err error, full bool) error {
	switch {
	case full:
		return notKept{errors.New("the attributes are in force and end with the daemon: its journal has no room for more orders of this user, until processes that have some exit")}
	case err != nil && !errors.Is(err, os.ErrClosed):
		return notKept{fmt.Errorf("the attributes are in force and may end with the daemon: %w", err)}
	}
	return nil
}

// keepProcess writes what orders gave to a process. It returns whose share of the journal that counts
// to. d.keeping is held.
func (d *Daemon) keepProcess(id proc.ID) (orderOwner, error) {
	d.mu.Lock()
	p := d.processByID(id)
	if p == nil {
		d.mu.Unlock()
		return orderOwner{}, nil
	}
	k, _ := p.kept()
	v := keptValue{p.ownerOfKept(&k), k}
	d.mu.Unlock()
	return v.orderOwner, d.kept.put(d.cfg.Journal, idKey(keptProcesses, id), v)
}

// ownerOfKept returns whose share of the journal k, which is of p, counts to. What the administrator
// set must not be lost because a user's share is full. d.mu is held.
func (p *process) ownerOfKept(k *keptProcess) orderOwner {
	if !k.ByRoot.Empty() {
		return administrator
	}
	return p.owner
}

// keepAll makes the journal agree with what is in force, and so drops from it what belongs to
// processes that have exited. It does nothing while the daemon ends.
func (d *Daemon) keepAll() {
	if d.cfg.Journal == nil {
		return
	}
	d.keeping.Lock()
	defer d.keeping.Unlock()
	if kept := d.inForce(); !d.ending() {
		d.logKept(d.kept.replace(d.cfg.Journal, kept))
	}
}

func (d *Daemon) logKept(err error) {
	if err != nil && !errors.Is(err, os.ErrClosed) { // closed: the daemon has ended
		d.cfg.Log.Error("order could not be written to the journal: give it again after a restart of the daemon", "error", err)
	}
}

// inForce returns everything that the journal keeps, by key.
func (d *Daemon) inForce() map[string]keptValue {
	kept := make(map[string]keptValue)
	d.eachProcess(d.allProcesses(), func(p *process) {
		if k, ok := p.kept(); ok {
			kept[idKey(keptProcesses, k.ID)] = keptValue{p.ownerOfKept(&k), k}
		}
	})
	d.eachTree(func(t *treeAttrs) {
		key := runKey(t.run)
		if t.run == 0 {
			key = idKey(keptTrees, t.root())
		}
		kept[key] = keptValue{ownerOf(t.by), t.kept()}
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	for device, p := range d.pendingPolicies {
		kept[keptPolicies+device] = keptValue{administrator, p}
	}
	keepPolicy := func(device string, inForce, configured api.Policy) {
		if k := (keptPolicy{inForce, configured}); !samePolicy(inForce, configured) {
			kept[keptPolicies+device] = keptValue{administrator, k}
		}
	}
	keepPolicy("", d.policy, d.conf.Policy)
	for id, dev := range d.devices {
		configured, _ := d.conf.DevicePolicy(string(id), dev.info.Index)
		keepPolicy(string(id), dev.policy, configured)
	}
	return kept
}

// eachTree calls f with d.mu held for each tree and run. As eachProcess does, it lets others have
// d.mu after every few.
func (d *Daemon) eachTree(f func(*treeAttrs)) {
	var all []*treeAttrs
	d.mu.Lock()
	for _, t := range d.trees {
		all = append(all, t)
	}
	for _, runs := range d.runs {
		all = append(all, runs...)
	}
	d.mu.Unlock()
	for part := range slices.Chunk(all, lockBatch) {
		d.mu.Lock()
		for _, t := range part {
			if d.trees[t.root()] == t || slices.Contains(d.runs[t.root()], t) {
				f(t)
			}
		}
		d.mu.Unlock()
	}
}

func samePolicy(a, b api.Policy) bool {
	a.Device, b.Device = "", "" // one may have the index, the other the ID
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}
