package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// rounds is how often each phase of a case in rounds is measured, for a part of the length.
//
// A program that launches kernel by kernel is as fast as its CPU, whose speed changed by
// half between phases that were measured one after the other. In rounds such a change
// meets all phases.
const rounds = 5

// length returns how long one measurement of a case takes.
func (h *harness) length(c Case) time.Duration {
	if c.InRounds == nil {
		return h.Length
	}
	return h.Length / rounds
}

// roundPhase is a phase that is measured in each round.
type roundPhase struct {
	result     Phase
	online     []*client
	batchClass string // empty: the batch clients rest
}

// measureInRounds measures the phases alone, native, and that of the case's setup in turn,
// again and again, of which the first time does not count. The batch clients are the same in
// all of them; their class is set before each phase. The online clients of the setup are other
// processes than those of alone and native, and idle while those are measured.
func (t *trial) measureInRounds(ctx context.Context) error {
	if err := t.start(ctx, Setup{}, nil); err != nil {
		return err
	}
	if err := t.measureBatchAlone(ctx, &Phase{}); err != nil {
		return err
	}
	all, err := t.roundPhases(ctx)
	if err != nil {
		return err
	}
	for round := range 1 + rounds {
		for _, p := range all {
			part, err := t.measureRound(ctx, p)
			if err != nil {
				return fmt.Errorf("%s: %w", p.result.Name, err)
			}
			if round > 0 { // in the first one programs load what they need, and late entry learns
				p.result.merge(part)
			}
		}
	}
	for _, p := range all {
		t.add(p.result)
	}
	if last := all[len(all)-1]; last.batchClass == "batch" { // the clients of the setup are there
		if err := t.measureOnAndOff(ctx, t.c.InRounds.Name); err != nil {
			return err
		}
		if err := send("work", t.batch); err != nil {
			return err
		}
	}
	return t.measureThen(ctx, t.c.InRounds)
}

// roundPhases returns the phases of a round. With the daemon it starts the online clients of
// the setup. They are t.online from then on.
func (t *trial) roundPhases(ctx context.Context) (all []*roundPhase, err error) {
	situations := []string{""}
	if t.c.Random {
		situations = append(situations, randomArrivals)
	}
	add := func(name, batchClass string) {
		for _, s := range situations {
			all = append(all, &roundPhase{newPhase(name, s), t.online, batchClass})
		}
	}
	add(alone, "")
	add(native, "standard")
	if t.cannot(*t.c.InRounds) != "" {
		return all, nil
	}
	prepared, err := t.startLoads(ctx, *t.c.InRounds, nil, t.c.Online)
	if err != nil {
		return nil, err
	}
	t.idle, t.online = t.online, prepared
	add(t.c.InRounds.Name, "batch")
	return all, nil
}

// measureRound measures a phase once.
func (t *trial) measureRound(ctx context.Context, p *roundPhase) (part Phase, err error) {
	batch, command := t.batch, "work"
	part = p.result
	part.Online, part.Batch = nil, nil
	if p.batchClass == "" {
		batch, command = nil, "rest"
	}
	if p.batchClass != "" && t.Giveway != nil {
		for i, cl := range t.batch {
			if err := t.Giveway("set", cl.pid, "--class", p.batchClass, "--weight", fmt.Sprint(t.c.Batch[i].Weight)); err != nil {
				return part, fmt.Errorf("set %s (pid %d) to class %s: %w", cl.name, cl.pid, p.batchClass, err)
			}
		}
	}
	if err := errors.Join(send(command, t.batch), sleep(ctx, t.Adapt)); err != nil {
		return part, err
	}
	return part, t.run(ctx, &part, p.online, batch)
}

// merge adds another measurement of the same phase, of the same length.
func (p *Phase) merge(part Phase) {
	if p.Latency == nil && len(p.Batch) == 0 {
		part.parts = 1
		*p = part
		return
	}
	p.parts++
	mean := func(sum *float64, x float64) { *sum += (x - *sum) / float64(p.parts) }
	for i := range p.Online {
		o, other := &p.Online[i], &part.Online[i]
		o.SamplesUs = slices.Concat(o.SamplesUs, other.SamplesUs)
		o.Unanswered += other.Unanswered
		mean(&o.Rate, other.Rate)
	}
	for i := range p.Batch {
		mean(&p.Batch[i].Rate, part.Batch[i].Rate)
	}
	if p.Lost != nil && part.Lost != nil {
		mean(p.Lost, *part.Lost)
	}
	switch {
	case p.Late == nil:
		p.Late = part.Late
	case part.Late != nil:
		p.Late.add(*part.Late)
	}
	for i := range p.Online {
		p.Online[i].summarize()
	}
	p.sum()
}
