package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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
	result  Phase
	online  []*client
	working bool // the batch clients work; otherwise they rest
	managed bool // all clients have their classes; otherwise all have the class standard
}

// measureInRounds measures the phases alone, native, and that of the case's setup in turn,
// again and again. The batch clients are the same in all of them, and so are the online
// clients of a setup that nothing is prepared for; their classes are set before each phase. The
// online clients of another setup are other processes than those of alone and native, and idle
// while those are measured.
func (t *trial) measureInRounds(ctx context.Context) error {
	s := *t.c.InRounds
	managed := t.cannot(s) == ""
	var prepared []*client
	var all sync.WaitGroup
	var failed error
	if managed && s.Run != nil { // PyTorch clients take many seconds to start
		all.Go(func() { prepared, failed = t.startLoads(ctx, s, nil, t.c.Online) })
	}
	err := t.start(ctx, Setup{}, nil)
	all.Wait()
	if err := errors.Join(err, failed); err != nil {
		stopClients(prepared)
		return err
	}
	if len(prepared) > 0 {
		t.idle, t.online = t.online, prepared
	}
	first := newPhase(alone, "")
	if err := t.measureBatchAlone(ctx, &first); err != nil {
		return err
	}
	if len(t.online) == 0 {
		t.add(first)
	}
	phases := t.roundPhases(managed)
	for round := range 1 + rounds {
		for _, p := range phases {
			if round == 0 && (!p.managed || s.Run == nil) {
				continue
			}
			part, err := t.measureRound(ctx, p)
			if err != nil {
				return fmt.Errorf("%s: %w", p.result.Name, err)
			}
			if round > 0 { // before the first one the shim's late entry learns
				p.result.merge(part)
			}
		}
	}
	for _, p := range phases {
		t.add(p.result)
	}
	if len(prepared) == 0 {
		return nil
	}
	if err := t.measureOnAndOff(ctx, s.Name); err != nil {
		return err
	}
	if err := send("work", t.batch); err != nil {
		return err
	}
	return t.measureThen(ctx, &s)
}

// roundPhases returns the phases of a round. Without the daemon there is none of the setup.
func (t *trial) roundPhases(managed bool) (all []*roundPhase) {
	situations := []string{""}
	if t.c.Random {
		situations = append(situations, randomArrivals)
	}
	plain := t.online
	if len(t.idle) > 0 {
		plain = t.idle
	}
	add := func(p roundPhase, name string) {
		for _, s := range situations {
			q := p
			q.result = newPhase(name, s)
			all = append(all, &q)
		}
	}
	if len(plain) > 0 {
		add(roundPhase{online: plain}, alone)
	}
	add(roundPhase{online: plain, working: true}, native)
	if managed {
		add(roundPhase{online: t.online, working: true, managed: true}, t.c.InRounds.Name)
	}
	return all
}

// measureRound measures a phase once.
func (t *trial) measureRound(ctx context.Context, p *roundPhase) (part Phase, err error) {
	batch := t.batch
	part = p.result
	part.Online, part.Batch, part.Rounds = nil, nil, nil
	if !p.working {
		batch = nil
	}
	if p.working && t.Giveway != nil {
		if err := t.classifyAs(p.managed); err != nil {
			return part, err
		}
	}
	if err := send(workOrRest(p.working), t.batch); err != nil {
		return part, err
	}
	if p.managed {
		if err := sleep(ctx, t.Adapt); err != nil {
			return part, err
		}
	}
	return part, t.run(ctx, &part, p.online, batch)
}

// classifyAs sets the classes of the clients: their own, or standard. The online clients of a setup
// have had theirs from the start.
func (t *trial) classifyAs(managed bool) error {
	return t.classifyWith(func(l Load) (class string, chosen bool) {
		chosen = l.Class != "online" || t.c.InRounds.Run == nil
		if managed {
			return l.Class, chosen
		}
		return "standard", chosen
	})
}

// merge adds another measurement of the same phase, of the same length.
func (p *Phase) merge(part Phase) {
	parts := append(p.Rounds, part.asRound())
	if p.Latency == nil && len(p.Batch) == 0 {
		*p = part
		p.Rounds = parts
		return
	}
	p.Rounds = parts
	mean := func(sum *float64, x float64) { *sum += (x - *sum) / float64(len(parts)) }
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
	switch {
	case p.Ahead == nil:
		p.Ahead = part.Ahead
	case part.Ahead != nil:
		p.Ahead.add(*part.Ahead)
	}
	for i := range p.Online {
		p.Online[i].summarize()
	}
	p.sum()
}

func (p *Phase) asRound() RoundPart {
	r := RoundPart{Batch: p.BatchRate}
	if p.Latency != nil {
		r.P50, r.P99 = p.Latency.P50, p.Latency.P99
	}
	return r
}
