// Package haltest is the conformance suite for device backends. Every backend runs it, the
// simulator included, so that a simulated queue keeps the same promises as a real one.
package haltest

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// Harness is what the test of a backend supplies.
type Harness interface {
	// Device returns the device of the queues. It may be a hal.Batcher.
	Device() hal.Device
	// Open starts a process with one queue.
	Open() sched.QueueID
	// Attach attaches a queue as the backend does.
	Attach(sched.QueueID) (hal.Queue, error)
	// Submit adds a command that takes about so long alone.
	Submit(sched.QueueID, time.Duration)
	// Completed returns how many commands are done.
	Completed(sched.QueueID) uint64
	// Advance lets time pass: virtual time in the simulator, real time on hardware.
	Advance(time.Duration)
	// Unit returns a command length much longer than any control call.
	Unit() time.Duration
}

// Run checks the device of the Harness that newHarness returns. A test of an ability that
// the queue does not claim is skipped.
func Run(t *testing.T, newHarness func(*testing.T) Harness) {
	for _, tt := range []struct {
		name string
		need sched.Ability
		test func(*fixture)
	}{
		{"AttachChangesNothing", 0, attachChangesNothing},
		{"CloseUndoesEverything", 0, closeUndoesEverything},
		{"HoldStopsNewLaunches", sched.CanHold, holdStopsNewLaunches},
		{"DeactivateLetsOnlyTheRunningCommandFinish", sched.CanDeactivate, deactivateLetsOnlyTheRunningCommandFinish},
		{"InterruptStopsTheRunningCommand", sched.CanInterrupt, interruptStopsTheRunningCommand},
		{"InterruptedWorkIsNotRepeated", sched.CanInterrupt, interruptedWorkIsNotRepeated},
		{"DeviceTimeFollowsSlices", sched.CanSlice, deviceTimeFollowsSlices},
		{"MinSliceYieldsAtOnce", sched.CanSlice, minSliceYieldsAtOnce},
		{"SwitchStopsAndStarts", sched.CanInterrupt, switchStopsAndStarts},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &fixture{T: t, Harness: newHarness(t)}
			f.id, f.queue = f.attach()
			if got := hal.Abilities(f.queue); got&tt.need != tt.need {
				t.Skipf("the queue claims %q, not %q", got, tt.need)
			}
			tt.test(f)
		})
	}
	t.Run("StopTwiceEqualsOnce", func(t *testing.T) {
		for level := sched.LevelHold; level <= sched.LevelInterrupt; level++ {
			f := &fixture{T: t, Harness: newHarness(t)}
			f.id, f.queue = f.attach()
			if err := hal.Stop(f.queue, level); err != nil {
				if hal.Abilities(f.queue).Level() == level {
					t.Errorf("stop at level %d, which the queue claims: %v", level, err)
				}
				continue
			}
			f.check(hal.Stop(f.queue, level))
			f.check(hal.Start(f.queue, level))
			f.check(hal.Start(f.queue, level))
			f.Submit(f.id, f.Unit())
			f.wantCompleted(4, 1)
		}
	})
}

// fixture is a test with one queue attached.
type fixture struct {
	*testing.T
	Harness
	id    sched.QueueID
	queue hal.Queue
}

func (f *fixture) attach() (sched.QueueID, hal.Queue) {
	f.Helper()
	id := f.Open()
	q, err := f.Attach(id)
	f.check(err)
	return id, q
}

