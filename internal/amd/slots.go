package amd

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/giveway/giveway/internal/amd/kfd"
	"golang.org/x/sys/unix"
)

// Usage is how the hardware slots (HQDs) of a GPU for compute queues are used.
type Usage struct {
	Slots    uint32
	Active   uint32 // queues that may run, with work or without
	Stopped  uint32 // queues that we stopped
	Reserved uint32
	// Exact says that Active is the driver's own count. Otherwise it is of the queues
	// that sysfs lists, less those that we stopped: others may be off too.
	Exact bool
}

// Utilisation is the part of the slots that have a queue, 0 to 1.
func (u Usage) Utilisation() float64 {
	if u.Slots == 0 {
		return 0
	}
	return float64(min(u.Active, u.Slots)) / float64(u.Slots)
}

// Oversubscribed reports whether there are more queues than slots: the firmware
// then has them take turns.
func (u Usage) Oversubscribed() bool { return u.Active > u.Slots }

// Free is how many more queues there are slots for.
func (u Usage) Free() uint32 { return u.Slots - min(u.Active, u.Slots) }

func (u Usage) String() string {
	how := "at most "
	if u.Exact {
		how = ""
	}
	s := fmt.Sprintf("%s%d of %d slots in use (%.0f %%), %d reserved, %d queues stopped", how, u.Active, u.Slots, 100*u.Utilisation(), u.Reserved, u.Stopped)
	if u.Oversubscribed() {
		s += ": more queues than slots"
	}
	return s
}

// Reservation keeps slots free for queues of a priority: those below it are put
// back only while Slots more could be.
type Reservation struct {
	Slots    uint32
	Priority uint32
}

// Admits reports whether a queue may be put back beside low others whose priority
// is below the reservation's.
func (r Reservation) Admits(slots, low, priority uint32) bool {
	return r.Slots == 0 || priority >= r.Priority || low+r.Slots < slots
}

// Reserve keeps slots free. With our patch the driver sees to it as well, if we
// may tell it so.
func (d *Device) Reserve(r Reservation) error {
	if r.Priority > kfd.MaxPriority || r.Slots > 0 && r.Slots >= d.node.Slots {
		return fmt.Errorf("reserve %d of %d slots for priority %d: at least one slot stays for all, and priorities end at %d", r.Slots, d.node.Slots, r.Priority, kfd.MaxPriority)
	}
	if d.driver.features.Batch == nil {
		_, err := kfd.SetReservation(d.driver.file, d.node.GPU, kfd.Reservation{Slots: r.Slots, Priority: r.Priority})
		if err != nil && !errors.Is(err, unix.EPERM) {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reserve = r
	return nil
}

// unreserved does something while nothing is reserved.
func (d *Device) unreserved(do func() error) error {
	d.mu.Lock()
	r := d.reserve
	d.mu.Unlock()
	if err := d.Reserve(Reservation{}); err != nil {
		return err
	}
	err := do()
	return errors.Join(err, d.Reserve(r))
}

// admit is admission control: it refuses a queue that would take a reserved slot.
func (d *Device) admit(q *queue) error {
	d.mu.Lock()
	r := d.reserve
	d.mu.Unlock()
	if r.Slots == 0 || q.target.Priority >= r.Priority {
		return nil
	}
	states, err := d.States()
	if err != nil {
		return nil // who cannot count refuses nobody
	}
	low := uint32(0)
	for _, s := range states {
		if !s.Stopped && s.Priority < r.Priority {
			low++
		}
	}
	if !r.Admits(d.node.Slots, low, q.target.Priority) {
		return fmt.Errorf("queue %d of process %d, priority %d: %w", q.target.Queue, q.target.PID, q.target.Priority, ErrNoSlot)
	}
	return nil
}

// Usage counts the slots of the GPU.
func (d *Device) Usage() (Usage, error) {
	states, err := d.States()
	if err != nil {
		return Usage{}, err
	}
	d.mu.Lock()
	u := Usage{Slots: d.node.Slots, Reserved: d.reserve.Slots}
	d.mu.Unlock()
	for _, s := range states {
		if s.Stopped {
			u.Stopped++
		} else {
			u.Active++
		}
	}
	if d.driver.features.Batch == nil {
		if r, err := kfd.QueryReservation(d.driver.file, d.node.GPU); err == nil {
			u.Active, u.Exact = r.Active, true
		}
	}
	return u, nil
}

// grace is how long waves may go on here before they are taken off.
func (d *Device) grace() kfd.Grace { return kfd.GraceOf(d.driver.grace, d.node.ClockMHz) }

// State is a compute queue as we know it.
type State struct {
	PID      int
	Queue    uint32
	Priority uint32 // of a queue that is not attached: ROCm's normal one
	Stopped  bool   // by us
	Ready    bool   // it has work; nobody here can tell
}

// States lists the compute queues of the GPU, by process and queue. Who knows
// which of them have work sets Ready, to look for inversions.
func (d *Device) States() ([]State, error) {
	found, err := d.driver.Queues()
	if err != nil {
		return nil, err
	}
	var states []State
	for _, q := range found {
		if q.GPU == d.node.GPU {
			states = append(states, State{PID: q.PID, Queue: q.ID, Priority: normalPriority})
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for q := range d.queues {
		i, ok := slices.BinarySearchFunc(states, q.target, func(s State, t Target) int {
			return cmp.Or(cmp.Compare(s.PID, t.PID), cmp.Compare(s.Queue, t.Queue))
		})
		if ok {
			states[i].Priority, states[i].Stopped = q.target.Priority, q.stoppedBy() != nil
		}
	}
	return states, nil
}
