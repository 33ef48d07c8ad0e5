package nvrmtest_test

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/hal/haltest"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
	"github.com/giveway/giveway/sched"
)

// bed is a minimal backend on the harness. It takes the handles from the Process.
type bed struct {
	*nvrmtest.Harness
	*testing.T
	open []nvrmtest.Process
}

func (b *bed) Open() sched.QueueID {
	p, err := b.Harness.Open()
	if err != nil {
		b.Fatal(err)
	}
	b.open = append(b.open, p)
	return sched.QueueID(len(b.open))
}

func (b *bed) Submit(id sched.QueueID, d time.Duration) { b.Harness.Submit(b.open[id-1].Context, d) }

func (b *bed) Completed(id sched.QueueID) uint64          { return b.Harness.Completed(b.open[id-1].Context) }
func (b *bed) Device() hal.Device                         { return b }
func (b *bed) Attach(id sched.QueueID) (hal.Queue, error) { return queue{b.open[id-1]}, nil }
func (b *bed) Info() hal.Info {
	return hal.Info{Device: sched.Device{ID: "d0", Slice: 2048 * time.Microsecond}}
}

type queue struct{ nvrmtest.Process }

func (q queue) Interrupt() error { return q.disable(true) }
func (q queue) Restore() error   { return q.disable(false) }

func (q queue) disable(yes bool) error {
	return nvrm.DisableChannels(q.File, q.Client, q.Subdevice, q.Process.Compute.Channels, yes)
}

func (q queue) SetSlice(d time.Duration) error {
	if d == 0 {
		d = 2048 * time.Microsecond
	}
	return nvrm.Group{File: q.File, Client: q.Client, Handle: q.Compute.Group}.SetTimeslice(d)
}

func (q queue) Close() error {
	if err := q.SetSlice(0); err != nil {
		return err
	}
	return q.Restore()
}

// TestConformance checks that the double and its GPU pass the conformance suite with the
// calls that a backend makes.
func TestConformance(t *testing.T) {
	haltest.Run(t, func(t *testing.T) haltest.Harness {
		h, err := nvrmtest.NewHarness("nvidia-h200")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for _, v := range h.Violations() {
				t.Error(v)
			}
		})
		return &bed{Harness: h, T: t}
	})
}

// newProcess returns a harness with one process.
func newProcess(t *testing.T) (*nvrmtest.Harness, nvrmtest.Process) {
	t.Helper()
	h, err := nvrmtest.NewHarness("nvidia-h200")
	if err != nil {
		t.Fatal(err)
	}
	p, err := h.Open()
	if err != nil {
		t.Fatal(err)
	}
	return h, p
}

// TestGroupStopsWithItsLastChannel checks that a group is interrupted when its last channel
// is disabled, and restored when the first is enabled.
func TestGroupStopsWithItsLastChannel(t *testing.T) {
	h, p := newProcess(t)
	done := uint64(0)
	for _, tt := range []struct {
		channels []nvrm.Handle
		disable  bool
		runs     bool
	}{
		{p.Compute.Channels[:7], true, true},
		{p.Compute.Channels[7:], true, false},
		{p.Copies[0].Channels, false, false},
		{p.Compute.Channels[3:4], false, true},
	} {
		if err := nvrm.DisableChannels(p.File, p.Client, p.Subdevice, tt.channels, tt.disable); err != nil {
			t.Fatal(err)
		}
		h.Submit(p.Context, h.Unit())
		h.Advance(10 * h.Unit())
		now := h.Completed(p.Context)
		if (now > done) != tt.runs {
			t.Errorf("%v disabled %v: completed %d, before %d, want it to run: %v", tt.channels, tt.disable, now, done, tt.runs)
		}
		done = now
	}
	if err := p.File.Close(); err != nil {
		t.Error(err)
	}
	h.Advance(h.Unit())
}

// TestLatencyIsVirtual checks that a slow call takes simulated time and no real time.
func TestLatencyIsVirtual(t *testing.T) {
	h, p := newProcess(t)
	h.RM().Inject(nvrmtest.Control(nvrmtest.GetTimeslice), nvrmtest.Fault{Latency: time.Hour})
	h.Submit(p.Context, time.Minute)
	if _, err := (nvrm.Group{File: p.File, Client: p.Client, Handle: p.Compute.Group}).Timeslice(); err != nil {
		t.Fatal(err)
	}
	if n := h.Completed(p.Context); n != 1 {
		t.Errorf("completed: got %d, want 1", n)
	}
}
