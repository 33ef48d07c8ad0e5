package daemon

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// origin is what a new process is made from. It is read without d.mu, because
// that reads files and compares patterns.
type origin struct {
	info    proc.Process
	account account // of its user
	owner   orderOwner
	lineage []proc.ID // the process and its ancestors, nearest first
	adminSettings
}

// adminSettings is what the administrator has set for a process: by the configuration, and
// by the registered container that it is in.
type adminSettings struct {
	rule      attr.Values
	limits    attr.Limits
	container *api.Container // nil: none
}

// readOrigin reads what a new process needs, with the rules of a configuration.
func (d *Daemon) readOrigin(info proc.Process, conf *config.Config, all containers) origin {
	return origin{
		info: info, account: d.users.get(info.UID), owner: d.processOwner(&info), lineage: proc.Lineage(info.ID(), d.procs.Stat), adminSettings: d.adminSettingsOf(&info, conf, all),
	}
}

// adminSettingsOf returns what the administrator has set for a process. A process that
// belongs to root has the settings of its starter: every process can make itself root's, by
// PR_SET_DUMPABLE. Where both a container and the rule that matches give an attribute, the
// one that asks for less counts.
func (d *Daemon) adminSettingsOf(info *proc.Process, conf *config.Config, all containers) adminSettings {
	of := config.Subject{Process: *info, Container: all.of(info.Containers)}
	of.UID = cmp.Or(info.UID, info.Starter)
	of.User = d.users.get(of.UID).name
	rule := conf.Match(&of)
	out := adminSettings{rule: rule.Attrs, limits: attr.Limits{HintsRaise: rule.HintsRaise}, container: of.Container}
	switch {
	case of.Container != nil:
		out.rule = rule.Attrs.AtMost(of.Container.Values)
		out.limits.Ceiling = ceilingOf(out.rule)
	case d.podOf(info.Containers) != "": // a container that the agent has not registered yet
		out.limits.Ceiling = ceilingOf(out.rule)
	case of.UID != 0:
		out.limits.Ceiling = d.limitOf(conf, d.account(of.UID), info).Ceiling
	}
	return out
}

// lockProcess returns a process, added if it is not known, with d.mu held. A pid with another start
// time is another process. One that a later process with its pid has replaced is not added.
func (d *Daemon) lockProcess(info proc.Process) *process {
	d.mu.Lock()
	for {
		if p := d.processByID(info.ID()); p != nil {
			return p
		}
		conf, all := d.conf, d.containers.Load()
		d.mu.Unlock()
		from := d.readOrigin(info, conf, *all)
		d.mu.Lock()
		if d.conf == conf && d.containers.Load() == all && d.processByID(info.ID()) == nil {
			p := d.newProcess(from)
			if other := d.processes[info.PID]; other == nil || other.info.Start <= info.Start {
				d.processes[info.PID] = p
			}
			return p
		}
	}
}

// processByID returns a known process, or nil. d.mu is held.
func (d *Daemon) processByID(id proc.ID) *process {
	if p := d.processes[id.PID]; p != nil && p.info.ID() == id {
		return p
	}
	return nil
}

// newProcess makes a process, with the attributes given so far to it, its
// run and its tree. d.mu is held.
func (d *Daemon) newProcess(o origin) *process {
	p := &process{info: o.info, user: proc.Printable(o.account.name), owner: o.owner, lineage: o.lineage, limits: o.limits, container: o.container, id: sched.ProcessID(d.lastID.Add(1))}
	p.layers[attr.FromProcess], p.layers[attr.FromRule] = cpuAttrs(o.info.Nice, o.info.RealTime), o.rule
	for _, t := range d.treesOf(&p.info, p.lineage) {
		p.hasOrders = true
		p.layers[attr.FromSet] = p.layers[attr.FromSet].With(t.values)
	}
	p.run = d.runOf(&p.info, p.lineage)
	p.merge()
	d.noteReduced(p)
	d.publish(p)
	return p
}

// lockBatch is for how many processes d.mu is held at a time.
const lockBatch = 64

// allProcesses returns all processes that the daemon knows.
func (d *Daemon) allProcesses() []*process {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.processes))
}

