package daemon

import (
	"slices"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
)

// treeAttrs are attributes that giveway run or giveway set --tree gave to a process and
// its descendants. They apply to those of the caller; those of root apply to all.
//
// A process is a descendant if the root is in its lineage, which is read once, when
// the process is found. It may outlive its ancestors or get another parent.
type treeAttrs struct {
	lineage []proc.ID // of the root, which is first
	by      server.Caller
	values  attr.Values
	run     uint64 // the number of the run; zero for a tree
	// takenOver means that the run is from an earlier daemon. It ends when its root begins it
	// again, which giveway run does, or exits.
	takenOver bool
}

func (g *treeAttrs) root() proc.ID { return g.lineage[0] }

// appliesTo reports whether attributes of a tree apply to one of its processes.
func (d *Daemon) appliesTo(g *treeAttrs, p *proc.Process) bool {
	if pod := d.podOf(p.Containers); pod != "" || g.by.Pod != "" {
		return g.by.All || g.by.Pod == pod
	}
	return g.by.All || g.by.UID == p.UID
}

// runOf returns the nearest run that a process belongs to, or nil. d.mu is held.
func (d *Daemon) runOf(info *proc.Process, lineage []proc.ID) *treeAttrs {
	for _, id := range lineage {
		if all := d.runs[id]; len(all) > 0 && d.appliesTo(all[len(all)-1], info) {
			return all[len(all)-1]
		}
	}
	return nil
}

// treesOf returns the trees with attributes that a process is in, the widest first. d.mu
// is held.
func (d *Daemon) treesOf(info *proc.Process, lineage []proc.ID) (trees []*treeAttrs) {
	for _, id := range slices.Backward(lineage) {
		if t := d.trees[id]; t != nil && d.appliesTo(t, info) {
			trees = append(trees, t)
		}
	}
	return trees
}

// BeginRun implements server.Node. Processes of the run may be known already: after a
// restart of the daemon the shim can find it before giveway run does.
func (d *Daemon) BeginRun(by server.Caller, r api.Run) (started api.RunStarted, end func(), err error) {
	if err := r.Check(attr.ByRun); err != nil {
		return started, nil, server.BadRequest("%w", err)
	}
	leave, err := d.callers.enter(by)
	if err != nil {
		return started, nil, err
	}
	defer leave()
	// A connection can outlive the process that made it, and the pid be reused.
	info, err := d.procs.Process(by.PID)
	if err != nil || !by.All && (info.UID != by.UID || d.podOf(info.Containers) != by.Pod) {
		return started, nil, server.NotFound("begin a run: process %d, the caller, has exited or has more rights than you", by.PID)
	}
	o := order{Kind: orderRun, By: by, Target: info.ID(), Values: r.Values, Run: d.lastID.Add(1)}
	if started.Warning, err = d.applyAndWarn(o); err != nil {
		return started, nil, err
	}
	d.mu.Lock()
	policies, conf := d.policyNames(), d.conf
	d.mu.Unlock()
	if by.All {
		o.Values = o.Values.Unlimited()
	}
	program, reduced := d.attrsOf(&info, o.Values, conf)
	mode, weight, priority := poolOf(program)
	s := attrContext{policies: policies, class: program.Class(), shim: true, pool: mode != attr.ModeOff} // giveway run says itself what --no-shim means
	started.Ignored = append(s.withoutEffect(r.Values), limited(program, reduced, false)...)
	if mode != attr.ModeOff {
		started.Pool, started.Weight, started.Priority = mode.String(), weight, priority
	}
	return started, func() {
		_ = d.applyOnly(order{Kind: orderRunEnd, By: by, Target: o.Target, Run: o.Run})
	}, nil
}

// maxTrees is how many trees of one user may have attributes, and how many runs it may
// have.
const maxTrees = 1024

