package live

import (
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

// queue is a queue that exists on the Node. Backend.mu guards it.
type queue struct {
	id      sched.QueueID
	info    sim.NodeQueue
	process *process
	handle  hal.QueueHandle // nil: not offered yet, or not accepted
	// settings are those that were applied last.
	settings *hal.Settings
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
			wake = wake || b.settings(ev.Queue).WatchReady
		case sched.AttrsChanged:
			wake = true
			b.facts = append(b.facts, ev)
		default:
			wake = wake || b.settings(ev.Queue).WatchRequests
			b.facts = append(b.facts, ev)
		}
	}
	if wake {
		b.host.Wake()
	}
}

// settings returns what is in force for the process of a queue. b.mu is held.
func (b *Backend) settings(id sched.QueueID) *hal.Settings {
	if q := b.queues[id]; q != nil && q.handle != nil {
		return q.handle.Process().Settings()
	}
	return &hal.Settings{}
}

// offer offers a new queue to the daemon.
func (b *Backend) offer(id sched.QueueID) {
	b.mu.Lock()
	info, err := b.node.Queue(id)
	if err != nil {
		b.mu.Unlock()
		return
	}
	q := &queue{id: id, info: info, process: b.processOf(&info)}
	q.process.queues = append(q.process.queues, q)
	b.queues[id] = q
	slice := b.clock.real(info.Slice)
	b.mu.Unlock()

	o := hal.Offer{
		Process: q.process.info,
		Device:  b.devices[info.Device],
		Attach:  func(hal.Queue) (hal.Queue, error) { return b.attach(id) },
		Attr:    b.attr(info.Client.Attr),
		Detail:  hal.Detail{FoundSlice: slice},
	}
	if info.Batch {
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
func (b *Backend) processOf(info *sim.NodeQueue) *process {
	p := b.processes[info.Process]
	if p == nil {
		b.started++
		name := info.Client.Process
		if name == "" {
			name = info.Client.Name
		}
		p = &process{info: proc.Process{
			PID: pidBase + b.started, Start: uint64(b.started), UID: uint32(os.Geteuid()),
			Command: "sim: " + name, Nice: info.Client.Attr.Nice, RealTime: info.Client.Attr.RealTime,
		}}
		b.processes[info.Process] = p
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
	delete(b.queues, id)
	p := q.process
	p.queues = slices.DeleteFunc(p.queues, func(o *queue) bool { return o == q })
	p.closed += b.node.Counters(id).Submitted
	exited := len(p.queues) == 0
	if exited {
		delete(b.processes, q.info.Process)
	}
	handle := q.handle
	b.mu.Unlock()
	if handle == nil {
		b.forget(id)
		return
	}
	done := handle.Withdraw(exited)
	go func() {
		<-done
		b.forget(id)
	}()
}

func (b *Backend) forget(id sched.QueueID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.node.Forget(id)
}

// Find implements hal.Finder. Every queue is offered as soon as it exists.
func (b *Backend) Find(int) hal.Found {
	return hal.Found{Note: "the daemon runs on simulated devices and knows no real processes: giveway ps lists the simulated ones"}
}
