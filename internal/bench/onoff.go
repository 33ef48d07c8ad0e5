package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// onAndOff is the situation in which the batch clients work and rest in turn while the online
// clients are measured. Requests of neighbouring windows meet the same CPU, whose speed
// changes too much from one second to the next for a comparison of phases.
const onAndOff = "batch on and off"

const (
	windows = 4 // in one run of the online clients

	// maxGuard is how long after a command batch clients begin or stop to work at the latest.
	// Requests that arrive before that do not count.
	maxGuard = 100 * time.Millisecond
)

// measureOnAndOff measures the online clients with the batch clients on and off, as often as there
// are rounds. The requests of all windows with batch work are one phase, those of the others
// another. The rounds of both are pairs of neighbouring windows.
func (t *trial) measureOnAndOff(ctx context.Context, name string) error {
	with, without := newPhase(name, onAndOff), newPhase(alone, onAndOff)
	var pairs struct{ with, without []RoundPart }
	for round := range rounds {
		on := round%2 == 0 // in the first window
		parts, err := t.runOnAndOff(ctx, on)
		if err != nil {
			return fmt.Errorf("%s: %w", with.Name, err)
		}
		for i, part := range parts {
			to := &without
			if on {
				to = &with
			}
			part.Name, part.Situation = to.Name, to.Situation
			to.merge(part)
			on = !on
			if i == 0 || part.Latency.Count == 0 || parts[i-1].Latency.Count == 0 {
				continue
			}
			a, b := parts[i-1].asRound(), part.asRound()
			if !on { // the second of them had batch work
				a, b = b, a
			}
			pairs.with, pairs.without = append(pairs.with, a), append(pairs.without, b)
		}
	}
	with.Rounds, without.Rounds = pairs.with, pairs.without
	t.add(without)
	t.add(with)
	return nil
}

// runOnAndOff runs the online clients once. In every other window the batch clients work.
func (t *trial) runOnAndOff(ctx context.Context, on bool) (parts [windows]Phase, err error) {
	t.showProgress(t.c, "measuring with batch work on and off")
	if err := errors.Join(send(workOrRest(on), t.batch), sleep(ctx, t.Settle), send("start", t.online)); err != nil {
		return parts, err
	}
	window := t.length(t.c) / windows
	for range windows - 1 {
		on = !on
		if err := errors.Join(sleep(ctx, window), send(workOrRest(on), t.batch)); err != nil {
			return parts, err
		}
	}
	for _, cl := range t.online {
		a, err := cl.samples(ctx, t.length(t.c)+grace)
		if err != nil {
			return parts, err
		}
		if len(a.ArrivedUs) != len(a.SamplesUs) {
			return parts, cl.error("does not say when requests arrived")
		}
		for i, part := range a.split(window) {
			parts[i].Online = append(parts[i].Online, newOnlineResult(cl.name, part))
		}
	}
	for i := range parts {
		parts[i].sum()
	}
	return parts, nil
}

func workOrRest(work bool) string {
	if work {
		return "work"
	}
	return "rest"
}

// split returns the requests of each window. Requests that are not within one window, or arrive just
// after it begins, are in none.
func (a *Answered) split(window time.Duration) (parts [windows]*Answered) {
	guard := min(maxGuard, window/4)
	for i := range parts {
		parts[i] = &Answered{Took: window - guard}
	}
	for i, us := range a.SamplesUs {
		arrived := time.Duration(a.ArrivedUs[i] * 1e3)
		n := arrived / window
		begin := n * window
		if arrived < begin+guard || arrived+time.Duration(us*1e3) > begin+window || n >= windows {
			continue
		}
		parts[n].SamplesUs = append(parts[n].SamplesUs, us)
	}
	return parts
}
