package sim

import (
	"fmt"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// Bench is one simulated device without daemon and clients. The caller submits commands
// and advances the clock. Doubles of drivers use it, and giveway bench amd.
//
// The methods that take a queue panic if there never was such a queue.
type Bench struct{ w *World }

// NewBench returns a Bench with a device of a model, at time zero.
func NewBench(m Model, seed uint64) *Bench {
	return &Bench{New(Config{Seed: seed, Devices: []DeviceConfig{{ID: "d0", Model: m}}, AllowLivelock: true})}
}

// Info describes the device as a backend does.
func (b *Bench) Info() hal.Info { return b.w.devices[0].info() }

// Open creates a queue in a process of its own.
func (b *Bench) Open() sched.QueueID {
	return b.OpenIn(sched.ProcessID(len(b.w.devices[0].queues) + 1))
}

// OpenIn creates a queue in a process that may have others.
func (b *Bench) OpenIn(p sched.ProcessID) sched.QueueID {
	d := b.w.devices[0]
	q := d.open(sched.QueueID(len(d.queues)+1), p, nil, false)
	b.w.queues[q.id] = q
	return q.id
}

// Queue returns a queue as a backend attaches it. Its methods take no time.
func (b *Bench) Queue(id sched.QueueID) hal.Queue { return b.queue(id).attached }

func (b *Bench) queue(id sched.QueueID) *queue { return b.w.queues[id] }

// Submit adds a command that takes so much device time.
func (b *Bench) Submit(id sched.QueueID, work time.Duration) { b.queue(id).submit(work, false) }

// Completed returns how many commands of a queue are done.
func (b *Bench) Completed(id sched.QueueID) uint64 { return b.queue(id).completed }

// Kill destroys a queue with all its commands.
func (b *Bench) Kill(id sched.QueueID) { b.queue(id).kill() }

// Interrupt stops a queue, in no time, until Restore.
func (b *Bench) Interrupt(id sched.QueueID) error {
	return hal.Stop(b.queue(id).attached, sched.LevelInterrupt)
}

// Restore undoes Interrupt.
func (b *Bench) Restore(id sched.QueueID) error {
	return hal.Start(b.queue(id).attached, sched.LevelInterrupt)
}

// SetSlice sets the slice of a queue; zero is its initial slice.
func (b *Bench) SetSlice(id sched.QueueID, d time.Duration) error {
	return hal.Do(b.queue(id).attached, sched.Action{Verb: sched.SetSlice, Slice: d})
}

// Call interrupts or restores queues in as many control calls as the model needs. It
// advances the clock until the last call has returned.
func (b *Bench) Call(verb sched.Verb, ids ...sched.QueueID) error {
	var actions []sched.Action
	for _, id := range ids {
		actions = append(actions, sched.Action{Queue: id, Verb: verb, Level: sched.LevelInterrupt})
	}
	var errs []error
	end := b.w.performAll(actions, func(results []error) { errs = results })
	b.w.runUntil(end, func() bool { return errs != nil })
	for i, err := range errs {
		if err != nil {
			return fmt.Errorf("%v queue %d: %w", verb, ids[i], err)
		}
	}
	return nil
}

// Now returns the time since the Bench was made.
func (b *Bench) Now() time.Duration { return b.w.now.Sub(0) }

// LastCompletion returns when the last command of a queue ended; zero: none has.
func (b *Bench) LastCompletion(id sched.QueueID) time.Duration {
	return b.queue(id).lastCompletion.Sub(0)
}

// UpdatesDone returns when the last update of queues in slots ends or ended.
func (b *Bench) UpdatesDone() time.Duration {
	if s, ok := b.w.devices[0].engine.(*slots); ok {
		return s.updatesDone.Sub(0)
	}
	return 0
}

// Occupancy returns the use of the slots so far.
func (b *Bench) Occupancy() Occupancy { return b.w.devices[0].occupancy() }

// Await advances the clock until a queue has completed so many commands, at most by most.
// It reports whether the queue has.
func (b *Bench) Await(id sched.QueueID, completed uint64, most time.Duration) bool {
	q := b.queue(id)
	b.w.runUntil(b.w.now.Add(most), func() bool { return q.completed >= completed })
	return q.completed >= completed
}

// DeviceTime returns the device time of a queue.
func (b *Bench) DeviceTime(id sched.QueueID) time.Duration {
	b.w.devices[0].engine.advance()
	return b.queue(id).deviceTime
}

// SlotTime returns how long a queue has had a slot.
func (b *Bench) SlotTime(id sched.QueueID) time.Duration {
	b.w.devices[0].engine.advance()
	return b.queue(id).slotTime
}

// Advance advances the clock.
func (b *Bench) Advance(d time.Duration) { b.w.runUntil(b.w.now.Add(d), nil) }

// Violations lists the invariants that were broken.
func (b *Bench) Violations() []string { return b.w.violations }
