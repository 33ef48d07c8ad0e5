package amd

import (
	"reflect"
	"strings"
	"testing"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/amd/kfd/kfdtest"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

func TestSlotUse(t *testing.T) {
	for want, u := range map[string]slotUse{
		"0 of 0 slots in use (0 %), 0 queues stopped":                                     {exact: true},
		"18 of 24 slots in use (75 %), 3 queues stopped":                                  {slots: 24, active: 18, stopped: 3, exact: true},
		"24 of 24 slots in use (100 %), 0 queues stopped":                                 {slots: 24, active: 24, exact: true},
		"at most 25 of 24 slots in use (100 %), 0 queues stopped: more queues than slots": {slots: 24, active: 25},
	} {
		if got := u.String(); got != want || u.oversubscribed() != strings.HasSuffix(want, "slots") {
			t.Errorf("got %q, oversubscribed %v; want %q", got, u.oversubscribed(), want)
		}
	}
}

// TestForeignReservation checks that a start is refused while another program has reserved
// the free slots for higher priorities, and that a bundle that is closed runs all the same.
func TestForeignReservation(t *testing.T) {
	node := kfdtest.MI300X
	node.Slots = 4
	h := newHarness(t, "amd-hws", kfdtest.Config{Patched: true, GPUs: []kfd.Node{node}}, nil)
	first, second := h.Open(), h.Open()
	q, err := h.Attach(first)
	check(t, err)
	_, err = h.Attach(second)
	check(t, err)
	check(t, hal.Stop(q, sched.LevelInterrupt))
	h.World.Start(5000, 0)
	other := h.KFD().Open(5000)
	check(t, kfdtest.Reserve(other, node.GPU, 3, 8)) // the queues have priority 7
	if err := hal.Start(q, sched.LevelInterrupt); hal.Outcome(err) != sched.Refused || !strings.Contains(err.Error(), "reserved") {
		t.Errorf("start: got %v, want it refused because of the reservation", err)
	}
	check(t, other.Close())
	check(t, hal.Start(q, sched.LevelInterrupt))
	check(t, hal.Stop(q, sched.LevelInterrupt))
	other = h.KFD().Open(5000)
	check(t, kfdtest.Reserve(other, node.GPU, 3, 8))
	_ = q.Close() // its error says that slots are reserved
	if !h.KFD().Active(h.queues[first]) {
		t.Error("the queue of a closed bundle is stopped")
	}
	check(t, other.Close())
}

func TestInversions(t *testing.T) {
	online := queueState{pid: 1, priority: 3, ready: true}
	batch := queueState{pid: 2, priority: 1, ready: true}
	idle := queueState{pid: 3, priority: 1}
	stopped := func(s queueState) queueState { s.stopped = true; return s }
	for _, tt := range []struct {
		name   string
		slots  uint32
		states []queueState
		want   []inversion
	}{
		{"no queues", 4, nil, nil},
		{"side by side", 4, []queueState{online, batch}, nil},
		{"batch is stopped", 4, []queueState{online, stopped(batch)}, nil},
		{"online is stopped", 4, []queueState{stopped(online), batch}, []inversion{{stopped(online), whyStopped, []queueState{batch}}}},
		{"online is stopped, batch has no work", 4, []queueState{stopped(online), idle}, nil},
		{"both are stopped", 4, []queueState{stopped(online), stopped(batch)}, nil},
		{"too few slots", 1, []queueState{online, batch}, []inversion{{online, whySharesSlots, []queueState{batch}}}},
		{"too few slots, batch has no work", 1, []queueState{online, idle}, []inversion{{online, whySharesSlots, []queueState{idle}}}},
		{"too few slots, batch is stopped", 1, []queueState{online, stopped(batch)}, nil},
		{"equal priorities", 1, []queueState{batch, {pid: 4, priority: 1, ready: true}}, nil},
		{"online has no work", 1, []queueState{{pid: 1, priority: 3, stopped: true}, batch}, nil},
	} {
		if got := inversions(tt.slots, tt.states); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
