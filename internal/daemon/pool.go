package daemon

import (
	"slices"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/sched"
)

// attrsOf returns the attributes of the program of a run, by the rule for it and by the
// attributes of the run, and what those ask for beyond the limits. The program has not been
// started: its command is what follows -- in that of its 'giveway run'.
func (d *Daemon) attrsOf(run *proc.Process, v attr.Values, conf *config.Config) (program attr.Resolved, reduced attr.Values) {
	info := *run
	if _, command, ok := strings.Cut(run.Command, " -- "); ok {
		info.Command = command
	}
	a := d.adminSettingsOf(&info, conf, *d.containers.Load())
	layers := attr.Layers{attr.FromRun: v, attr.FromRule: a.rule}
	return layers.Within(&a.limits)
}

// poolOf returns whether a program is to be in a pool, and its weight and priority there. Pools
// are for class batch.
func poolOf(program attr.Resolved) (mode attr.Mode, weight, priority int64) {
	mode = attr.Mode(program.Int(attr.Pool))
	if program.Class() != sched.Batch || mode == attr.ModeOff {
		return attr.ModeOff, 0, 0
	}
	return mode, program.Int(attr.Weight), program.Int(attr.Priority)
}

// membership is the place of a process in MPS servers: in a pool, or in a server that
// giveway does not own. Daemon.mu guards it.
type membership struct {
	queues  []*queue      // of the servers, one for each device
	gate    hal.Gate      // the process's gate, which only a pause closes; nil: none
	server  int           // pid of the last server
	label   string        // of the pool; empty: of none
	index   int           // of the device
	lost    bool          // the server has exited before the process
	served  time.Duration // device time, as estimated
	shown   time.Duration // the device time that was shown last
	rate    float64       // device time per time, between the last two estimates
	noted   time.Time     // when it was last estimated
	done    uint64        // commands that were completed then
	busyAt  time.Time     // when the process was last known to have work, or to have joined
	warned  bool          // the log says that the process is outside the pool
	looked  bool          // started is known; only asked with pool=auto
	started bool          // 'giveway run' started the process in a pool
}

// known reports whether the process is a member, or was one when its server exited.
func (m *membership) known() bool { return len(m.queues) > 0 || m.lost }

// describe returns what the API shows; nil: nothing.
func (m *membership) describe(now time.Time) *api.Member {
	if !m.known() {
		return nil
	}
	return &api.Member{Server: m.server, Pool: m.label, Index: m.index, Served: m.servedAt(now), Lost: m.lost}
}

// servedAt returns the device time, with what the member has had since the last estimate if it
// goes on as before: readers take shares from two values that are less than an estimate apart.
func (m *membership) servedAt(now time.Time) time.Duration {
	since := min(now.Sub(m.noted), sweepInterval)
	m.shown = max(m.shown, m.served+time.Duration(m.rate*float64(since)))
	return m.shown
}

// setMembers makes processes the members of the queue of an MPS server. A member's work
// runs in that queue, so its gate is no queue of its own. d.mu is held.
func (d *Daemon) setMembers(q *queue, members []proc.Process) {
	for _, p := range d.processes {
		is := slices.ContainsFunc(members, func(m proc.Process) bool { return m.ID() == p.info.ID() })
		was := slices.Contains(p.pool.queues, q)
		switch {
		case is && !was:
			p.pool.queues = append(p.pool.queues, q)
			p.pool.server, p.pool.label, p.pool.index, p.pool.lost = q.process.info.PID, q.detail.Pool, q.device.info.Index, false
			p.pool.busyAt = time.Now()
			d.updateQueues(p)
		case was && !is:
			p.leave(q)
			d.updateQueues(p)
			d.forget(p)
		}
	}
	d.noteEmpty(q, len(members) == 0)
	d.updatePoolWeight(q)
}

// noteEmpty tells the scheduler that a pool whose last member has gone is idle until there is
// another: it must not have turns while it is kept for the next member. Before, and while it
// has members, its work is not known, and it counts as ready. d.mu is held.
func (d *Daemon) noteEmpty(q *queue, empty bool) {
	q.hadMembers = q.hadMembers || !empty
	c := &q.counters
	idle := c.Known && c.Submitted == c.Completed
	if q.detail.Pool == "" || !q.hadMembers || empty == idle {
		return
	}
	if empty {
		c.Known, c.Completed, c.Launched = true, c.Submitted, c.Submitted
	} else {
		c.Submitted++
		c.Launched++
	}
	d.events.post(sched.Event{Kind: sched.Progressed, Queue: q.id, Counters: *c})
}

// leave ends the membership of a process in a queue. Daemon.mu is held.
func (p *process) leave(q *queue) {
	p.pool.queues = slices.DeleteFunc(p.pool.queues, func(o *queue) bool { return o == q })
	if len(p.pool.queues) > 0 {
		return
	}
	p.pool.rate = 0
	if p.pool.gate != nil {
		_ = p.pool.gate.Close() // opens it; it is only memory
		p.pool.gate = nil
	}
}

