package hal_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// calls is a queue that can do everything and lists the calls.
type calls struct{ made []string }

func (c *calls) call(name string) error         { c.made = append(c.made, name); return nil }
func (c *calls) Close() error                   { return c.call("close") }
func (c *calls) SetSlice(d time.Duration) error { return c.call("slice " + d.String()) }
func (c *calls) Deactivate() error              { return c.call("deactivate") }
func (c *calls) Reactivate() error              { return c.call("reactivate") }
func (c *calls) Interrupt() error               { return c.call("interrupt") }
func (c *calls) Restore() error                 { return c.call("restore") }
func (c *calls) Hold() error                    { return c.call("hold") }
func (c *calls) Release() error                 { return c.call("release") }
func (c *calls) SetBound(uint32) error          { return c.call("bound") }

// closer hides everything but Close.
type closer struct{ hal.Queue }

// TestCombinedQueueCanDoWhatEitherCan: a queue behind a gate claims what the queue alone can do
// besides being held and bounded, neither more nor less, and each call reaches the right one.
func TestCombinedQueueCanDoWhatEitherCan(t *testing.T) {
	q := &calls{}
	c := closer{q}
	for _, hardware := range []hal.Queue{
		c,
		struct {
			closer
			hal.Slicer
		}{c, q},
		struct {
			closer
			hal.Deactivator
		}{c, q},
		struct {
			closer
			hal.Interrupter
		}{c, q},
		struct {
			closer
			hal.Slicer
			hal.Deactivator
		}{c, q, q},
		struct {
			closer
			hal.Slicer
			hal.Interrupter
		}{c, q, q},
		struct {
			closer
			hal.Deactivator
			hal.Interrupter
		}{c, q, q},
		struct {
			closer
			hal.Slicer
			hal.Deactivator
			hal.Interrupter
		}{c, q, q, q},
	} {
		can := hal.Abilities(hardware)
		gate := &calls{}
		q.made = nil
		both := hal.Combine(hardware, gate)
		if got, want := hal.Abilities(both), can|sched.CanHold|sched.CanBound; got != want {
			t.Errorf("a queue that can do %q: got %q behind a gate, want %q", can, got, want)
		}
		var want []string
		do := func(needs sched.Ability, what string, a sched.Action) {
			t.Helper()
			err := hal.Do(both, a)
			if can&needs == 0 {
				if !errors.Is(err, hal.ErrNotSupported) {
					t.Errorf("a queue that can do %q: %s: got %v, want %v", can, what, err, hal.ErrNotSupported)
				}
				return
			}
			if want = append(want, what); err != nil {
				t.Errorf("a queue that can do %q: %s: got %v", can, what, err)
			}
		}
		do(sched.CanSlice, "slice 1ms", sched.Action{Verb: sched.SetSlice, Slice: time.Millisecond})
		do(sched.CanDeactivate, "deactivate", sched.Action{Verb: sched.Stop, Level: sched.LevelDeactivate})
		do(sched.CanDeactivate, "reactivate", sched.Action{Verb: sched.Start, Level: sched.LevelDeactivate})
		do(sched.CanInterrupt, "interrupt", sched.Action{Verb: sched.Stop, Level: sched.LevelInterrupt})
		do(sched.CanInterrupt, "restore", sched.Action{Verb: sched.Start, Level: sched.LevelInterrupt})
		held := errors.Join(hal.Stop(both, sched.LevelHold), hal.Start(both, sched.LevelHold), hal.Do(both, sched.Action{Verb: sched.SetBound}), both.Close())
		if wantGate := []string{"hold", "release", "bound", "close"}; held != nil || !slices.Equal(gate.made, wantGate) {
			t.Errorf("a queue that can do %q: got %v at the gate, %v; want %v", can, gate.made, held, wantGate)
		}
		if want = append(want, "close"); !slices.Equal(q.made, want) {
			t.Errorf("a queue that can do %q: got calls %v, want %v", can, q.made, want)
		}
	}
}