// eachProcess calls f with d.mu held for each of some processes that are still known. It lets
// others have d.mu after every few processes. A process that is found meanwhile is left
// out, so what new processes are made from must be changed first.
func (d *Daemon) eachProcess(some []*process, f func(*process)) {
	for part := range slices.Chunk(some, lockBatch) {
		d.mu.Lock()
		for _, p := range part {
			if d.processes[p.info.PID] == p {
				f(p)
			}
		}
		d.mu.Unlock()
	}
}

// inUse reports whether a process has a queue or a gate. d.mu is held.
func (p *process) inUse() bool { return len(p.queues) > 0 || p.gate != nil }

// remembered reports whether a process is kept until it exits, although it is not in use: it may
// open another queue, and would not get the same attributes again. Its owner gave it some, or a
// run did, which may have ended, or it is in a pool. d.mu is held.
func (p *process) remembered() bool { return p.hasOrders || p.run != nil || p.pool.known() }

// forget drops a process that is not in use, unless it is remembered and has not exited. d.mu is
// held.
func (d *Daemon) forget(p *process) {
	if !p.inUse() && (p.exited || !p.remembered()) && d.processes[p.info.PID] == p {
		delete(d.processes, p.info.PID)
	}
	select {
	case d.exits <- struct{}{}:
	default: // a sweep is due already
	}
}

// hasExited reports whether a process is known to have exited. If that cannot be read, for
// example because the daemon has no descriptor left, it has not: no order is dropped then.
func (d *Daemon) hasExited(id proc.ID) bool {
	s, err := d.procs.Stat(id.PID)
	return err == nil && s.Start != id.Start || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// sweepInterval is how often processes that have exited are looked for. A process that
// leaves is looked for sooner, but a user whose processes come and go cannot cause more than
// one sweep in sweepPause, nor sweeps for more than a sweepShare-th of the time: a user may have
// some thousand processes, trees and runs that each sweep looks at.
const (
	sweepInterval = time.Second
	sweepPause    = 20 * time.Millisecond
	sweepShare    = 10
)

// followExits drops what is known of processes that have exited, until ctx is done.
func (d *Daemon) followExits(ctx context.Context) {
	every := time.NewTicker(sweepInterval)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			d.keepAll() // processes may have joined a run, or exited
			d.followPools()
		case <-d.exits:
		case h := <-d.reduced:
			d.logReduced(h)
			continue
		}
		began := time.Now()
		d.sweep()
		select {
		case <-time.After(min(max(sweepPause, (sweepShare-1)*time.Since(began)), sweepInterval)):
		case <-ctx.Done():
		}
	}
}

// offerTime is how long a process that a backend announced is kept without a queue.
const offerTime = 10 * time.Second

// maxRemembered is how many processes of one owner that are not in use are kept.
const maxRemembered = 1024

// sweep drops processes that have exited, with their trees and runs, processes that were
// announced and have got no queue, and the oldest of more than maxRemembered.
func (d *Daemon) sweep() {
	known := make(map[proc.ID]bool)
	d.mu.Lock()
	d.dropRemembered()
	for pid, p := range d.processes {
		switch {
		case p.inUse():
		case !p.foundAt.IsZero() && !p.remembered() && time.Since(p.foundAt) > offerTime:
			delete(d.processes, pid)
		default:
			known[p.info.ID()] = true
		}
	}
	for id := range d.trees {
		known[id] = true
	}
	for id := range d.runs {
		known[id] = true
	}
	d.mu.Unlock()
	maps.DeleteFunc(known, func(id proc.ID, _ bool) bool { return !d.hasExited(id) })
	if len(known) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range known {
		if p := d.processByID(id); p != nil && !p.inUse() {
			delete(d.processes, id.PID)
		}
		delete(d.trees, id)
		delete(d.runs, id)
	}
}

// dropRemembered drops the oldest processes that are not in use of each owner that has more than
// maxRemembered of them. The backend says which are in a pool. d.mu is held.
func (d *Daemon) dropRemembered() {
	of := make(map[orderOwner][]*process)
	for _, p := range d.processes {
		if !p.inUse() && !p.pool.known() {
			of[p.owner] = append(of[p.owner], p)
		}
	}
	for _, all := range of {
		if len(all) <= maxRemembered {
			continue
		}
		slices.SortFunc(all, func(a, b *process) int { return cmp.Compare(a.id, b.id) })
		for _, p := range all[:len(all)-maxRemembered] {
			delete(d.processes, p.info.PID)
		}
	}
}
