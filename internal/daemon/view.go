package daemon

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
)

// view is a copy of what may change in a process. Descriptions are made from
// views, without d.mu.
type view struct {
	*process // only what never changes is read
	attrs    attr.Resolved
	attr     sched.Attr
	reduced  attr.Values
	doubted  bool // its hints are: see claim.go
	requests requestsView
	invalid  uint64
	gate     *processGate
	queues   []queueView
	member   *api.Member
	inside   *api.Container // the registered container that it is in; nil: none
	outside  bool           // it was to be in a pool
	policies []string       // in force on its devices
}

type queueView struct {
	id     sched.QueueID
	device *device
	detail hal.Detail
}

type requestsView struct {
	count  uint64
	open   uint32
	marked bool // only marked ones count
	last   [256]finished
}

// view copies a process. d.mu is held.
func (d *Daemon) view(p *process) view {
	r := &p.requests
	v := view{
		process: p, attrs: p.attrs, attr: p.attr, reduced: p.reduced, doubted: p.claim.doubted, invalid: p.invalid, gate: p.gate, inside: p.container, policies: d.policyNames(p.queues...),
		requests: requestsView{r.count, uint32(len(r.marked.open)) + r.reported, r.marked.inForce, r.last},
	}
	for _, q := range p.queues {
		v.queues = append(v.queues, queueView{q.id, q.device, q.detail})
	}
	v.member, v.outside = p.pool.describe(time.Now()), p.outsidePool()
	return v
}

// Processes implements server.Node.
func (d *Daemon) Processes() []api.Process { return slices.Clone(d.snapshot.get()) }

// Process implements server.Node.
func (d *Daemon) Process(pid int) (one api.Process, ok bool) {
	d.mu.Lock()
	p := d.processes[pid]
	if p == nil || !p.isListed() {
		d.mu.Unlock()
		return api.Process{}, false
	}
	v := d.view(p)
	d.mu.Unlock()
	v.queues = nil // their states are in the loop
	return d.describe(&v, nil), true
}

// isListed reports whether Processes lists a process. d.mu is held.
func (p *process) isListed() bool { return len(p.queues) > 0 || p.pool.known() }

// describeAll describes the processes that have queues, in order of pid.
func (d *Daemon) describeAll() []api.Process {
	states := d.queueStates.get()
	var views []view
	d.eachProcess(d.allProcesses(), func(p *process) {
		if p.isListed() {
			views = append(views, d.view(p))
		}
	})
	pids := make([]int, len(views))
	for i := range views {
		pids[i] = views[i].info.PID
	}
	memory := d.memory.get(func() memoryUse { return d.readMemory(pids) })
	all := make([]api.Process, len(views))
	for i := range views {
		all[i] = d.describe(&views[i], states)
		all[i].Memory = memory[pids[i]]
	}
	slices.SortFunc(all, func(a, b api.Process) int { return cmp.Compare(a.PID, b.PID) })
	return all
}

// description is a process as it is when all that was posted has been taken in.
func (d *Daemon) description(p *process) api.Process {
	states := d.queueStates.get()
	d.mu.Lock()
	v := d.view(p)
	d.mu.Unlock()
	return d.describe(&v, states)
}

// readQueueStates returns the scheduler's state of every queue.
func (d *Daemon) readQueueStates() map[sched.QueueID]sched.Queue {
	var queues []sched.Queue
	d.events.inLoop(func() { queues = d.sched.Queues(nil) })
	states := make(map[sched.QueueID]sched.Queue, len(queues))
	for _, q := range queues {
		states[q.ID] = q
	}
	return states
}

