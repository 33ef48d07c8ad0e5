// Package haltest is the conformance suite for device backends. Every backend
// runs it, the simulator included, so that what is proved of the simulator is
// proved of the same promises the hardware keeps.
package haltest

import (
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// Harness is what a backend's test supplies.
type Harness interface {
	Device() hal.Attacher
	// Open makes a program with one queue.
	Open() hal.Spec
	// Submit gives the queue one command that takes about so long alone.
	Submit(hal.Spec, time.Duration)
	// Completed counts the commands that are done.
	Completed(hal.Spec) uint64
	// Advance lets time pass: virtual in the simulator, real on hardware.
	Advance(time.Duration)
	// Unit is a command length much longer than any action takes here.
	Unit() time.Duration
}

// Run checks the device that make returns. What it does not claim is skipped;
// what it claims and breaks is a failure.
func Run(t *testing.T, make func(*testing.T) Harness) {
	for _, tt := range []struct {
		name string
		need sched.Ability
		test func(*bed)
	}{
		{"AttachChangesNothing", 0, attachChangesNothing},
		{"CloseUndoesEverything", 0, closeUndoesEverything},
		{"HoldStopsNewLaunches", sched.CanHold, holdStopsNewLaunches},
		{"DeactivateSparesOnlyTheRunning", sched.CanDeactivate, deactivateSparesOnlyTheRunning},
		{"InterruptFreezesTheRunning", sched.CanInterrupt, interruptFreezesTheRunning},
		{"InterruptedWorkIsNotRepeated", sched.CanInterrupt, interruptedWorkIsNotRepeated},
		{"SlicesAreWeights", sched.CanSlice, slicesAreWeights},
		{"LeastSliceGivesWay", sched.CanSlice, leastSliceGivesWay},
		{"SwitchDoesBothAtOnce", sched.CanInterrupt, switchDoesBothAtOnce},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := make(t)
			b := &bed{T: t, Harness: h}
			b.spec, b.queue = b.attach()
			if got := hal.Abilities(b.queue); got&tt.need != tt.need {
				t.Skipf("the queue does not claim to %v: it can %v", tt.need, got)
			}
			tt.test(b)
		})
	}
	t.Run("EveryStopTwiceEqualsOnce", func(t *testing.T) {
		for level := sched.LevelHold; level <= sched.LevelInterrupt; level++ {
			b := &bed{T: t, Harness: make(t)}
			b.spec, b.queue = b.attach()
			if hal.Stop(b.queue, level) != nil {
				if hal.Abilities(b.queue).Level() == level {
					t.Errorf("level %d is claimed and fails", level)
				}
				continue
			}
			b.check(hal.Stop(b.queue, level))
			b.check(hal.Start(b.queue, level))
			b.check(hal.Start(b.queue, level))
			b.Submit(b.spec, b.Unit())
			b.wait(4, 1)
		}
	})
}

// bed is a test with one queue attached.
type bed struct {
	*testing.T
	Harness
	spec  hal.Spec
	queue hal.Queue
}

func (b *bed) attach() (hal.Spec, hal.Queue) {
	b.Helper()
	spec := b.Open()
	q, err := b.Device().Attach(spec)
	b.check(err)
	return spec, q
}

