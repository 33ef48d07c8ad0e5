package sim

import "github.com/giveway/giveway/sched"

// SetAttr gives a client other attributes.
func (w *World) SetAttr(client int, a sched.Attr) {
	c := w.clients[client]
	c.cfg.Attr = a
	if c.q != nil && !c.q.dead {
		w.observer.observe(c.q, sched.Event{Kind: sched.AttrsChanged})
	}
}

// ChoosePolicy puts a policy in force on one device, or on all if on is empty.
func (w *World) ChoosePolicy(on sched.DeviceID, choice sched.PolicyChoice) {
	w.daemon.post(sched.Event{Kind: sched.PolicyChosen, Device: on, Choice: choice})
	w.daemon.notify()
}