// describe returns a process as the API shows it.
func (d *Daemon) describe(v *view, states map[sched.QueueID]sched.Queue) api.Process {
	shim := v.gate.stats()
	out := api.Process{
		PID: v.info.PID, Command: v.info.Command, UID: v.info.UID, User: v.user,
		Container: v.info.Container, Pod: v.info.Pod, Attrs: v.attrs, Ignored: append(v.ignored(shim), limited(v.attrs, v.reduced, v.doubted)...),
		Queues: []api.Queue{}, Requests: v.requests.describe(d.Now()), Shim: v.describeShim(shim),
		Member: v.member,
	}
	if c := v.inside; c != nil { // what the agent said, and not what the cgroup is named
		out.Container, out.Pod, out.ContainerNames = c.ID, c.PodUID, c.ContainerNames
	}
	out.Owner = d.podOf(v.info.Containers)
	out.Ignored = append(out.Ignored, v.poolIgnored()...)
	// The scheduler has the time at which a request is expected, users see the time until then.
	out.Attrs.Replace(attr.Expect, int64(max(v.attr.Expect.Sub(d.Now()), 0)))
	now := d.Now()
	for _, q := range v.queues {
		r := states[q.id]
		out.Queues = append(out.Queues, api.Queue{
			ID: uint64(q.id), Device: string(q.device.info.Device.ID), Index: q.device.info.Index, State: r.State.String(),
			Can: strings.FieldsFunc(r.Can.String(), func(c rune) bool { return c == ',' }), Slice: r.Slice, VendorSlice: q.detail.FoundSlice,
			Served: r.Served, Measured: r.Measured, OnFloor: r.OnFloor, SideBySide: r.SideBySide, Shared: q.detail.SharedBy, Pool: q.detail.Pool,
			KFDQueues: q.detail.NativeQueues, Way: q.detail.StopMethod, ReservedSlots: q.detail.ReservedSlots,
			MayRun: r.Decided.Run, Reason: r.Decided.Reason.String(), DecidedFor: max(now.Sub(r.Decided.Since), 0), Ready: r.Ready(),
			WaitsBehind: uint64(r.WaitsBehind),
		})
	}
	slices.SortFunc(out.Queues, func(a, b api.Queue) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// requestWindow is how long a request counts in the quantiles: those of a process without
// requests must not stay for ever.
const requestWindow = time.Minute

// describe returns what the API reports of requests; nil: nothing is known.
func (r *requestsView) describe(now sched.Time) *api.Requests {
	out := &api.Requests{Count: r.count, Open: r.open, Marked: r.marked}
	if *out == (api.Requests{}) {
		return nil
	}
	var recent []time.Duration
	for _, f := range r.last[:min(r.count, uint64(len(r.last)))] {
		if now.Sub(f.at) <= requestWindow {
			recent = append(recent, f.took)
		}
	}
	if len(recent) > 0 {
		slices.Sort(recent)
		out.P50, out.P99 = stats.Quantile(recent, 0.50), stats.Quantile(recent, 0.99)
	}
	return out
}

// describeShim returns what the API reports of the gate; nil: there is none.
func (v *view) describeShim(s *hal.GateStats) *api.Shim {
	if s == nil {
		return nil
	}
	return &api.Shim{
		Runtime: s.Runtime, Launched: s.Launched, Completed: s.Completed, Holds: s.Holds, HeldFor: s.HeldFor, Overruns: s.Overruns,
		Parked: s.Parked, Hits: s.Hits, ParkedFor: s.ParkedFor, Saved: s.Saved,
		LateRequests: s.LateRequests, LateEarly: s.LateEarly, LateFor: s.LateFor, LateCompared: describePairs(s),
		ClassHolds: s.ClassHolds, ClassHeldFor: s.ClassHeldFor, ClassLetGo: s.ClassLetGo, Ignored: v.invalid + s.Invalid,
	}
}

// describePairs returns what the pairs of requests show of late entry; nil: there are none.
func describePairs(s *hal.GateStats) *api.LateCompared {
	if len(s.LateRatios) == 0 {
		return nil
	}
	m := stats.MedianOf(s.LateRatios)
	out := &api.LateCompared{Pairs: m.Count, Ratio: m.Median, Low: m.Low, High: m.High, GivenUp: s.LateGivenUp}
	for _, b := range s.LateRatios {
		out.Counts = append(out.Counts, api.RatioCount{From: b.From, To: b.To, Pairs: b.Count})
	}
	return out
}
