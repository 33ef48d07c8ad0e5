package sim

import (
	"cmp"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// engine is the way in which a device shares its time among its queues.
type engine interface {
	opened(*queue)
	launched(*queue)     // a command was launched
	interrupting(*queue) // the queue is being interrupted; changed follows
	changed(*queue)      // the queue was interrupted, restored, unparked or killed, or its slice set
	deactivated(*queue)  // level 2
	reactivated(*queue)
	advance() // credit queues with their progress and device time up to now
	close()   // record the Segments under way as if they ended now
}

// device is one accelerator and its driver.
type device struct {
	world        *World
	id           sched.DeviceID
	model        Model
	engine       engine
	queues       []*queue
	launchCount  uint64        // numbers commands in the order of their launch
	traceReadAt  sched.Time    // when the context-switch trace was last read
	driverFreeAt sched.Time    // when the driver has finished the calls made so far
	switching    time.Duration // lost in context switches
	switches     uint64
	spans        *spanLog // nil: not kept
	traceFailed  bool     // the context-switch trace cannot be read
}

func newDevice(w *World, id sched.DeviceID, m Model) *device {
	d := &device{world: w, id: id, model: m}
	if m.Runlist != nil {
		d.engine = newRunlist(d)
	} else {
		d.engine = newSlots(d)
	}
	return d
}

// open creates a queue.
func (d *device) open(id sched.QueueID, process sched.ProcessID, owner *client, gated bool) *queue {
	q := &queue{device: d, id: id, process: process, owner: owner, gated: gated || d.model.Gated}
	q.attached = newControl(q.abilities(), control{id, q.apply, q.restore})
	d.queues = append(d.queues, q)
	d.engine.opened(q)
	return q
}

// info describes the device to a daemon.
func (d *device) info() hal.Info {
	about := sched.Device{ID: d.id}
	if r := d.model.Runlist; r != nil {
		about.Slice, about.MinSharedSlice, about.SwitchTime = r.Slice, r.MinSharedSlice, r.Switch.Mean
	}
	stop := d.model.Calls.Stop
	if stop == (Dist{}) {
		stop = d.model.Calls.Gate
	}
	about.StopTime = d.world.cfg.WakeDelay.Mean + stop.Mean
	if s := d.model.Slots; s != nil && s.Slots == 1 && s.Quantum == 0 {
		about.Serial = true
	}
	if s := d.model.Slots; s != nil && s.Interrupt {
		about.StopTime += d.model.Calls.PerQueue + s.Context.Save()
	}
	return hal.Info{Device: about, Backend: "sim", Model: d.model.Name}
}

// checkSlices reports a violation if two groups that may run have slices so short that
// neither makes progress. A group that the driver claims to have stopped does not count: the
// scheduler cannot know that it runs.
func (d *device) checkSlices() {
	r := d.model.Runlist
	if r == nil {
		return
	}
	short := 0
	for _, q := range d.queues {
		if d.sliceOf(q) < r.MinSharedSlice && !q.interrupted && !q.claimed && !q.dead {
			short++
		}
	}
	if short > 1 && !d.world.cfg.AllowLivelock {
		d.world.violation("device %s: %d running groups have slices too short to make progress", d.id, short)
	}
}

// sliceOf returns the slice of q in effect. The hardware counts in microseconds.
func (d *device) sliceOf(q *queue) time.Duration {
	if q.slice > 0 {
		return max(q.slice, time.Microsecond)
	}
	return cmp.Or(q.initialSlice, d.model.Runlist.Slice)
}