// addTree adds a run or a tree to those that have attributes. d.mu is held.
func (d *Daemon) addTree(o *order, lineage []proc.ID) (*treeAttrs, error) {
	tree := &treeAttrs{lineage: lineage, by: o.By, values: attr.Values{}.With(o.Values), run: o.Run}
	mine := 0
	count := func(t *treeAttrs) {
		if t.by.Account == o.By.Account && t.by.Pod == o.By.Pod {
			mine++
		}
	}
	if o.Kind == orderRun {
		for _, all := range d.runs {
			for _, t := range all {
				count(t)
			}
		}
	} else {
		for _, t := range d.trees {
			count(t)
		}
	}
	switch {
	case mine >= maxTrees && !o.By.All:
		return nil, server.Conflict("%d trees of your processes have attributes already; end some of these processes", mine)
	case o.Kind == orderRun:
		d.runs[tree.root()] = slices.DeleteFunc(d.runs[tree.root()], func(r *treeAttrs) bool { return r.takenOver })
		d.runs[tree.root()] = append(d.runs[tree.root()], tree) // the last one applies
	default:
		if old := d.trees[tree.root()]; old != nil {
			tree.values = old.values.With(o.Values)
		}
		if d.trees[tree.root()] = tree; tree.values.Empty() { // all are cleared
			delete(d.trees, tree.root())
		}
		for _, part := range d.trees { // the whole tree's value replaces that of a part
			if part != tree && slices.Contains(part.lineage, tree.root()) && (o.By.All || part.by.UID == o.By.UID && part.by.Pod == o.By.Pod) {
				part.values = part.values.With(o.Values)
			}
		}
	}
	return tree, nil
}

// beginRun gives the attributes of a run to the processes that belong to it.
func (d *Daemon) beginRun(o *order) error {
	lineage := proc.Lineage(o.Target, d.procs.Stat)
	d.mu.Lock()
	run, err := d.addTree(o, lineage)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	d.eachProcess(d.members(run), func(p *process) {
		if d.runOf(&p.info, p.lineage) == run {
			p.run = run // a run begins again after a restart of the daemon, which does not end a restore
			d.announceChange(p)
			d.noteReduced(p)
		}
	})
	return nil
}

// endRun forgets a run. Its processes keep the attributes. d.mu is held.
func (d *Daemon) endRun(o *order) {
	d.runs[o.Target] = slices.DeleteFunc(d.runs[o.Target], func(r *treeAttrs) bool { return r.run == o.Run })
	if len(d.runs[o.Target]) == 0 {
		delete(d.runs, o.Target)
	}
}

// changeTree sets attributes of a process and its descendants. The root may be a shell
// that uses no device.
func (d *Daemon) changeTree(by server.Caller, pid int, v attr.Values) (api.Process, error) {
	info, err := d.identify(by, pid)
	if err != nil {
		return api.Process{}, err
	}
	warning, err := d.applyAndWarn(order{Kind: orderTree, By: by, Target: info.ID(), Values: v})
	if err != nil {
		return api.Process{}, err
	}
	d.mu.Lock()
	p, conf := d.processByID(info.ID()), d.conf
	d.mu.Unlock()
	if p == nil { // only to be described: it is not added
		from := d.readOrigin(info, conf, *d.containers.Load())
		d.mu.Lock()
		p = d.newProcess(from)
		d.mu.Unlock()
	}
	answer := d.description(p)
	answer.Warning = warning
	return answer, nil
}

// changeDescendants sets attributes of the processes of a tree that can have them, and of
// descendants to come. It fails if every process refuses them.
func (d *Daemon) changeDescendants(o *order) error {
	tree := &treeAttrs{lineage: proc.Lineage(o.Target, d.procs.Stat), by: o.By}
	accepted, refused := 0, error(nil)
	d.eachProcess(d.members(tree), func(p *process) {
		if err := p.refusal(o.Values); err != nil {
			refused = err
		} else {
			accepted++
		}
	})
	if accepted == 0 && refused != nil {
		return refused
	}
	d.mu.Lock()
	tree, err := d.addTree(o, tree.lineage)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	// Processes that are found from now on get the attributes of the tree.
	members := d.members(tree)
	gone := d.gone(members)
	d.eachProcess(members, func(p *process) {
		if !gone[p] && p.refusal(o.Values) == nil {
			d.give(p, o.Values)
		}
	})
	return nil
}

// members returns the known processes to which a tree applies.
func (d *Daemon) members(tree *treeAttrs) (members []*process) {
	root := tree.root()
	d.eachProcess(d.allProcesses(), func(p *process) {
		if d.appliesTo(tree, &p.info) && slices.Contains(p.lineage, root) {
			members = append(members, p)
		}
	})
	return members
}

// gone returns those processes that have exited, or whose user has changed, though a
// backend has not noticed yet. A simulated process is not in /proc: its backend is trusted.
func (d *Daemon) gone(all []*process) map[*process]bool {
	gone := make(map[*process]bool)
	for _, p := range all {
		now, err := d.procs.Process(p.info.PID)
		if err == nil && (now.ID() != p.info.ID() || now.UID != p.info.UID) || err != nil && !p.simulated() {
			gone[p] = true
		}
	}
	return gone
}
