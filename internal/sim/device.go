package sim

import (
	"fmt"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// engine is how a device shares its time.
type engine interface {
	opened(*queue)      // there is a queue
	arrived(*queue)     // a command was launched
	changed(*queue)     // it was interrupted, restored, sliced, released or killed
	deactivated(*queue) // level 2
	reactivated(*queue)
	settle() // bring queues' device time up to now
	close()  // record what is under way as if it ended now
}

// device is one accelerator and its driver. It implements hal.Device.
type device struct {
	world         *World
	id            sched.DeviceID
	model         Model
	engine        engine
	queues        []*queue
	launchCount   uint64                   // so far, to give commands their order
	lastCompleted map[sched.QueueID]uint64 // order of the last command completed
	traceReadAt   sched.Time               // when the record was last fetched
	driverFreeAt  sched.Time               // when the driver has finished with the calls it has
}

func newDevice(w *World, id sched.DeviceID, m Model) *device {
	d := &device{world: w, id: id, model: m, lastCompleted: make(map[sched.QueueID]uint64)}
	if m.Runlist != nil {
		d.engine = newRunlist(d)
	} else {
		d.engine = newSlots(d)
	}
	return d
}

// open makes a queue.
func (d *device) open(id sched.QueueID, process sched.ProcessID, owner *client, gated bool) *queue {
	q := &queue{device: d, id: id, process: process, owner: owner, gated: gated || d.model.Gated}
	q.hal = q.halQueue()
	d.queues = append(d.queues, q)
	d.engine.opened(q)
	return q
}

// Info implements hal.Device.
func (d *device) Info() hal.Info {
	about := sched.Device{ID: d.id}
	if r := d.model.Runlist; r != nil {
		about.Slice, about.MinSharedSlice = r.Slice, r.MinSharedSlice
	}
	stop := d.model.Calls.Stop
	if stop == (Dist{}) {
		stop = d.model.Calls.Gate
	}
	about.StopTime = d.world.cfg.WakeDelay.Mean + stop.Mean
	if s := d.model.Slots; s != nil && s.Interrupt {
		about.StopTime += d.model.Calls.PerQueue + s.Context.Save()
	}
	return hal.Info{Device: about, Backend: "sim", Model: d.model.Name}
}

// Attach implements hal.Device.
func (d *device) Attach(s hal.Spec) (hal.Queue, error) {
	for _, q := range d.queues {
		if q.id == s.Queue && !q.dead {
			return q.hal, nil
		}
	}
	return nil, fmt.Errorf("attach queue %d: %w", s.Queue, hal.ErrGone)
}

// Close implements hal.Device.
func (d *device) Close() error {
	for _, q := range d.queues {
		if err := q.hal.Close(); err != nil {
			return err
		}
	}
	return nil
}

// Switch implements hal.Batcher for models that do it in one change.
func (d *device) Switch(off, on []hal.Queue) []error {
	var errs []error
	s, _ := d.engine.(*slots)
	if s != nil {
		s.batching = true
	}
	for _, q := range off {
		errs = append(errs, hal.Stop(q, sched.LevelInterrupt))
	}
	for _, q := range on {
		errs = append(errs, hal.Start(q, sched.LevelInterrupt))
	}
	if s != nil {
		s.endBatch()
	}
	return errs
}

// look reads the hardware's own record of who was on the device.
func (d *device) readTrace(buf []sched.Event) []sched.Event {
	now := d.world.now
	if d.model.TraceInterval == 0 || now < d.traceReadAt.Add(d.model.TraceInterval) {
		return buf
	}
	d.traceReadAt = now
	d.engine.settle()
	for _, q := range d.queues {
		if !q.dead {
			buf = append(buf, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: q.id, Duration: q.resident})
		}
	}
	return buf
}

func (d *device) lastOrder(q *queue) uint64 { return d.lastCompleted[q.id] }

// checkShort looks for the state that must never exist: two groups that may run
// with slices in which neither makes progress.
func (d *device) checkSlices() {
	r := d.model.Runlist
	if r == nil {
		return
	}
	short := 0
	for _, q := range d.queues {
		if d.sliceOf(q) < r.MinSharedSlice && !q.interrupted && !q.dead {
			short++
		}
	}
	if short > 1 && !d.world.cfg.AllowLivelock {
		d.world.violation("device %s: %d running groups have slices too short to make progress in", d.id, short)
	}
}

// sliceOf is the turn that q gets. The hardware counts in microseconds.
func (d *device) sliceOf(q *queue) time.Duration {
	if q.slice > 0 {
		return max(q.slice, time.Microsecond)
	}
	if q.initialSlice > 0 {
		return q.initialSlice
	}
	return d.model.Runlist.Slice
}
