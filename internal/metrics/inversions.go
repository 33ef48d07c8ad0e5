package metrics

import (
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/sched"
)

// Inversion names the processes of a priority inversion.
type Inversion struct{ Victim, Holder int }

// inversions counts the priority inversions of a device.
type inversions struct {
	count uint64
	time  time.Duration
	at    sched.Time // when the last one was seen
	last  Inversion
}

// Inverted counts that a priority inversion began, or has lasted longer.
func (t *Tally) Inverted(now sched.Time, device sched.DeviceID, began bool, more time.Duration, of Inversion) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.inverted[device]
	if i == nil {
		i = &inversions{}
		t.inverted[device] = i
	}
	if i.time += more; began {
		i.count++
	}
	if more > 0 {
		i.at, i.last = now, of
	}
}

// Inversions returns the number of priority inversions on all devices, how long they lasted, and
// when the last one was seen.
func (t *Tally) Inversions() (count uint64, total time.Duration, at sched.Time, last Inversion) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, i := range t.inverted {
		count, total = count+i.count, total+i.time
		if i.at >= at {
			at, last = i.at, i.last
		}
	}
	return count, total, at, last
}

// inversions writes the counts of each device, zero included.
func (p *page) inversions(t *counts, devices []api.Device) {
	each := func(value func(*inversions) float64) {
		for _, d := range devices {
			i := t.inverted[sched.DeviceID(d.ID)]
			if i == nil {
				i = &inversions{}
			}
			p.sample(value(i), "device", d.ID)
		}
	}
	p.counter("giveway_priority_inversions_total", "Times a queue that was to be stopped kept the device from one that was let run.")
	each(func(i *inversions) float64 { return float64(i.count) })
	p.counter("giveway_priority_inversion_seconds_total", "Time that priority inversions lasted.")
	each(func(i *inversions) float64 { return i.time.Seconds() })
}
