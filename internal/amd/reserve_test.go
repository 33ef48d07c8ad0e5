package amd

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

func TestSlotsFor(t *testing.T) {
	for _, c := range []struct {
		configured    int
		slots, queues uint32
		want          uint32
	}{
		{AutoSlots, 24, 0, 0},
		{AutoSlots, 24, 3, 3},
		{AutoSlots, 24, 100, 12},
		{AutoSlots, 1, 1, 0},
		{AutoSlots, 0, 5, 0},
		{NoSlots, 24, 3, 0},
		{6, 24, 0, 6}, // also without online processes
		{100, 24, 0, 23},
		{6, 0, 0, 0},
	} {
		d := &driver{onlineSlots: c.configured}
		if got := d.slotsFor(c.slots, int(c.queues)); got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
	}
}

// TestOwnReservation checks that a process whose stop ends waits for a slot that is not
// reserved, for slotWait at most, and that the reservation is in force again after that.
func TestOwnReservation(t *testing.T) {
	node := kfdtest.MI300X
	node.Slots = 4
	h := newHarness(t, "amd-hws", kfdtest.Config{Patched: true, GPUs: []kfd.Node{node}}, nil)
	first, second := h.Open(), h.Open()
	q, err := h.Attach(first)
	check(t, err)
	_, err = h.Attach(second)
	check(t, err)
	check(t, hal.Stop(q, sched.LevelInterrupt))
	h.gpu.reserve(3) // the queues have priority 7, and one of them runs
	if reserved, total := h.gpu.ReservedSlots(); reserved != 3 || total != 4 {
		t.Errorf("got %d of %d slots reserved, want 3 of 4", reserved, total)
	}
	began := time.Now()
	err = hal.Start(q, sched.LevelInterrupt)
	if hal.Outcome(err) != sched.Refused || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("start: got %v, want it refused because of the reservation", err)
	}
	for err != nil && time.Since(began) < time.Minute {
		time.Sleep(time.Millisecond)
		err = hal.Start(q, sched.LevelInterrupt)
	}
	if took := time.Since(began); err != nil || took < slotWait {
		t.Errorf("got %v after %v, want it started after %v", err, took, slotWait)
	}
	if !h.KFD().Active(h.queues[first]) || !strings.Contains(h.KFD().Left(), "reserved") {
		t.Errorf("got %q, want the queue running and the slots reserved", h.KFD().Left())
	}
	check(t, hal.Stop(q, sched.LevelInterrupt))
	if err := hal.Start(q, sched.LevelInterrupt); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("start after a start: got %v, want it to wait again", err)
	}
	h.gpu.reserve(0)
	check(t, hal.Start(q, sched.LevelInterrupt))
	if left := h.KFD().Left(); strings.Contains(left, "reserved") {
		t.Errorf("got %q, want no reservation", left)
	}
}

// TestReservationCheck checks what doctor says on a stock and on a patched driver.
func TestReservationCheck(t *testing.T) {
	for _, c := range []struct {
		patched, other bool
		configured     int
		ok             bool
		detail         string
	}{
		{false, false, AutoSlots, true, "not available, and not needed: the driver does not have the batch ioctls"},
		{false, false, 4, false, "amd_online_slots is 4, and slots cannot be reserved: the driver does not have the batch ioctls: it is a stock driver"},
		{false, false, NoSlots, true, "turned off"},
		{true, false, AutoSlots, true, "2 of 24 slots are kept free"},
		{true, false, NoSlots, true, "turned off"},
		{true, true, 4, false, "reserve 2 slots of GPU 51545: device or resource busy"},
	} {
		h := newHarness(t, "amd-hws", kfdtest.Config{Patched: c.patched}, nil)
		h.driver.onlineSlots = c.configured
		if c.other {
			h.World.Start(5000, 0)
			f := h.KFD().Open(5000)
			check(t, kfdtest.Reserve(f, h.gpu.node.GPU, 3, 8))
			defer f.Close()
		}
		if c.patched && c.configured >= 0 {
			h.gpu.reserve(2)
		}
		got := h.gpu.reservationCheck()
		if got.OK != c.ok || !strings.Contains(got.Detail, c.detail) || !c.ok && got.Fix == "" {
			t.Errorf("%+v: got %+v", c, got)
		}
	}
}
