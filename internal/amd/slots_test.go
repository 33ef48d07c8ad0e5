package amd_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		u           amd.Usage
		utilisation float64
		over        bool
		free        uint32
	}{
		{amd.Usage{}, 0, false, 0},
		{amd.Usage{Slots: 24}, 0, false, 24},
		{amd.Usage{Slots: 24, Active: 18}, 0.75, false, 6},
		{amd.Usage{Slots: 24, Active: 24}, 1, false, 0},
		{amd.Usage{Slots: 24, Active: 25}, 1, true, 0},
		{amd.Usage{Active: 1}, 0, true, 0},
	} {
		if got := tt.u.Utilisation(); got != tt.utilisation || tt.u.Oversubscribed() != tt.over || tt.u.Free() != tt.free {
			t.Errorf("%v: %v, %v, %d", tt.u, got, tt.u.Oversubscribed(), tt.u.Free())
		}
	}
}

// TestReservation: low priorities leave the reserved slots free, in user space and
// in the driver alike, and nobody who is given up stays stopped for it.
func TestReservation(t *testing.T) {
	for _, patched := range []bool{false, true} {
		gpu := kfdtest.MI300X
		gpu.Slots = 4
		h := newHarness(t, "amd-hws", kfdtest.Config{Patched: patched, GPUs: []kfd.Node{gpu}})
		var ids []kfdtest.QueueID
		var queues []hal.Queue
		for range 4 {
			id, q := h.attach()
			ids, queues = append(ids, id), append(queues, q)
		}
		for _, bad := range []amd.Reservation{{Slots: 4, Priority: 8}, {Slots: 1, Priority: 16}} {
			if h.device.Reserve(bad) == nil {
				t.Errorf("%+v is taken", bad)
			}
		}
		if err := h.device.Reserve(amd.Reservation{Slots: 2, Priority: 8}); err != nil {
			t.Fatal(err)
		}
		for i, err := range h.device.Switch(queues, nil) {
			if err != nil {
				t.Fatal(i, err)
			}
		}
		// Two slots are for priority 8 and above, and all of these have 7.
		for i, q := range queues {
			err := hal.Start(q, sched.LevelInterrupt)
			if (err == nil) != (i < 2) || err != nil && (!errors.Is(err, amd.ErrNoSlot) || hal.Outcome(err) != sched.Refused) {
				t.Errorf("patched %v, queue %d: %v", patched, i, err)
			}
			if h.KFD().Active(ids[i]) != (i < 2) {
				t.Errorf("patched %v, queue %d runs: %v", patched, i, i >= 2)
			}
		}
		if u, err := h.device.Usage(); err != nil || u.Active != 2 || u.Stopped != 2 || u.Reserved != 2 || u.Slots != 4 {
			t.Errorf("patched %v: %v, %v", patched, u, err)
		}
		if err := queues[2].Close(); err != nil || !h.KFD().Active(ids[2]) {
			t.Errorf("patched %v: given up, it runs %v, %v", patched, h.KFD().Active(ids[2]), err)
		}
		if err := h.device.Reserve(amd.Reservation{}); err != nil {
			t.Fatal(err)
		}
		if err := hal.Start(queues[3], sched.LevelInterrupt); err != nil {
			t.Errorf("patched %v: nothing is reserved any more: %v", patched, err)
		}
	}
}

// TestHigherPriorityIsAdmitted: what the slots are reserved for gets them.
func TestHigherPriorityIsAdmitted(t *testing.T) {
	r := amd.Reservation{Slots: 2, Priority: 8}
	for _, tt := range []struct {
		slots, low, priority uint32
		want                 bool
	}{
		{4, 0, 7, true}, {4, 1, 7, true}, {4, 2, 7, false}, {4, 4, 7, false}, {4, 4, 8, true}, {2, 0, 0, false}, {0, 0, 15, true},
	} {
		if got := r.Admits(tt.slots, tt.low, tt.priority); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
	if !(amd.Reservation{}).Admits(1, 100, 0) {
		t.Error("nothing is reserved, and it is refused")
	}
}

func TestInversions(t *testing.T) {
	online := amd.State{PID: 1, Priority: 11, Ready: true}
	batch := amd.State{PID: 2, Priority: 7, Ready: true}
	idle := amd.State{PID: 3, Priority: 7}
	off := func(s amd.State) amd.State { s.Stopped = true; return s }
	for _, tt := range []struct {
		name   string
		slots  uint32
		states []amd.State
		want   []amd.Inversion
	}{
		{"nobody", 4, nil, nil},
		{"side by side", 4, []amd.State{online, batch}, nil},
		{"batch gave way", 4, []amd.State{online, off(batch)}, nil},
		{"online is stopped", 4, []amd.State{off(online), batch}, []amd.Inversion{{off(online), amd.HeldStopped, []amd.State{batch}}}},
		{"online is stopped, nobody works", 4, []amd.State{off(online), idle}, nil},
		{"all are stopped", 4, []amd.State{off(online), off(batch)}, nil},
		{"too few slots", 1, []amd.State{online, batch}, []amd.Inversion{{online, amd.SharesSlots, []amd.State{batch}}}},
		{"too few slots, with an idle queue", 1, []amd.State{online, idle}, []amd.Inversion{{online, amd.SharesSlots, []amd.State{idle}}}},
		{"too few slots, batch gave way", 1, []amd.State{online, off(batch)}, nil},
		{"equals", 1, []amd.State{batch, {PID: 4, Priority: 7, Ready: true}}, nil},
		{"online has nothing to do", 1, []amd.State{{PID: 1, Priority: 11, Stopped: true}, batch}, nil},
	} {
		if got := amd.Inversions(tt.slots, tt.states); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
