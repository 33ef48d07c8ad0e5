package nvidia_test

import (
	"errors"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/internal/nvidia"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"github.com/giveway/giveway/sched"
)

// harness drives the backend on a resource manager that decodes the driver's
// bytes, with a simulated GPU behind it.
type harness struct {
	*nvrmtest.Harness
	device   *nvidia.Device
	contexts map[sched.QueueID]nvrmtest.Context
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	h, err := nvrmtest.NewHarness("nvidia-h200")
	if err != nil {
		t.Fatal(err)
	}
	return &harness{h, nvidia.New("GPU-test", "NVIDIA H200"), map[sched.QueueID]nvrmtest.Context{}}
}

func (h *harness) Device() hal.Attacher { return h.device }

func (h *harness) Open() hal.Spec {
	p, err := h.Harness.Open()
	if err != nil {
		panic(err)
	}
	id := sched.QueueID(len(h.contexts) + 1)
	h.contexts[id] = p.Context
	h.device.Offer(id, nvidia.Target{
		File: p.File.Copy(), Client: p.Client, Group: p.Compute.Group, Subdevice: p.Subdevice, Channels: p.Compute.Channels,
	})
	return hal.Spec{Queue: id}
}

func (h *harness) Submit(s hal.Spec, d time.Duration) { h.Harness.Submit(h.contexts[s.Queue], d) }
func (h *harness) Completed(s hal.Spec) uint64        { return h.Harness.Completed(h.contexts[s.Queue]) }
func (h *harness) Unit() time.Duration                { return 10 * time.Millisecond }

func TestConformance(t *testing.T) {
	haltest.Run(t, func(t *testing.T) haltest.Harness { return newHarness(t) })
}

// TestOnlyWhatIsProvedIsClaimed: a driver that refuses a thing gets a queue that
// does not claim it, and one that answers strangely is not written to at all.
func TestOnlyWhatIsProvedIsClaimed(t *testing.T) {
	refuse := nvrmtest.Fault{Status: nvrm.ErrInsufficientPermissions}
	for _, tt := range []struct {
		name  string
		fault map[uint32]nvrmtest.Fault
		can   sched.Ability
		fails bool
	}{
		{name: "everything", can: sched.CanSlice | sched.CanInterrupt},
		{"no slices", map[uint32]nvrmtest.Fault{nvrmtest.SetTimeslice: refuse}, sched.CanInterrupt, false},
		{"no interrupts", map[uint32]nvrmtest.Fault{nvrmtest.DisableChannels: refuse}, sched.CanSlice, false},
		{"neither", map[uint32]nvrmtest.Fault{nvrmtest.SetTimeslice: refuse, nvrmtest.DisableChannels: refuse}, 0, false},
		{"cannot be read", map[uint32]nvrmtest.Fault{nvrmtest.GetTimeslice: refuse}, 0, true},
		{"gone", map[uint32]nvrmtest.Fault{nvrmtest.GetInfo: {Status: nvrm.ErrInvalidObjectHandle}}, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHarness(t)
			spec := h.Open()
			for cmd, f := range tt.fault {
				h.RM().Inject(nvrmtest.Control(cmd), f)
			}
			before := h.RM().Calls(nvrmtest.Control(nvrmtest.SetTimeslice)) + h.RM().Calls(nvrmtest.Control(nvrmtest.DisableChannels))
			q, err := h.Device().Attach(spec)
			if tt.fails {
				writes := h.RM().Calls(nvrmtest.Control(nvrmtest.SetTimeslice)) + h.RM().Calls(nvrmtest.Control(nvrmtest.DisableChannels))
				if err == nil || writes != before {
					t.Errorf("error %v, %d writes", err, writes-before)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := hal.Abilities(q); got != tt.can {
				t.Errorf("it claims to %v, want %v", got, tt.can)
			}
		})
	}
}

// TestChannelsOfOthers: of a group whose channels are not its process's own, an MPS
// server's, only the slice is claimed.
func TestChannelsOfOthers(t *testing.T) {
	h := newHarness(t)
	p, err := h.Harness.Open()
	if err != nil {
		t.Fatal(err)
	}
	h.device.Offer(9, nvidia.Target{File: p.File.Copy(), Client: p.Client, Group: p.Compute.Group, Subdevice: p.Subdevice})
	q, err := h.device.Attach(hal.Spec{Queue: 9})
	if err != nil {
		t.Fatal(err)
	}
	if got := hal.Abilities(q); got != sched.CanSlice {
		t.Errorf("it claims to %v", got)
	}
}

// TestWhatIsGoneIsSaidToBe: the scheduler is told that a queue is no more, and not
// that it should try again.
func TestWhatIsGoneIsSaidToBe(t *testing.T) {
	h := newHarness(t)
	q, err := h.Device().Attach(h.Open())
	if err != nil {
		t.Fatal(err)
	}
	h.RM().Inject(nvrmtest.Control(nvrmtest.SetTimeslice), nvrmtest.Fault{Status: nvrm.ErrInvalidClient})
	if err := q.(hal.Slicer).SetSlice(sched.MinSlice); !errors.Is(err, hal.ErrGone) {
		t.Errorf("got %v", err)
	}
	h.RM().Inject(nvrmtest.Control(nvrmtest.SetTimeslice), nvrmtest.Fault{Status: nvrm.ErrTimeout})
	err = q.(hal.Slicer).SetSlice(sched.MinSlice)
	if got := hal.Outcome(err); got != sched.Refused {
		t.Errorf("a call that timed out came out as %v", got)
	}
}
