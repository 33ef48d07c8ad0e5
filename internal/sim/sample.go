package sim

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// QueueSample is what is true of one queue at one instant, beside what the scheduler
// believes.
type QueueSample struct {
	Queue      sched.QueueID
	Client     int // index in Config.Clients
	DeviceTime time.Duration
	Submitted  uint64        // commands
	Completed  uint64        // of those
	Served     time.Duration // the device time that the scheduler counted
	State      sched.State   // as the scheduler has it
}

// Ready reports whether the queue has unfinished commands.
func (s *QueueSample) Ready() bool { return s.Submitted > s.Completed }

// sample passes a sample of every queue that is open, and known to the daemon, to
// Config.Sample, and sets the next one.
func (w *World) sample() {
	believed := map[sched.QueueID]sched.Queue{}
	if w.daemon.up {
		for _, q := range w.daemon.loop.Sched.Queues(nil) {
			believed[q.ID] = q
		}
	}
	var all []QueueSample
	for i, c := range w.clients {
		if c.q == nil || c.q.dead {
			continue
		}
		c.q.device.engine.advance()
		b, known := believed[c.q.id]
		if !known {
			continue
		}
		all = append(all, QueueSample{
			Queue: c.q.id, Client: i, DeviceTime: c.q.deviceTime, Submitted: c.q.submitted, Completed: c.q.completed,
			Served: b.Served, State: b.State,
		})
	}
	w.cfg.Sample(w.now, all)
	w.after(w.cfg.SampleInterval, w.sample)
}
