package daemon

import (
	"errors"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// What backends report: the methods of hal.Host.

var errStopping = errors.New("the daemon is starting or stopping")

// Wake implements hal.Host.
func (d *Daemon) Wake() { d.events.sleeper.Wake() }

// IsGuardian implements hal.Host.
func (d *Daemon) IsGuardian(pid int) bool { return d.guardian.isGuardian(pid) }

// Account implements hal.Host.
func (d *Daemon) Account(uid uint32) uint32 { return d.account(uid) }

// Ready implements hal.Host.
func (d *Daemon) Ready(pid int) (class sched.Class, ready, known bool) {
	states := d.queueStates.get()
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.processes[pid]
	if p == nil || len(p.queues) == 0 {
		return 0, false, false
	}
	for _, q := range p.queues {
		r, there := states[q.id]
		ready = ready || there && r.Ready() && !p.attr.Paused
	}
	return p.attr.Class, ready, true
}

// DeviceFound implements hal.Host.
func (d *Daemon) DeviceFound(dev hal.Device) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.device(dev)
}

// device returns a device, added if it is not known. d.mu is held.
func (d *Daemon) device(dev hal.Device) *device {
	info := dev.Info()
	id := info.Device.ID
	if known := d.devices[id]; known != nil {
		return known
	}
	found := &device{Device: dev, info: info}
	d.devices[id] = found
	d.recorder.noteDevice(dev)
	d.events.post(sched.Event{Kind: sched.DeviceOpened, Device: id, About: info.Device})
	d.chooseConfigured(found)
	return found
}

// ProcessFound implements hal.Host.
func (d *Daemon) ProcessFound(info proc.Process) {
	p := d.lockProcess(info)
	defer d.mu.Unlock()
	p.foundAt = time.Now()
}

// QueueFound implements hal.Host.
func (d *Daemon) QueueFound(o hal.Offer) (hal.QueueHandle, error) {
	if o.Gate {
		return d.gateFound(o)
	}
	attached, err := o.Attach(nil)
	if err != nil {
		return nil, err
	}
	id := sched.QueueID(d.lastID.Add(1))
	if o.Handoff != nil {
		if err := d.guardian.adopt(id, adoption{o.Process.ID(), o.Device.Info().Backend, o.Handoff.State}, o.Handoff.FD); err != nil {
			d.cfg.Log.Warn("guardian could not take a queue, so it is not changed", "pid", o.Process.PID, "error", err)
		}
	}
	q, err := d.openQueue(id, o, attached)
	if err != nil {
		d.guardian.forget(id)
		return nil, errors.Join(err, hal.Abandon(attached))
	}
	return q, nil
}

// openQueue begins to schedule a queue that was attached.
func (d *Daemon) openQueue(id sched.QueueID, o hal.Offer, attached hal.Queue) (*queue, error) {
	p := d.lockProcess(o.Process)
	defer d.mu.Unlock()
	if !d.running {
		return nil, errStopping
	}
	dev := d.device(o.Device)
	d.setBackendAttr(p, o.Attr)
	q := &queue{d: d, id: id, process: p, device: dev, hardware: attached, detail: o.Detail}
	d.exec.add(q.id, attached, workerConfig{after: o.After, batcher: o.Batcher, journaled: o.Handoff != nil})
	p.queues = append(p.queues, q)
	d.recorder.noteOwner(q.id, p)
	d.events.post(sched.Event{
		Kind: sched.QueueOpened, Queue: q.id, Process: p.id, Device: dev.info.Device.ID, Can: hal.Abilities(attached), Attr: p.attr,
	})
	d.updateQueues(p)
	return q, nil
}

// removeQueue ends the scheduling of a queue. exited says that its process has exited,
// so that nothing is left to undo. The channel is closed when the changes are undone, or the
// daemon ends and leaves them to the guardian; until then the guardian is responsible for the
// queue as well. d.mu is held.
func (d *Daemon) removeQueue(q *queue, exited bool) <-chan struct{} {
	q.process.queues = slices.DeleteFunc(q.process.queues, func(o *queue) bool { return o == q })
	closed := make(chan struct{})
	process := q.process.info.ID()
	d.exec.remove(q.id, removal{
		exited:  exited,
		hasLeft: func() bool { return d.hasExited(process) },
		failed: func() {
			d.cfg.Log.Error("queue could not be restored", "queue", q.id, "pid", process.PID)
		},
		removed: func(undone bool) {
			if undone {
				d.guardian.forget(q.id)
			}
			close(closed)
		},
	})
	d.events.post(sched.Event{Kind: sched.QueueClosed, Queue: q.id})
	return closed
}
