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
func (b *Bench) Device() hal.Device {
	d := b.w.devices[0]
	if d.model.Slots != nil && d.model.Slots.Batch {
		return d
	}
	return struct{ hal.Device }{d}
}

// Open makes a queue.
func (b *Bench) Open() sched.QueueID {
	d := b.w.devices[0]
	return d.open(sched.QueueID(len(d.queues)+1), nil, false).id
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
func (b *Bench) Kill(id sched.QueueID) { b.queue(id).die() }

// Interrupt has a queue make no progress until Restore.
func (b *Bench) Interrupt(id sched.QueueID) error {
	return hal.Stop(b.queue(id).self, sched.LevelInterrupt)
}

// Restore undoes Interrupt.
func (b *Bench) Restore(id sched.QueueID) error {
	return hal.Start(b.queue(id).self, sched.LevelInterrupt)
}

// SetSlice sets a queue's time slice; zero is the one that it was made with.
func (b *Bench) SetSlice(id sched.QueueID, d time.Duration) error {
	return hal.Do(b.queue(id).self, sched.Action{Verb: sched.SetSlice, Slice: d})
}

// Settle lets time pass.
func (b *Bench) Settle(d time.Duration) { b.w.runUntil(b.w.now.Add(d), nil) }

// Unit is a command length much longer than any action takes.
func (b *Bench) Unit() time.Duration { return 10 * time.Millisecond }

// Violations says what happened that must not.
func (b *Bench) Violations() []string { return b.w.violations }
