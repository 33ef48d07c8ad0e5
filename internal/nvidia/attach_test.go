package nvidia

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"github.com/giveway/giveway/sched"
)

// groups is the part of a harness that attaches groups.
type groups map[sched.QueueID]*group

func (gs groups) Device() hal.Device { return &gpu{info: deviceInfo(testGPU, "NVIDIA H200", 0)} }

func (gs groups) Attach(id sched.QueueID) (hal.Queue, error) {
	g := gs[id]
	attached := group{file: g.file, Client: g.Client, Handle: g.Handle, Subdevice: g.Subdevice, Channels: g.Channels, Found: g.Found}
	return attached.attach()
}

// harness runs attach on the driver double with a simulated GPU.
type harness struct {
	*nvrmtest.Harness
	groups
	contexts map[sched.QueueID]nvrmtest.Context
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	h, err := nvrmtest.NewHarness("nvidia-h200")
	if err != nil {
		t.Fatal(err)
	}
	return &harness{h, groups{}, map[sched.QueueID]nvrmtest.Context{}}
}

func (h *harness) Open() sched.QueueID {
	p, err := h.Harness.Open()
	if err != nil {
		panic(err)
	}
	id := sched.QueueID(len(h.contexts) + 1)
	h.contexts[id] = p.Context
	h.groups[id] = &group{
		file: p.File.Copy(), Client: p.Client, Handle: p.Compute.Group, Subdevice: p.Subdevice, Channels: p.Compute.Channels,
	}
	return id
}

func (h *harness) Submit(id sched.QueueID, d time.Duration) { h.Harness.Submit(h.contexts[id], d) }
func (h *harness) Completed(id sched.QueueID) uint64        { return h.Harness.Completed(h.contexts[id]) }

func TestConformance(t *testing.T) {
	haltest.Run(t, func(t *testing.T) haltest.Harness { return newHarness(t) })
}

// TestAttachClaimsOnlyWhatItProved checks that a queue does not claim what the driver
// refuses, and that a group which looks wrong is not written to.
func TestAttachClaimsOnlyWhatItProved(t *testing.T) {
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
			id := h.Open()
			for cmd, f := range tt.fault {
				h.RM().Inject(nvrmtest.Control(cmd), f)
			}
			before := writes(h.RM())
			q, err := h.Attach(id)
			if tt.fails {
				if n := writes(h.RM()) - before; err == nil || n != 0 {
					t.Errorf("got error %v and %d writes, want an error and none", err, n)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := hal.Abilities(q); got != tt.can {
				t.Errorf("abilities: got %v, want %v", got, tt.can)
			}
		})
	}
}

// TestStopThatCannotBeRolledBackIsPartial: the driver fails to disable the channels of a group, and
// then to enable them, so that some may be disabled. If it permits neither, none is. Only a group
// that cannot be looked up either is gone.
func TestStopThatCannotBeRolledBackIsPartial(t *testing.T) {
	for _, tt := range []struct {
		status nvrm.Status
		freed  bool
		want   sched.Outcome
	}{
		{nvrm.ErrTimeout, false, sched.Partial},
		{nvrm.ErrInsufficientPermissions, false, sched.Unsupported},
		{nvrm.ErrInvalidClient, true, sched.Gone},
		{nvrm.ErrInvalidChannel, true, sched.Gone},
		{nvrm.ErrObjectNotFound, false, sched.Partial}, // the subdevice
		{nvrm.ErrInvalidChannel, false, sched.Partial},
	} {
		h := newHarness(t)
		q, err := h.Attach(h.Open())
		if err != nil {
			t.Fatal(err)
		}
		h.RM().Inject(nvrmtest.Control(nvrmtest.DisableChannels), nvrmtest.Fault{Status: tt.status})
		if tt.freed {
			h.RM().Inject(nvrmtest.Control(nvrmtest.GetHandleInfo), nvrmtest.Fault{Status: nvrm.ErrObjectNotFound})
		}
		if err := q.(hal.Interrupter).Interrupt(); hal.Outcome(err) != tt.want {
			t.Errorf("%v, group freed %v: got %v, outcome %v; want %v", tt.status, tt.freed, err, hal.Outcome(err), tt.want)
		}
	}
}

