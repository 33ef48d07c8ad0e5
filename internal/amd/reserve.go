package amd

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// A driver with our patch can keep hardware slots free of queues of low priority. It asks
// only when queues that were unmapped are mapped again, so the reservation keeps batch
// processes whose stop ends from taking the last slots of online ones. The driver ends it when the
// daemon closes the file or dies.

// Values of Config.OnlineSlots.
const (
	AutoSlots = 0  // as many as online processes have queues, at most half of the slots
	NoSlots   = -1 // none
)

// onlinePriority is the lowest KFD priority of queues that may use reserved slots. ROCm's
// own priorities are 0, 7 and 11; the shim gives online processes 11.
const onlinePriority = 8

// slotWait is how long the queues of a process wait for a slot that is not reserved. After
// that they are mapped all the same: no process may stay stopped, nor a part of it.
const slotWait = 200 * time.Millisecond

// reservation is what the daemon has reserved on a GPU.
type reservation struct {
	mu    sync.Mutex // held while the driver is called
	slots uint32     // in force
	err   error      // why that is not what was wanted
}

// reserve changes how many slots are reserved.
func (g *gpu) reserve(slots uint32) {
	r := &g.reservation
	r.mu.Lock()
	defer r.mu.Unlock()
	if slots != r.slots || r.err != nil {
		g.setReserved(slots)
	}
}

// setReserved calls the driver. g.reservation.mu is held.
func (g *gpu) setReserved(slots uint32) {
	r := &g.reservation
	if r.err = kfd.Reserve(g.driver.file, g.node.GPU, slots, onlinePriority); r.err == nil {
		r.slots = slots
	}
}

// withoutReservation calls do while nothing is reserved by the daemon. It reports whether
// something was: otherwise it does not call do.
func (g *gpu) withoutReservation(do func()) bool {
	r := &g.reservation
	r.mu.Lock()
	defer r.mu.Unlock()
	slots := r.slots
	if slots == 0 {
		return false
	}
	if g.setReserved(0); r.err != nil {
		return false
	}
	do()
	g.setReserved(slots)
	return true
}

// ReservedSlots implements hal.Reserving.
func (g *gpu) ReservedSlots() (reserved, total int) {
	r := &g.reservation
	r.mu.Lock()
	defer r.mu.Unlock()
	return int(r.slots), int(g.node.Slots)
}

// slotsFor returns how many slots to reserve if the online processes on a GPU have so many
// queues. At least one slot is always left to others.
func (d *driver) slotsFor(slots uint32, queues int) uint32 {
	switch {
	case slots == 0 || d.onlineSlots < 0:
		return 0
	case d.onlineSlots == AutoSlots:
		return min(uint32(queues), slots/2)
	}
	return min(uint32(d.onlineSlots), slots-1)
}

// reserveSlots reserves slots for the online processes that there are.
func (b *Backend) reserveSlots() {
	if b.driver.features.Batch != nil || b.driver.onlineSlots < 0 {
		return
	}
	online := make(map[uint32]int)
	b.mu.Lock()
	for _, p := range b.processes {
		for id, e := range p.entries {
			if p.settings.Attr.Class == sched.Online {
				online[id] += len(e.listed)
			}
		}
	}
	b.mu.Unlock()
	for id, g := range b.gpus {
		g.reserve(b.driver.slotsFor(g.node.Slots, online[id]))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.processes {
		for id, e := range p.entries {
			reserved := 0
			if p.settings.Attr.Class == sched.Online {
				reserved, _ = b.gpus[id].ReservedSlots()
			}
			if e.reserved != reserved && !b.stopping() {
				e.reserved = reserved
				e.handle.SetDetail(e.detail())
			}
		}
	}
}

// startIntoReserved maps queues that have waited long enough for a slot that is not reserved,
// and replaces their errors.
func (b *batchMethod) startIntoReserved(pid int, queues []*queue, errs []error) {
	late := make(map[*gpu][]*queue)
	index := make(map[*queue]int)
	for i, q := range queues {
		if q.waitedForSlot(errors.Is(errs[i], unix.ENOSPC)) {
			late[q.gpu] = append(late[q.gpu], q)
			index[q] = i
		}
	}
	for g, some := range late {
		g.withoutReservation(func() {
			for i, err := range b.remap(pid, some) {
				errs[index[some[i]]] = err
			}
		})
	}
}

// waitedForSlot notes whether the queue found no slot, and reports whether that is so for
// slotWait.
func (q *queue) waitedForSlot(none bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case !none:
		q.noSlotSince = time.Time{}
	case q.noSlotSince.IsZero():
		q.noSlotSince = time.Now()
	}
	return none && time.Since(q.noSlotSince) >= slotWait
}

// reservationCheck is the line of giveway doctor.
func (g *gpu) reservationCheck() hal.Check {
	c := hal.Check{Name: "AMD reservation of " + string(g.info.Device.ID), OK: true}
	r, d := &g.reservation, g.driver
	r.mu.Lock()
	slots, err := r.slots, r.err
	r.mu.Unlock()
	switch stock := d.features.Batch; {
	case d.onlineSlots < 0:
		c.Detail = "turned off by amd_online_slots: 0"
	case stock != nil && d.onlineSlots > 0:
		c.OK, c.Detail = false, fmt.Sprintf("amd_online_slots is %d, and slots cannot be reserved: %v", d.onlineSlots, stock)
		c.Fix = "use the patched driver (kernel/amdkfd), or remove amd_online_slots from the configuration"
	case stock != nil:
		c.Detail = fmt.Sprintf("not available, and not needed: %v", stock)
	case err != nil:
		c.OK, c.Detail = false, err.Error()
		c.Fix = "the daemon needs CAP_SYS_ADMIN, and no other program may have a reservation; amd_online_slots: 0 turns it off"
	default:
		c.Detail = fmt.Sprintf("%d of %d slots are kept free of batch work for online processes", slots, g.node.Slots)
	}
	return c
}
