package daemon

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"golang.org/x/sys/unix"
)

// treeAttrs are attributes that giveway run or giveway set --tree gave to a process and its
// descendants. They apply to those of the same user; root's apply to all.
type treeAttrs struct {
	root   proc.Process
	values attr.Values
	run    uint64 // the number of the run; zero for a tree
}

func (g *treeAttrs) appliesTo(p *proc.Process) bool { return g.root.UID == 0 || g.root.UID == p.UID }

// resolve brings the rule and the run of a process up to date and merges its attributes.
// d.mu is held.
func (d *Daemon) resolve(p *process) {
	p.layers[attr.FromRule], p.layers[attr.FromRun] = d.conf.Match(&p.info, p.user), attr.Values{}
	if p.run != nil {
		p.layers[attr.FromRun] = p.run.values
	}
	p.merge()
}

// announce tells the backends and the scheduler of a process's attributes. d.mu is held.
func (d *Daemon) announce(p *process) {
	d.publish(p)
	d.events.post(p.appendAttrs(nil)...)
}

// resolveAll resolves every process again and announces those that changed. d.mu is held.
func (d *Daemon) resolveAll() {
	for _, p := range d.processes {
		was := p.attrs
		if d.resolve(p); p.attrs != was {
			d.announce(p)
		}
	}
}

// niceInterval is how often the CPU scheduling parameters of processes are read.
const niceInterval = time.Second

// followNice reads the CPU scheduling parameters of the processes again and again while
// a policy is in force that uses them, because renice changes them.
func (d *Daemon) followNice(ctx context.Context) {
	every := time.NewTicker(niceInterval)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		d.mu.Lock()
		used := slices.ContainsFunc(d.policyNames(), func(name string) bool { return usedBy(attr.Nice, name) })
		d.mu.Unlock()
		if used {
			d.readNice()
		}
	}
}

// readNice reads the CPU scheduling parameters of every process. It does so without d.mu,
// for which the loop would wait.
func (d *Daemon) readNice() {
	d.mu.Lock()
	pids := slices.Collect(maps.Keys(d.processes))
	d.mu.Unlock()
	for _, pid := range pids {
		now, err := proc.System.Stat(pid)
		if err != nil {
			continue
		}
		v := cpuAttrs(now.Nice, now.RealTime)
		d.mu.Lock()
		if p := d.processes[pid]; p != nil && p.info.Start == now.Start && p.layers[attr.FromProcess] != v {
			p.layers[attr.FromProcess] = v
			p.merge()
			d.announce(p)
		}
		d.mu.Unlock()
	}
}

// cpuAttrs returns the CPU scheduling parameters of a process as attributes.
func cpuAttrs(nice int8, realTime uint8) (v attr.Values) {
	if nice != 0 {
		v.Set(attr.Nice, int64(nice))
	}
	if realTime != 0 {
		v.Set(attr.RealTime, int64(realTime))
	}
	return v
}

// runOf returns the nearest run that a process belongs to, or nil. The process may
// outlive its run or get another parent, so it keeps the result. d.mu is held.
func (d *Daemon) runOf(info *proc.Process) (run *treeAttrs) {
	if len(d.runs) == 0 {
		return nil
	}
	proc.Ancestors(info.PID, func(pid int) bool {
		if all := d.runs[pid]; len(all) > 0 && all[len(all)-1].appliesTo(info) {
			run = all[len(all)-1]
		}
		return run != nil
	})
	return run
}

// BeginRun implements server.Node. Processes of the run may be known already: after a
// restart of the daemon the shim can find it before giveway run does.
func (d *Daemon) BeginRun(by server.Caller, r api.Run) (ignored []api.Ignored, end func(), err error) {
	if err := r.Check(attr.ByRun); err != nil {
		return nil, nil, server.BadRequest("%w", err)
	}
	info, err := proc.Look(by.PID)
	if err != nil {
		return nil, nil, server.NotFound("begin a run of process %d: %w", by.PID, err)
	}
	o := order{Kind: orderRun, By: by, Target: info.ID(), Values: r.Values, Run: d.lastID.Add(1)}
	if err := d.apply(o); err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return ignoredBy(d.policyNames(), r.Values), func() {
		_ = d.apply(order{Kind: orderRunEnd, By: by, Target: o.Target, Run: o.Run})
	}, nil
}

