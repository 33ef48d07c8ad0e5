package live

import (
	"cmp"
	"context"
	"os"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/sched"
)

// pidBase is PID_MAX_LIMIT of Linux on 64 bits: no real process has a larger pid.
const pidBase = 4 << 20

// How long the discovery goroutine sleeps. While the devices are busy it wakes up every
// minTick, which takes a few percent of one CPU.
const (
	minTick = 200 * time.Microsecond
	maxTick = 10 * time.Millisecond
)

// queue is an open queue of the Node. Backend.mu guards it.
type queue struct {
	node     *sim.NodeQueue
	process  *process
	handle   hal.QueueHandle // nil: not offered yet, or not accepted
	settings *hal.Settings   // applied last
}

// process is a simulated process. Backend.mu guards it.
type process struct {
	info     proc.Process
	queues   []*queue
	counters sched.Counters // as last reported
	closed   uint64         // commands of its queues that were closed
	requests int            // reported as started and not as finished
}

// run drives the simulation and offers queues until ctx is done.
func (b *Backend) run(ctx context.Context) {
	for ctx.Err() == nil {
		b.mu.Lock()
		b.advance()
		found := b.found
		b.found = nil
		wait := b.clock.until(b.node.Next())
		b.mu.Unlock()
		for _, ev := range found {
			if ev.Kind == sched.QueueOpened {
				b.offer(ev.Queue)
			} else {
				b.withdraw(ev.Queue)
			}
		}
		sleep(min(max(wait, minTick), maxTick))
	}
}

// The simulation advances by at most advanceStep at a time, and for at most maxAdvance of
// real time while it keeps others from b.mu.
const (
	advanceStep = time.Millisecond
	maxAdvance  = 2 * time.Millisecond
)

// advance brings the simulation up to now and sorts what has happened. b.mu is held.
func (b *Backend) advance() {
	now := b.clock.now(b.node.Now())
	for began := time.Now(); b.node.Now() < now && time.Since(began) < maxAdvance; {
		b.node.AdvanceTo(min(now, b.node.Now().Add(advanceStep)))
	}
	b.events = b.node.Events(b.events[:0])
	wake := false
	for _, ev := range b.events {
		switch ev.Kind {
		case sched.QueueOpened, sched.QueueClosed:
			b.found = append(b.found, ev)
		case sched.Progressed:
			wake = wake || b.settingsOf(ev.Queue).WatchReady
		case sched.AttrsChanged:
			wake = true
			b.facts = append(b.facts, ev)
		default:
			wake = wake || b.settingsOf(ev.Queue).WatchRequests
			b.facts = append(b.facts, ev)
		}
	}
	if wake {
		b.host.Wake()
	}
}

// settingsOf returns what is in force for the process of a queue. b.mu is held.
func (b *Backend) settingsOf(id sched.QueueID) *hal.Settings {
	if q := b.queues[id]; q != nil && q.handle != nil {
		return q.handle.Process().Settings()
	}
	return &hal.Settings{}
}

// offer offers a new queue to the daemon, unless it was closed meanwhile.
func (b *Backend) offer(id sched.QueueID) {
	b.mu.Lock()
	found := b.node.Queue(id)
	if found == nil {
		b.mu.Unlock()
		return
	}
	q := &queue{node: found, process: b.processOf(found)}
	found.SetPID(q.process.info.PID)
	q.process.queues = append(q.process.queues, q)
	b.queues[id] = q
	b.mu.Unlock()

	o := hal.Offer{
		Process: q.process.info,
		Device:  b.devices[found.Client.Device],
		Attach:  func(hal.Queue) (hal.Queue, error) { return b.attach(found), nil },
		Attr:    b.attr(found.Client.Attr),
		Detail:  hal.Detail{FoundSlice: b.clock.real(found.Slice)},
	}
	if found.Batch {
		o.Batcher = b
	}
	// The daemon refuses a queue only while it ends.
	if handle, err := b.host.QueueFound(o); err == nil {
		b.mu.Lock()
		q.handle = handle
		b.mu.Unlock()
	}
}

// processOf returns the process of a queue, made if there is none. b.mu is held.
func (b *Backend) processOf(q *sim.NodeQueue) *process {
	p := b.processes[q.Process]
	if p == nil {
		b.started++
		p = &process{info: proc.Process{
			PID: pidBase + b.started, Start: uint64(b.started), UID: uint32(os.Geteuid()),
			Command: "sim: " + cmp.Or(q.Client.Process, q.Client.Name), Nice: q.Client.Attr.Nice, RealTime: q.Client.Attr.RealTime,
		}}
		b.processes[q.Process] = p
	}
	return p
}

// attr returns attributes of the scenario in real time.
func (b *Backend) attr(a sched.Attr) sched.Attr {
	for _, d := range []*time.Duration{&a.SLO, &a.Deadline, &a.Laxity, &a.Work} {
		*d = b.clock.real(*d)
	}
	return a
}

// withdraw takes back a queue that was closed. Its process has exited if that was its last.
func (b *Backend) withdraw(id sched.QueueID) {
	b.mu.Lock()
	q := b.queues[id]
	if q == nil {
		b.mu.Unlock()
		return
	}
	delete(b.queues, id)
	p := q.process
	p.queues = slices.DeleteFunc(p.queues, func(o *queue) bool { return o == q })
	p.closed += q.node.Counters().Submitted
	exited := len(p.queues) == 0
	if exited {
		delete(b.processes, q.node.Process)
	}
	handle := q.handle
	b.mu.Unlock()
	if handle != nil {
		handle.Withdraw(exited) // nothing waits for its end: the Node holds nothing for a closed queue
	}
}

// Find implements hal.Finder. Every queue is offered as soon as it exists.
func (b *Backend) Find(int) hal.Found {
	return hal.Found{Note: "the daemon controls only the simulated processes that 'giveway ps' lists"}
}
