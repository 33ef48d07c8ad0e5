package sim

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// Occupancy is the use of a device's slots over a period. Slot time is summed over slots:
// two slots used for one second are two seconds.
//
//	Busy <= Occupied <= Mapped <= Slots * Span
type Occupancy struct {
	Slots    int
	Span     time.Duration
	Busy     time.Duration // slot time in which queues made progress
	Occupied time.Duration // slot time in which queues had work, stalled or not
	Mapped   time.Duration // slot time that the queues could use, with work or without: as a driver counts
	Stalled  time.Duration // part of Span, not of slot time, in which no queue made progress because of an update
	Updates  uint64        // of the runlist, or of single queues, depending on the model
}

// Utilisation returns the fraction of all slot time in which queues made progress. It is 1
// only if every slot always has work and there are no updates.
func (o Occupancy) Utilisation() float64 {
	if o.Slots == 0 || o.Span <= 0 {
		return 0
	}
	return float64(o.Busy) / (float64(o.Slots) * float64(o.Span))
}

// add counts a period in which so many slots were occupied, and how much of it they made progress.
func (o *Occupancy) add(occupied, mapped int, elapsed, progress time.Duration) {
	o.Span += elapsed
	o.Stalled += elapsed - progress
	o.Busy += time.Duration(occupied) * progress
	o.Occupied += time.Duration(occupied) * elapsed
	o.Mapped += time.Duration(mapped) * elapsed
}

// DeviceResult is the result of one device. The Occupancy is zero for a model without slots.
type DeviceResult struct {
	ID        sched.DeviceID
	Switching time.Duration // lost in context switches
	Switches  uint64
	Occupancy
}

func (d *device) occupancy() Occupancy {
	s, ok := d.engine.(*slots)
	if !ok {
		return Occupancy{}
	}
	s.advance()
	o := s.occupancy
	o.Slots = s.m.Slots
	return o
}
