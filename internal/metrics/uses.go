package metrics

import (
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/sched"
)

// Use is device time of a process, by what others had meanwhile: see record.Use.
type Use struct{ GivenAway, TakenBack, Promised, Given time.Duration }

func (u *Use) add(more Use) {
	u.GivenAway += more.GivenAway
	u.TakenBack += more.TakenBack
	u.Promised += more.Promised
	u.Given += more.Given
}

// Used counts what a process had of a device.
func (t *Tally) Used(now sched.Time, device sched.DeviceID, class sched.Class, p *Process, u Use) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := seriesKey{device: clean(string(device)), class: class % classes}
	if t.uses[k] == nil {
		t.uses[k] = new(Use)
	}
	t.uses[k].add(u)
	if t.labels.Any() {
		t.times.get(now, t.key(device, class, p), p.UID).use.add(u)
	}
}

// lowerClasses are the classes that have device time which online processes give away, and
// sharingClasses those of which the weight promises a share.
var (
	lowerClasses   = []sched.Class{sched.Standard, sched.Batch, sched.Idle}
	sharingClasses = []sched.Class{sched.Batch, sched.Idle}
)

// uses writes what online processes gave away and took back on each device, zero included.
func (p *page) uses(t *counts, devices []api.Device) {
	of := func(d *api.Device, class sched.Class) Use {
		if u := t.uses[seriesKey{device: clean(d.ID), class: class}]; u != nil {
			return *u
		}
		return Use{}
	}
	p.counter("giveway_given_away_seconds_total", "Device time of processes that are not online, while online processes were on the device and had no work.")
	for i := range devices {
		for _, class := range lowerClasses {
			p.sample(of(&devices[i], class).GivenAway.Seconds(), "device", devices[i].ID, "class", class.String())
		}
	}
	p.counter("giveway_taken_back_seconds_total", "Device time of online processes, while a process that is not online had work.")
	for i := range devices {
		p.sample(of(&devices[i], sched.Online).TakenBack.Seconds(), "device", devices[i].ID)
	}
}

// usesOfProcesses writes the same by the labels that are wanted, and what weights promise.
func (p *page) usesOfProcesses(each func(classes []sched.Class, value func(*Use) time.Duration)) {
	p.counter("giveway_process_given_away_seconds_total", "Device time of processes that are not online, while online processes were on the device and had no work.")
	each(lowerClasses, func(u *Use) time.Duration { return u.GivenAway })
	p.counter("giveway_process_taken_back_seconds_total", "Device time of online processes, while a process that is not online had work.")
	each([]sched.Class{sched.Online}, func(u *Use) time.Duration { return u.TakenBack })
	p.counter("giveway_process_share_promised_seconds_total", "Device time that weights promise, while two or more processes of the class had work.")
	each(sharingClasses, func(u *Use) time.Duration { return u.Promised })
	p.counter("giveway_process_share_given_seconds_total", "Device time that processes had in the same time.")
	each(sharingClasses, func(u *Use) time.Duration { return u.Given })
}
