package sim

import (
	"time"

	"github.com/giveway/giveway/sched"
)

// Occupancy is what a device's slots were used for over a time. Slot times add up
// over slots: two slots used for a second are two seconds.
//
//	Busy <= Held <= Mapped <= Slots * Span
type Occupancy struct {
	Slots    int
	Span     time.Duration
	Busy     time.Duration // slot time of queues that made progress
	Occupied time.Duration // slot time of queues with work, stalled or not
	Mapped   time.Duration // slot time that queues could have had by their number, with work or without: as a driver counts
	Stalled  time.Duration // of the span, not of slots: nobody made progress because queues were being changed
	Updates  uint64        // changes of queues: of the whole runlist, or of one queue, as the model has it
}

// Utilisation is the part of all slot time in which queues made progress. It is 1
// only if every slot has work all the time and queues are never changed.
func (o Occupancy) Utilisation() float64 {
	if o.Slots == 0 || o.Span <= 0 {
		return 0
	}
	return float64(o.Busy) / (float64(o.Slots) * float64(o.Span))
}

// add counts a while in which so many slots were held, moving for a part of it.
func (o *Occupancy) add(held, mapped int, gone, moving time.Duration) {
	o.Span += gone
	o.Stalled += gone - moving
	o.Busy += time.Duration(held) * moving
	o.Occupied += time.Duration(held) * gone
	o.Mapped += time.Duration(mapped) * gone
}

// DeviceResult is what became of one device; a model without slots has no occupancy.
type DeviceResult struct {
	ID sched.DeviceID
	Occupancy
}

func (d *device) occupancy() Occupancy {
	s, ok := d.engine.(*slots)
	if !ok {
		return Occupancy{}
	}
	s.settle()
	o := s.occupancy
	o.Slots = s.m.Slots
	return o
}