func (f *fixture) check(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// wantCompleted lets so many units of time pass and then wants n commands completed.
func (f *fixture) wantCompleted(units int, n uint64) {
	f.Helper()
	f.Advance(time.Duration(units) * f.Unit())
	if got := f.Completed(f.id); got != n {
		f.Fatalf("%d commands completed, want %d", got, n)
	}
}

func attachChangesNothing(f *fixture) {
	f.Submit(f.id, f.Unit())
	f.wantCompleted(4, 1)
}

func closeUndoesEverything(f *fixture) {
	level := hal.Abilities(f.queue).Level()
	if level == sched.LevelNone {
		f.Skip("the queue claims no way of being stopped")
	}
	f.check(hal.Stop(f.queue, level))
	if s, ok := f.queue.(hal.Slicer); ok {
		f.check(s.SetSlice(sched.MinSlice))
	}
	f.Submit(f.id, f.Unit())
	f.wantCompleted(4, 0)
	f.check(f.queue.Close())
	f.wantCompleted(4, 1)
}

func holdStopsNewLaunches(f *fixture) {
	f.check(hal.Stop(f.queue, sched.LevelHold))
	f.Submit(f.id, f.Unit())
	f.wantCompleted(4, 0)
	f.check(hal.Start(f.queue, sched.LevelHold))
	f.wantCompleted(4, 1)
}

func deactivateLetsOnlyTheRunningCommandFinish(f *fixture) {
	for range 4 {
		f.Submit(f.id, f.Unit())
	}
	f.Advance(f.Unit() / 2)
	f.check(hal.Stop(f.queue, sched.LevelDeactivate))
	f.wantCompleted(8, 1)
	f.check(hal.Start(f.queue, sched.LevelDeactivate))
	f.wantCompleted(8, 4)
}

func interruptStopsTheRunningCommand(f *fixture) {
	f.Submit(f.id, f.Unit())
	f.Advance(f.Unit() / 2)
	f.check(hal.Stop(f.queue, sched.LevelInterrupt))
	f.wantCompleted(8, 0)
	f.check(hal.Start(f.queue, sched.LevelInterrupt))
	f.wantCompleted(4, 1)
}

// interruptedWorkIsNotRepeated interrupts one command six times. If its progress were
// lost each time, it would not complete.
func interruptedWorkIsNotRepeated(f *fixture) {
	f.Submit(f.id, 8*f.Unit())
	for range 6 {
		f.Advance(f.Unit())
		f.check(hal.Stop(f.queue, sched.LevelInterrupt))
		f.Advance(f.Unit())
		f.check(hal.Start(f.queue, sched.LevelInterrupt))
	}
	f.wantCompleted(4, 1)
}

// deviceTimeFollowsSlices wants two saturating queues with slices of 3:1 to complete
// commands at that ratio.
func deviceTimeFollowsSlices(f *fixture) {
	id2, queue2 := f.attach()
	base := f.Device().Info().Device.Slice
	f.check(f.queue.(hal.Slicer).SetSlice(3 * base))
	f.check(queue2.(hal.Slicer).SetSlice(base))
	work := base / 16
	for range 8000 {
		f.Submit(f.id, work)
		f.Submit(id2, work)
	}
	f.Advance(100 * base)
	one, two := float64(f.Completed(f.id)), float64(f.Completed(id2))
	if ratio := one / two; ratio < 2.5 || ratio > 3.7 {
		f.Errorf("slices of 3:1: %.0f and %.0f commands completed, a ratio of %.1f", one, two, ratio)
	}
}

// minSliceYieldsAtOnce wants a short command beside a saturating queue at the minimum
// slice to complete within half of the device's default slice.
func minSliceYieldsAtOnce(f *fixture) {
	short, _ := f.attach()
	base := f.Device().Info().Device.Slice
	f.check(f.queue.(hal.Slicer).SetSlice(sched.MinSlice))
	f.Submit(f.id, 1000*base)
	f.Advance(10*base + base/3)
	f.Submit(short, base/100)
	f.Advance(base / 2)
	if f.Completed(short) != 1 {
		f.Errorf("a command of %v did not complete within %v", base/100, base/2)
	}
}

func switchStopsAndStarts(f *fixture) {
	batcher, ok := f.Device().(hal.Batcher)
	if !ok {
		f.Skip("the device is no hal.Batcher")
	}
	id2, queue2 := f.attach()
	f.check(hal.Stop(queue2, sched.LevelInterrupt))
	f.Submit(f.id, f.Unit())
	f.Submit(id2, f.Unit())
	f.Advance(f.Unit() / 4)
	for _, err := range batcher.Switch([]hal.Queue{f.queue}, []hal.Queue{queue2}) {
		f.check(err)
	}
	f.wantCompleted(4, 0)
	if got := f.Completed(id2); got != 1 {
		f.Errorf("the queue that was switched on completed %d commands, want 1", got)
	}
}