// loseServer ends the membership in a queue that was removed. If the server has exited, MPS
// ends the work of its clients. d.mu is held.
func (d *Daemon) loseServer(q *queue, exited bool) {
	var lost []int
	for _, p := range d.processes {
		if !slices.Contains(p.pool.queues, q) {
			continue
		}
		p.leave(q)
		if len(p.pool.queues) == 0 && exited && !p.exited {
			p.pool.lost = true
			lost = append(lost, p.info.PID)
		}
		d.updateQueues(p)
	}
	if len(lost) > 0 {
		slices.Sort(lost)
		log, server, label := d.cfg.Log, q.process.info.PID, q.detail.Pool
		go log.Warn("MPS server has exited; its clients can use the device no more", "server", server, "pool", label, "clients", lost)
	}
}

// updatePoolWeight gives the queue of a pool the sum of its busy members' weights: each has the share
// that it would have outside. If none is busy, all count. The sum stays within the limit of
// the user: otherwise one program could have the shares of others that only pretend to work.
// d.mu is held.
func (d *Daemon) updatePoolWeight(q *queue) {
	if q.detail.Pool == "" || q.removed {
		return
	}
	var all, busy, largest int64
	for _, m := range q.detail.Members {
		p := d.processByID(m.ID())
		if p == nil {
			continue
		}
		weight := p.attrs.Int(attr.Weight)
		all, largest = all+weight, max(largest, weight)
		if p.pool.busy() && !p.attr.Paused {
			busy += weight
		}
	}
	sum := busy
	if busy == 0 {
		sum = all
	}
	if ceiling, limited := q.process.limits.Ceiling.Get(attr.Weight); limited {
		sum = min(sum, max(ceiling, largest)) // a rule may give a member more than the limit
	}
	sum = min(max(sum, 1), attr.Weight.Row().Max)
	was := q.process.attrs
	d.setBackendAttr(q.process, sched.Attr{Class: sched.Batch, Weight: uint32(sum)})
	if q.process.attrs != was {
		d.announce(q.process)
	}
}

// busyTime is how long a member that has no work counts as busy.
const busyTime = 5 * time.Second

// busy reports whether the member has had work lately, as far as it is known.
func (m *membership) busy() bool { return time.Since(m.busyAt) < busyTime }

// note takes in the counters of the member, and reports whether it has completed a command
// since the last call. Without a shim that is not known, and it counts as if it had.
func (m *membership) note(c sched.Counters, now time.Time) (worked bool) {
	m.rate, m.noted = 0, now
	worked = !c.Known || c.Completed != m.done
	if m.done = c.Completed; worked || c.Submitted != c.Completed {
		m.busyAt = now
	}
	return worked
}

// pauseMember closes the gate of a member that is paused, and opens it otherwise. No queue
// of the scheduler stands for the gate of a member. d.mu is held.
func (d *Daemon) pauseMember(p *process) {
	g, m := p.gate, &p.pool
	if len(m.queues) == 0 || g == nil || g.device == nil || p.exited {
		return
	}
	if m.gate == nil {
		attached, err := g.offer.Attach(nil)
		gated, ok := attached.(hal.Gate)
		if err != nil || !ok {
			return
		}
		m.gate = gated
	}
	if p.attr.Paused {
		_ = m.gate.Hold() // fails if the page is closed: then another gate comes, or none
	} else {
		_ = m.gate.Release()
	}
}

// refusalInPool says why a client of an MPS server cannot have attributes: those that the
// scheduler reads are the server's. Daemon.mu is held.
func (p *process) refusalInPool(v attr.Values) error {
	if len(p.pool.queues) == 0 {
		return nil
	}
	for _, id := range v.IDs() {
		value, _ := v.Get(id)
		switch {
		case id == attr.Paused && value != 0 && p.gate == nil:
			return server.Conflict("process %d cannot be paused: it is a client of the MPS server, process %d, and has no shim; start it with 'giveway run'", p.info.PID, p.pool.server)
		case id == attr.Paused || id == attr.Bound || id == attr.BoundBatch:
		case id == attr.Weight && p.pool.label != "":
		case id == attr.Class && p.pool.label != "" && sched.Class(value) == sched.Batch:
		default:
			return server.Conflict("%v of process %d cannot be set: its work runs in the queue of the MPS server, process %d, which is one for all clients; set that process, or start this one outside MPS", id, p.info.PID, p.pool.server)
		}
	}
	return nil
}

// outsidePool reports whether a process that was to be in a pool has hardware queues of its
// own: it is no client of the pool's server, for example because it changed
// CUDA_MPS_PIPE_DIRECTORY. MPS itself says nothing in this case. With pool=auto it counts only
// if 'giveway run' started it in a pool. Daemon.mu is held.
func (p *process) outsidePool() bool {
	mode := attr.Mode(p.attrs.Int(attr.Pool))
	return (mode == attr.ModeOn || mode == attr.ModeAuto && p.pool.started) && p.outsideServers()
}