func (b *bed) check(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// wait lets units pass and then wants n commands done.
func (b *bed) wait(units int, n uint64) {
	b.Helper()
	b.Advance(time.Duration(units) * b.Unit())
	if got := b.Completed(b.spec); got != n {
		b.Fatalf("%d commands done, want %d", got, n)
	}
}

func attachChangesNothing(b *bed) {
	b.Submit(b.spec, b.Unit())
	b.wait(4, 1)
}

func closeUndoesEverything(b *bed) {
	level := hal.Abilities(b.queue).Level()
	if level == sched.LevelNone {
		b.Skip("the queue cannot be stopped in any way")
	}
	b.check(hal.Stop(b.queue, level))
	if s, ok := b.queue.(hal.Slicer); ok {
		b.check(s.SetSlice(sched.MinSlice))
	}
	b.Submit(b.spec, b.Unit())
	b.wait(4, 0)
	b.check(b.queue.Close())
	b.wait(4, 1)
}

func holdStopsNewLaunches(b *bed) {
	b.check(hal.Stop(b.queue, sched.LevelHold))
	b.Submit(b.spec, b.Unit())
	b.wait(4, 0)
	b.check(hal.Start(b.queue, sched.LevelHold))
	b.wait(4, 1)
}

func deactivateSparesOnlyTheRunning(b *bed) {
	for range 4 {
		b.Submit(b.spec, b.Unit())
	}
	b.Advance(b.Unit() / 2)
	b.check(hal.Stop(b.queue, sched.LevelDeactivate))
	b.wait(8, 1)
	b.check(hal.Start(b.queue, sched.LevelDeactivate))
	b.wait(8, 4)
}

func interruptFreezesTheRunning(b *bed) {
	b.Submit(b.spec, b.Unit())
	b.Advance(b.Unit() / 2)
	b.check(hal.Stop(b.queue, sched.LevelInterrupt))
	b.wait(8, 0)
	b.check(hal.Start(b.queue, sched.LevelInterrupt))
	b.wait(4, 1)
}

// interruptedWorkIsNotRepeated: what was done before the interrupt is kept.
func interruptedWorkIsNotRepeated(b *bed) {
	b.Submit(b.spec, 8*b.Unit())
	for range 6 {
		b.Advance(b.Unit())
		b.check(hal.Stop(b.queue, sched.LevelInterrupt))
		b.Advance(b.Unit())
		b.check(hal.Start(b.queue, sched.LevelInterrupt))
	}
	b.wait(4, 1)
}

// slicesAreWeights: two saturating queues with slices of 3:1 are served so.
func slicesAreWeights(b *bed) {
	spec2, queue2 := b.attach()
	slicer := queue2.(hal.Slicer)
	base := b.Device().Info().Device.Slice
	b.check(b.queue.(hal.Slicer).SetSlice(3 * base))
	b.check(slicer.SetSlice(base))
	step := base / 16
	for range 8000 {
		b.Submit(b.spec, step)
		b.Submit(spec2, step)
	}
	b.Advance(100 * base)
	one, two := float64(b.Completed(b.spec)), float64(b.Completed(spec2))
	if ratio := one / two; ratio < 2.5 || ratio > 3.7 {
		b.Errorf("served %.0f:%.0f with slices of 3:1", one, two)
	}
}

// leastSliceGivesWay: a short command beside a saturating queue at the least
// slice is done in less than the slice that the queue would have had.
func leastSliceGivesWay(b *bed) {
	short, _ := b.attach()
	base := b.Device().Info().Device.Slice
	b.check(b.queue.(hal.Slicer).SetSlice(sched.MinSlice))
	b.Submit(b.spec, 1000*base)
	b.Advance(10*base + base/3)
	b.Submit(short, base/100)
	b.Advance(base / 2)
	if b.Completed(short) != 1 {
		b.Errorf("a command of %v was not done %v after it came", base/100, base/2)
	}
}

func switchDoesBothAtOnce(b *bed) {
	batcher, ok := b.Device().(hal.Batcher)
	if !ok {
		b.Skip("the device does not switch in batches")
	}
	spec2, queue2 := b.attach()
	b.check(hal.Stop(queue2, sched.LevelInterrupt))
	b.Submit(b.spec, b.Unit())
	b.Submit(spec2, b.Unit())
	b.Advance(b.Unit() / 4)
	for _, err := range batcher.Switch([]hal.Queue{b.queue}, []hal.Queue{queue2}) {
		b.check(err)
	}
	b.wait(4, 0)
	if b.Completed(spec2) != 1 {
		b.Error("the queue that was switched on did not run")
	}
}