// beginRun gives the attributes of a run to the processes that belong to it. d.mu is held.
func (d *Daemon) beginRun(o *order) {
	pid := o.Target.PID
	run := &treeAttrs{root: proc.Process{PID: pid, Start: o.Target.Start, UID: o.By.UID}, values: o.Values, run: o.Run}
	d.runs[pid] = append(d.runs[pid], run) // the last one applies
	for _, p := range d.processes {
		if d.runOf(&p.info) == run {
			p.run, p.restored = run, false
			d.resolve(p)
			d.announce(p)
		}
	}
}

// endRun forgets a run. Its processes keep the attributes. d.mu is held.
func (d *Daemon) endRun(o *order) {
	pid := o.Target.PID
	d.runs[pid] = slices.DeleteFunc(d.runs[pid], func(r *treeAttrs) bool { return r.run == o.Run })
	if len(d.runs[pid]) == 0 {
		delete(d.runs, pid)
	}
}

// change sets attributes of a process for its owner. d.mu is held.
func (d *Daemon) change(p *process, v attr.Values) error {
	switch paused, _ := v.Get(attr.Paused); {
	case (v.Has(attr.Bound) || v.Has(attr.BoundBatch)) && p.gate == nil:
		return server.Conflict("process %d has no shim, so its commands in flight cannot be bounded: start it with 'giveway run'", p.info.PID)
	case paused != 0 && !p.stoppable():
		return server.Conflict("process %d cannot be paused: its queue has a time slice but cannot be stopped", p.info.PID)
	}
	p.owned = true
	p.give(attr.FromSet, v)
	d.announce(p)
	return nil
}

// changeTree sets attributes of a process and its descendants, those that can have them,
// and of descendants to come. The root may be a shell that uses no device.
func (d *Daemon) changeTree(by server.Caller, pid int, v attr.Values) (api.Process, error) {
	info, err := proc.Look(pid)
	d.mu.Lock()
	root := d.processes[pid]
	d.mu.Unlock()
	if err != nil && root == nil {
		return api.Process{}, server.NotFound("there is no process %d", pid)
	}
	if err != nil {
		info = root.info // a simulated process is not in /proc
	}
	if err := d.apply(order{Kind: orderTree, By: by, Target: info.ID(), Values: v}); err != nil {
		return api.Process{}, err
	}
	if root == nil || root.info.Start != info.Start {
		d.mu.Lock()
		root = d.newProcess(info) // to be described, and dropped
		d.mu.Unlock()
	}
	return d.description(root), nil
}

// changeDescendants sets attributes of the processes of a tree, of the tree and of the trees
// in it. It fails if every process refused them. d.mu is held.
func (d *Daemon) changeDescendants(o *order) error {
	tree := treeAttrs{root: proc.Process{PID: o.Target.PID, Start: o.Target.Start, UID: o.By.UID}, values: o.Values}
	var refused error
	changed, root := 0, tree.root.PID
	for pid, p := range d.processes {
		if !descends(pid, root) || !tree.appliesTo(&p.info) || pid == root && p.info.Start != tree.root.Start {
			continue
		}
		if err := d.change(p, tree.values); err != nil {
			refused = err
		} else {
			changed++
		}
	}
	if changed == 0 && refused != nil {
		return refused
	}
	d.forgetTrees()
	if t := d.trees[root]; t == nil || t.root.Start != tree.root.Start {
		d.trees[root] = &treeAttrs{root: tree.root}
	}
	for pid, t := range d.trees { // the whole tree's value replaces that of a part
		if tree.appliesTo(&t.root) && descends(pid, root) {
			t.values = t.values.With(tree.values)
		}
	}
	return nil
}

// descends reports whether a process is another or its descendant.
func descends(pid, from int) (yes bool) {
	proc.Ancestors(pid, func(p int) bool {
		yes = p == from
		return yes
	})
	return yes
}

// treesOf returns the trees with attributes that a process is in, the widest first. d.mu is
// held.
func (d *Daemon) treesOf(p *proc.Process) (trees []*treeAttrs) {
	if len(d.trees) == 0 {
		return nil
	}
	proc.Ancestors(p.PID, func(pid int) bool {
		t := d.trees[pid]
		if t == nil || !t.appliesTo(p) {
			return false
		}
		if now, err := proc.Look(pid); err == nil && now.Start == t.root.Start {
			trees = append(trees, t)
		}
		return false
	})
	slices.Reverse(trees)
	return trees
}

// forgetTrees drops the trees whose root has exited. d.mu is held.
func (d *Daemon) forgetTrees() {
	for pid := range d.trees {
		if unix.Kill(pid, 0) == unix.ESRCH {
			delete(d.trees, pid)
		}
	}
}