// outsideServers reports whether a batch process has hardware queues of its own and is no client
// of an MPS server. Daemon.mu is held.
func (p *process) outsideServers() bool {
	own := func(q *queue) bool { return q.hardware != nil && q.detail.SharedBy == "" }
	return p.attr.Class == sched.Batch && !p.pool.known() && slices.ContainsFunc(p.queues, own)
}

// maxEnviron is how much of the environment of a process is read. The variables of a pool are at
// its beginning.
const maxEnviron = 128 << 10

// readStarted reads from the environment of processes with pool=auto whether 'giveway run' started
// them in a pool. It does so once for each, when the process has a hardware queue of its own.
func (d *Daemon) readStarted() {
	files, ok := d.procs.(interface {
		ReadMemory(of *proc.Process, pid int, name string, limit int64) (string, error)
	})
	if !ok || d.cfg.StartedInPool == nil {
		return
	}
	var unknown []proc.Process
	d.mu.Lock()
	for _, p := range d.processes {
		if !p.pool.looked && attr.Mode(p.attrs.Int(attr.Pool)) == attr.ModeAuto && p.outsideServers() {
			unknown = append(unknown, p.info)
		}
	}
	d.mu.Unlock()
	for _, info := range unknown {
		env, err := files.ReadMemory(&info, info.PID, "environ", maxEnviron)
		if err != nil {
			continue // it exits, or is tried again
		}
		started := d.cfg.StartedInPool(strings.Split(env, "\x00"))
		if now, err := d.procs.Stat(info.PID); err != nil || now.Start != info.Start {
			continue // this was the environment of a later process
		}
		d.mu.Lock()
		if p := d.processByID(info.ID()); p != nil {
			p.pool.looked, p.pool.started = true, started
		}
		d.mu.Unlock()
	}
}

// poolIgnored lists what a membership, or a missing one, makes of the attributes.
func (v *view) poolIgnored() (out []api.Ignored) {
	if v.outside {
		out = append(out, api.Ignored{
			Name: attr.Pool.String(), Mark: "outside the pool",
			Reason: "the process is no client of the pool's MPS server: 'giveway run' could not start it there and said why, or the program has another CUDA_MPS_PIPE_DIRECTORY",
		})
	}
	if v.member == nil {
		return out
	}
	if v.member.Lost {
		out = append(out, api.Ignored{Name: attr.Class.String(), Mark: "server exited", Reason: "the MPS server has exited, and CUDA calls of its clients fail: start the program again"})
	} else if v.attr.Class != sched.Batch && v.member.Pool != "" {
		out = append(out, api.Ignored{Name: attr.Class.String(), Mark: "ignored in the pool", Reason: "the process is in a pool, which is of class batch as a whole"})
	}
	return out
}

// followPools estimates the device time of members and warns of processes outside their
// pool, and follows which members are busy. The time that a pool had since the last
// estimate is divided among the members that completed a command since then, by equal parts;
// among all members if none has a shim or none completed anything.
func (d *Daemon) followPools() {
	d.readStarted()
	var pools []*queue
	var outside []int
	d.mu.Lock()
	for _, p := range d.processes {
		for _, q := range p.queues {
			if len(q.detail.Members) > 0 {
				pools = append(pools, q)
			}
		}
		if !p.pool.warned && p.outsidePool() {
			p.pool.warned = true
			outside = append(outside, p.info.PID)
		}
	}
	d.mu.Unlock()
	for _, pid := range outside {
		d.cfg.Log.Warn("process was to run in a pool and runs outside", "pid", pid)
	}
	if len(pools) == 0 {
		return // do not wake the loop
	}
	states := d.queueStates.get()
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	worked := d.noteMembers(pools, now)
	for _, q := range pools {
		if r, ok := states[q.id]; ok {
			d.divide(q, r.Served, now, worked)
		}
		d.updatePoolWeight(q)
	}
}

// noteMembers takes in the counters of the members of some queues. It returns the members
// that have completed a command since the last call. A member with two GPUs is in two
// queues; its commands are counted once. d.mu is held.
func (d *Daemon) noteMembers(pools []*queue, now time.Time) (worked map[*process]bool) {
	worked = make(map[*process]bool)
	for _, q := range pools {
		for _, m := range q.detail.Members {
			p := d.processByID(m.ID())
			if _, noted := worked[p]; p != nil && !noted {
				worked[p] = p.pool.note(p.counters, now)
			}
		}
	}
	return worked
}

// divide divides new device time of a queue among its members that worked, or among all if
// none did. d.mu is held.
func (d *Daemon) divide(q *queue, served time.Duration, now time.Time, worked map[*process]bool) {
	delta, elapsed := served-q.servedAtEstimate, now.Sub(q.estimatedAt) // the first time: very long
	q.servedAtEstimate, q.estimatedAt = served, now
	var all, active []*process
	for _, m := range q.detail.Members {
		p := d.processByID(m.ID())
		if p == nil {
			continue
		}
		if all = append(all, p); worked[p] {
			active = append(active, p)
		}
	}
	if len(active) == 0 {
		active = all
	}
	for _, p := range active {
		part := delta / time.Duration(len(active))
		p.pool.served += part
		p.pool.rate += float64(part) / float64(elapsed)
	}
}
