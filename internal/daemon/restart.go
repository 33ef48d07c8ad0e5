package daemon

import (
	"cmp"
	"slices"
	"strings"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/proc"
)

// What a daemon takes over from an earlier one: the journal on disk.

// undoLeft undoes the changes of a daemon that was killed together with its guardian. No
// backend is started yet: it would take the changed state for the one to restore.
func (d *Daemon) undoLeft() {
	_, last, err := guardian.UndoLeft(d.cfg.Journal, d.cfg.Backends, d.cfg.Log)
	if damaged := d.cfg.Journal.Damaged(); err == nil {
		err = damaged
	}
	d.lastID.Store(uint64(last)) // the numbers of changes that could not be undone stay theirs
	d.leftErr = err
}

// journalCheck says whether everything that an earlier daemon left was undone, and whether the
// journal can be written.
func (d *Daemon) journalCheck() api.Check {
	if d.leftErr != nil {
		return api.Check{
			Name: "journal", Detail: "changes of an earlier daemon may not be undone: " + d.leftErr.Error(),
			Fix: "stop the daemon and run 'giveway restore --all'",
		}
	}
	if err := d.cfg.Journal.Failing(); err != nil {
		return api.Check{
			Name: "journal", Detail: "cannot be written, so changes that it does not list are not made, and orders may end with the daemon: " + err.Error(),
			Fix: "make room on the disk, or make its folder writable; the daemon tries again with the next change",
		}
	}
	return api.Check{Name: "journal", OK: true, Detail: d.cfg.Journal.Path()}
}

// takeOver puts in force what orders to an earlier daemon have led to. No backend is started
// yet, so that every process has its attributes when it is found.
func (d *Daemon) takeOver() {
	d.takeOverContainers()
	d.kept.load(d.cfg.Journal)
	runs := make(map[uint64]*treeAttrs) // by number; trees, which have none, are at zero
	for _, key := range append(d.cfg.Journal.Keys(keptRuns), d.cfg.Journal.Keys(keptTrees)...) {
		var k keptTree
		if d.readKept(key, &k) && !d.hasExited(k.Root) {
			runs[k.Run] = d.takeOverTree(k)
		}
	}
	for _, key := range d.cfg.Journal.Keys(keptProcesses) {
		var k keptProcess
		if d.readKept(key, &k) {
			d.takeOverProcess(k, runs)
		}
	}
	for _, key := range d.cfg.Journal.Keys(keptPolicies) {
		var k keptPolicy
		if d.readKept(key, &k) {
			d.takeOverPolicy(strings.TrimPrefix(key, keptPolicies), k)
		}
	}
	if !d.cfg.Journal.Get(keptPolicies, &keptPolicy{}) && d.conf.Policy.Name != "native" {
		d.endRestore() // the policy was native by the file as well, and the file has another one now
	}
	d.journalOrder = d.keepOrder
}

// readKept decodes the value of a key that the journal has. A value that does not fit is logged.
func (d *Daemon) readKept(key string, value any) bool {
	ok := d.cfg.Journal.Get(key, value)
	if !ok {
		d.cfg.Log.Warn("order in the journal cannot be read, perhaps because another version wrote it: give it again", "key", key)
	}
	return ok
}

// takeOverTree puts a tree or a run in force. A run lasts until its root exits, or begins it
// again.
func (d *Daemon) takeOverTree(k keptTree) *treeAttrs {
	t := &treeAttrs{lineage: proc.Lineage(k.Root, d.procs.Stat), by: k.By, values: k.values(), run: k.Run}
	d.mu.Lock()
	defer d.mu.Unlock()
	if k.Run == 0 {
		d.trees[k.Root] = t
		return t
	}
	t.takenOver = true
	d.runs[k.Root] = append(d.runs[k.Root], t)
	slices.SortFunc(d.runs[k.Root], func(a, b *treeAttrs) int { return cmp.Compare(a.run, b.run) }) // the last one applies
	d.reserveID(k.Run)
	return t
}

func (k *keptTree) values() attr.Values { return k.Values.With(k.ByRoot.Unlimited()) }

// takeOverProcess adds a process of the journal that has not exited.
func (d *Daemon) takeOverProcess(k keptProcess, runs map[uint64]*treeAttrs) {
	info, err := d.procs.Process(k.ID.PID)
	if err != nil || info.ID() != k.ID {
		return
	}
	p := d.lockProcess(info)
	defer d.mu.Unlock()
	p.layers[attr.FromSet], p.hasOrders, p.restored = k.Set.With(k.ByRoot.Unlimited()), k.Owned, k.Restored
	if k.Run.Run != 0 {
		d.reserveID(k.Run.Run)                     // a later run with that number would be taken for this one
		if p.run = runs[k.Run.Run]; p.run == nil { // it has ended
			p.run = &treeAttrs{lineage: []proc.ID{k.Run.Root}, by: k.Run.By, values: k.Run.values(), run: k.Run.Run}
		}
	}
	p.merge()
	d.publish(p)
}

// reserveID keeps a number from being used again.
func (d *Daemon) reserveID(n uint64) {
	for last := d.lastID.Load(); last < n && !d.lastID.CompareAndSwap(last, n); last = d.lastID.Load() {
	}
}

// takeOverPolicy puts a policy in force that was chosen by order, unless the configuration
// has changed since. That of a device is pending until the device is found.
func (d *Daemon) takeOverPolicy(device string, k keptPolicy) {
	switch {
	case device != "":
		d.pendingPolicies[device] = k
	case samePolicy(k.Configured, d.conf.Policy):
		d.repeatPolicy(k.InForce)
	default:
		d.endRestore() // if the order was a restore
	}
}

// takeOverDevice puts the policy in force that was chosen by order for a device, and reports
// whether there is one. d.mu is held.
func (d *Daemon) takeOverDevice(id string, configured api.Policy) bool {
	k, pending := d.pendingPolicies[id]
	delete(d.pendingPolicies, id)
	if !pending || !samePolicy(k.Configured, configured) {
		return false
	}
	if k.InForce.Name == "" { // an order for all devices replaced the configured one
		k.InForce = d.policy
	}
	k.InForce.Device = id
	go d.repeatPolicy(k.InForce) // takes d.mu
	return true
}

func (d *Daemon) repeatPolicy(p api.Policy) {
	if err := d.putInForce(p, false); err != nil {
		d.cfg.Log.Error("policy that was chosen before the daemon restarted could not be applied", "policy", p.Name, "device", p.Device, "error", err)
	}
}
