package sim

import (
	"fmt"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// Bench is one simulated device with no daemon and no programs: its queues get
// the commands that they are given, and time passes when it is told to. Tests
// put it behind a driver's double.
//
// The methods that take a queue panic if there was never such a queue.
type Bench struct{ w *World }

// NewBench returns a device of that model, at time zero.
func NewBench(m Model) *Bench {
	return &Bench{New(Config{Devices: []DeviceConfig{{ID: "d0", Model: m}}, AllowLivelock: true})}
}

// Device is the device as a backend offers it. It is a hal.Batcher if the model
// switches many queues in one change.
func (b *Bench) Device() hal.Attacher {
	d := b.w.devices[0]
	if d.model.Slots != nil && d.model.Slots.Batch {
		return d
	}
	return struct{ hal.Attacher }{d}
}

// Seed chooses what chance brings from now on.
func (b *Bench) Seed(seed uint64) {
	b.w.cfg.Seed = seed
	b.w.deviceRand = b.w.rand("device")
}

// Open makes a queue of a program of its own.
func (b *Bench) Open() sched.QueueID {
	return b.OpenIn(sched.ProcessID(len(b.w.devices[0].queues) + 1))
}

// OpenIn makes a queue of a program that may have others.
func (b *Bench) OpenIn(p sched.ProcessID) sched.QueueID {
	d := b.w.devices[0]
	q := d.open(sched.QueueID(len(d.queues)+1), p, nil, false)
	b.w.queues[q.id] = q
	return q.id
}

func (b *Bench) queue(id sched.QueueID) *queue {
	queues := b.w.devices[0].queues
	if id == 0 || int(id) > len(queues) {
		panic(fmt.Sprintf("sim: no queue %d on the bench", id))
	}
	return queues[id-1]
}

// Submit gives a queue one command.
func (b *Bench) Submit(id sched.QueueID, work time.Duration) { b.queue(id).submit(work, false) }

// Completed counts the commands of a queue that are done.
func (b *Bench) Completed(id sched.QueueID) uint64 { return b.queue(id).completed }

// Kill ends a queue with all that it has.
func (b *Bench) Kill(id sched.QueueID) { b.queue(id).kill() }

// Interrupt has a queue make no progress until Restore.
func (b *Bench) Interrupt(id sched.QueueID) error {
	return hal.Stop(b.queue(id).hal, sched.LevelInterrupt)
}

// Restore undoes Interrupt.
func (b *Bench) Restore(id sched.QueueID) error {
	return hal.Start(b.queue(id).hal, sched.LevelInterrupt)
}

// SetSlice sets a queue's time slice; zero is the one that it was made with.
func (b *Bench) SetSlice(id sched.QueueID, d time.Duration) error {
	return hal.Do(b.queue(id).hal, sched.Action{Verb: sched.SetSlice, Slice: d})
}

// Call stops or starts queues inside their commands in as many calls as the
// model takes for that, one after another and each as long as it takes, and
// returns when the last has.
func (b *Bench) Call(verb sched.Verb, ids ...sched.QueueID) error {
	var actions []sched.Action
	for _, id := range ids {
		actions = append(actions, sched.Action{Queue: b.queue(id).id, Verb: verb, Level: sched.LevelInterrupt})
	}
	calls := b.w.daemon.split(actions)
	left := len(calls)
	var err error
	for _, call := range calls {
		b.w.daemon.perform(b.w.devices[0], call, func(outcomes []sched.Outcome) {
			left--
			for i, o := range outcomes {
				if o != sched.Done && err == nil {
					err = fmt.Errorf("%v queue %d: %v", verb, call[i].Queue, o)
				}
			}
		})
	}
	b.w.runUntil(b.w.now.Add(time.Hour), func() bool { return left == 0 })
	return err
}

// Now is how long the device has been there.
func (b *Bench) Now() time.Duration { return b.w.now.Sub(0) }

// Last is when the last command of a queue ended, zero if none has.
func (b *Bench) LastCompletion(id sched.QueueID) time.Duration {
	return b.queue(id).lastCompletion.Sub(0)
}

// Quiet is when the last change of queues in slots was over, or will be.
func (b *Bench) UpdatesDone() time.Duration {
	if s, ok := b.w.devices[0].engine.(*slots); ok {
		return s.updatesDone.Sub(0)
	}
	return 0
}

// Occupancy is what the slots were used for so far.
func (b *Bench) Occupancy() Occupancy { return b.w.devices[0].occupancy() }

// Await lets time pass until a queue has completed so many commands, or until it
// has been waited for long enough.
func (b *Bench) Await(id sched.QueueID, completed uint64, most time.Duration) bool {
	q := b.queue(id)
	b.w.runUntil(b.w.now.Add(most), func() bool { return q.completed >= completed })
	return q.completed >= completed
}

// Ran is the device time that a queue has had.
func (b *Bench) DeviceTime(id sched.QueueID) time.Duration {
	b.w.devices[0].engine.settle()
	return b.queue(id).deviceTime
}

// Held is how long a queue has had a slot.
func (b *Bench) SlotTime(id sched.QueueID) time.Duration {
	b.w.devices[0].engine.settle()
	return b.queue(id).slotTime
}

// Advance lets time pass.
func (b *Bench) Advance(d time.Duration) { b.w.runUntil(b.w.now.Add(d), nil) }

// Unit is a command length much longer than any action takes.
func (b *Bench) Unit() time.Duration { return 10 * time.Millisecond }

// Violations says what happened that must not.
func (b *Bench) Violations() []string { return b.w.violations }
