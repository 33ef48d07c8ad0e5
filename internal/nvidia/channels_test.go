package nvidia

import (
	"encoding/json"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/sched"
)

// freeChannel frees the last channel of the group, as the process would.
func (m made) freeChannel(t *testing.T) {
	t.Helper()
	if err := nvrm.Free(m.file, m.Client, m.Compute.Group, m.Compute.Channels[7]); err != nil {
		t.Fatal(err)
	}
}

// TestGroupWithAFreedChannelIsStillControlled: a process frees one of the channels of its group,
// which has the minimum slice. The group is stopped and started without that channel, and the
// journal keeps its slice.
func TestGroupWithAFreedChannelIsStillControlled(t *testing.T) {
	b, h, made, rm := newOnDouble(t, &fakeHost{})
	now := time.Now()
	b.arrived(made.group(t, 8), now)
	b.offerDue(now.Add(settleTime))
	q := h.open()[0].queue
	var j journal.Journal
	do := func(a sched.Action) {
		t.Helper()
		a.Queue = 1
		j.Begin(a)
		err := hal.Do(q, a)
		j.End(a, hal.Outcome(err))
		if err != nil {
			t.Errorf("%v: %v", a.Verb, err)
		}
	}
	do(sched.Action{Verb: sched.SetSlice, Slice: sched.MinSlice})
	made.freeChannel(t)
	for _, verb := range []sched.Verb{sched.Stop, sched.Start, sched.Stop} {
		do(sched.Action{Verb: verb, Level: sched.LevelInterrupt})
		for _, c := range made.Compute.Channels[:7] {
			if got, want := rm.Disabled(made.Client, c), verb == sched.Stop; got != want {
				t.Errorf("%v: channel %v disabled: got %v, want %v", verb, c, got, want)
			}
		}
	}
	if got, want := j.Of(1), (journal.Change{Level: sched.LevelInterrupt, Sliced: true}); got != want {
		t.Errorf("journal: got %+v, want %+v", got, want)
	}
}

// TestStopOfNoChannelsIsRefused: all known channels of a living group were freed. A stop would
// have no effect; a start has nothing to undo.
func TestStopOfNoChannelsIsRefused(t *testing.T) {
	b, h, made, _ := newOnDouble(t, &fakeHost{})
	now := time.Now()
	b.arrived(made.group(t, 8), now)
	b.offerDue(now.Add(settleTime))
	q := h.open()[0].queue.(hal.Interrupter)
	for _, c := range made.Compute.Channels {
		if err := nvrm.Free(made.file, made.Client, made.Compute.Group, c); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Interrupt(); hal.Outcome(err) != sched.Refused {
		t.Errorf("stop: got %v, outcome %v; want %v", err, hal.Outcome(err), sched.Refused)
	}
	if err := q.Restore(); err != nil {
		t.Errorf("start: %v", err)
	}
}

// adopt returns a queue as the guardian has it.
func (m made) adopt(t *testing.T, b *Backend, q *fakeQueue) hal.Queue {
	t.Helper()
	state, err := json.Marshal(q.offer.Handoff.State)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Dup(m.file.Fd())
	if err != nil {
		t.Fatal(err)
	}
	adopted, err := b.Adopt(state, fd)
	if err != nil {
		t.Fatal(err)
	}
	return adopted
}

// TestGuardianStartsAGroupWithAFreedChannel: a channel of a stopped group is freed before the
// guardian undoes the stop. All others are enabled.
func TestGuardianStartsAGroupWithAFreedChannel(t *testing.T) {
	for name, undo := range map[string]func(hal.Queue) error{
		"start": func(q hal.Queue) error { return hal.Start(q, sched.LevelInterrupt) },
		"close": hal.Queue.Close,
	} {
		t.Run(name, func(t *testing.T) {
			b, h, made, rm := newOnDouble(t, &fakeHost{})
			now := time.Now()
			b.arrived(made.group(t, 8), now)
			b.offerDue(now.Add(settleTime))
			q := h.open()[0]
			if err := q.queue.(hal.Interrupter).Interrupt(); err != nil {
				t.Fatal(err)
			}
			made.freeChannel(t)
			if err := undo(made.adopt(t, b, q)); err != nil {
				t.Error(err)
			}
			for _, c := range made.Compute.Channels[:7] {
				if rm.Disabled(made.Client, c) {
					t.Errorf("channel %v is still disabled", c)
				}
			}
		})
	}
}