// TestGoneGroupIsReportedAsGone checks the outcomes of a call on a group that no longer
// exists and of one that timed out.
func TestGoneGroupIsReportedAsGone(t *testing.T) {
	h := newHarness(t)
	q, err := h.Attach(h.Open())
	if err != nil {
		t.Fatal(err)
	}
	h.RM().Inject(nvrmtest.Control(nvrmtest.SetTimeslice), nvrmtest.Fault{Status: nvrm.ErrInvalidClient})
	if err := q.(hal.Slicer).SetSlice(sched.MinSlice); !errors.Is(err, hal.ErrGone) {
		t.Errorf("unknown client: got %v, want hal.ErrGone", err)
	}
	h.RM().Inject(nvrmtest.Control(nvrmtest.SetTimeslice), nvrmtest.Fault{Status: nvrm.ErrTimeout})
	if got := hal.Outcome(q.(hal.Slicer).SetSlice(sched.MinSlice)); got != sched.Refused {
		t.Errorf("timeout: got outcome %v, want %v", got, sched.Refused)
	}
}

// TestLeftoverSliceIsNotRestored checks that a slice too short to share the GPU, which an
// earlier program left behind, is taken for the default.
func TestLeftoverSliceIsNotRestored(t *testing.T) {
	h := newHarness(t)
	p, err := h.Harness.Open()
	if err != nil {
		t.Fatal(err)
	}
	g := nvrm.Group{File: p.File, Client: p.Client, Handle: p.Compute.Group}
	for _, tt := range []struct{ slice, earlier, want time.Duration }{
		{3 * time.Millisecond, 0, 3 * time.Millisecond},
		{time.Microsecond, 0, defaultSlice},
		{time.Microsecond, 5 * time.Millisecond, 5 * time.Millisecond},
	} {
		if err := g.SetTimeslice(tt.slice); err != nil {
			t.Fatal(err)
		}
		g := group{file: p.File.Copy(), Client: p.Client, Handle: p.Compute.Group, Subdevice: p.Subdevice, Found: tt.earlier}
		if _, err := g.attach(); g.Found != tt.want || err != nil {
			t.Errorf("slice %v, earlier %v: got %v, %v; want %v", tt.slice, tt.earlier, g.Found, err, tt.want)
		}
	}
}

// TestTransientErrors checks which answers to a trial call may be others later. EPERM and ENOTTY are
// those of sandboxes that filter the driver's calls.
func TestTransientErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nvrm.ErrBusyRetry, true},
		{nvrm.ErrTimeout, true},
		{nvrm.ErrNoMemory, true},
		{nvrm.ErrNotSupported, false},
		{nvrm.ErrInsufficientPermissions, false},
		{nvrm.ErrInvalidArgument, false},
		{nvrm.ErrInvalidObjectHandle, false},
		{syscall.EINTR, true},
		{syscall.EAGAIN, true},
		{syscall.EBUSY, true},
		{syscall.ETIMEDOUT, true},
		{syscall.ENOMEM, true},
		{syscall.EIO, true},
		{syscall.EPERM, false},
		{syscall.ENOTTY, false},
		{syscall.EINVAL, false},
		{errNoChannels, false},
	} {
		err := classify(fmt.Errorf("set slice: %w", c.err))
		if got := isTransient(err); got != c.want {
			t.Errorf("%v: transient %v, want %v", c.err, got, c.want)
		}
		gone := errors.Is(err, hal.ErrGone)
		if supported, left := isSupported(err); supported || (left != nil) != (c.want || gone) {
			t.Errorf("%v: supported %v, error %v", c.err, supported, left)
		}
	}
}
