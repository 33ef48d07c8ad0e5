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
// are rounds. The two halves of the requests are those of two phases.
func (t *trial) measureOnAndOff(ctx context.Context, name string) error {
	with, without := newPhase(name, onAndOff), newPhase(alone, onAndOff)
	for round := range rounds {
		on := round%2 == 0 // in the first window
		a, b, err := t.runOnAndOff(ctx, on)
		if err != nil {
			return fmt.Errorf("%s: %w", with.Name, err)
		}
		if !on {
			a, b = b, a
		}
		with.mergeOnline(a)
		without.mergeOnline(b)
	}
	t.add(without)
	t.add(with)
	return nil
}

// mergeOnline adds requests of online clients.
func (p *Phase) mergeOnline(online []OnlineResult) {
	part := Phase{Name: p.Name, Situation: p.Situation, Online: online}
	part.sum()
	p.merge(part)
}

// runOnAndOff runs the online clients once. In every other window the batch clients work. It
// returns the requests of the first and third window, and those of the others.
func (t *trial) runOnAndOff(ctx context.Context, on bool) (odd, even []OnlineResult, err error) {
	t.showProgress(t.c, "measuring with batch work on and off")
	if err := errors.Join(send(workOrRest(on), t.batch), sleep(ctx, t.Settle), send("start", t.online)); err != nil {
		return nil, nil, err
	}
	window := t.length(t.c) / windows
	for range windows - 1 {
		on = !on
		if err := errors.Join(sleep(ctx, window), send(workOrRest(on), t.batch)); err != nil {
			return nil, nil, err
		}
	}
	for _, cl := range t.online {
		a, err := cl.samples(ctx, t.length(t.c)+grace)
		if err != nil {
			return nil, nil, err
		}
		if len(a.ArrivedUs) != len(a.SamplesUs) {
			return nil, nil, cl.error("does not say when requests arrived")
		}
		first, second := a.split(window)
		odd, even = append(odd, newOnlineResult(cl.name, first)), append(even, newOnlineResult(cl.name, second))
	}
	return odd, even, nil
}

func workOrRest(work bool) string {
	if work {
		return "work"
	}
	return "rest"
}

// split returns the requests of the first, third, ... window and those of the others. Requests that
// are not within one window, or arrive just after it begins, are in neither.
func (a *Answered) split(window time.Duration) (odd, even *Answered) {
	guard := min(maxGuard, window/4)
	took := windows / 2 * (window - guard)
	parts := [2]*Answered{{Took: took}, {Took: took}}
	for i, us := range a.SamplesUs {
		arrived := time.Duration(a.ArrivedUs[i] * 1e3)
		n := arrived / window
		begin := n * window
		if arrived < begin+guard || arrived+time.Duration(us*1e3) > begin+window || n >= windows {
			continue
		}
		part := parts[n%2]
		part.SamplesUs = append(part.SamplesUs, us)
	}
	return parts[0], parts[1]
}
