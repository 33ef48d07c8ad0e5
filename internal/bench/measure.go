package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Names of phases, before the situation.
const (
	alone        = "alone"       // the first online client, then each kind of batch client
	onlineOnly   = "online only" // all online clients, if there are several
	native       = "native"      // all clients, without the daemon
	underGiveway = "giveway"     // classes set while the clients run
	underRun     = "giveway run" // clients with the shim
	sloOf5ms     = "SLO of 5 ms" // the same with an SLO
	mpsPriority  = "MPS with priority"
	lateEntry    = "late entry on"
	lateAuto     = "late entry auto"
	lateOff      = "late entry off"
	inPool       = "pool"
	inPoolSmall  = "pool of small jobs"

	inPoolPredicted = "pool, requests predicted"

	pausedPhase  = "paused"
	resumedPhase = "resumed"
)

// Situations of a phase. The zero value is the usual one: all clients, and the online
// ones with their own arrivals.
const (
	onlineIdle     = "online idle"
	randomArrivals = "random arrivals"
)

const (
	grace        = 30 * time.Second // for requests that wait at the end of a measurement
	startTimeout = 60 * time.Second
	torchTimeout = 300 * time.Second
	quitTimeout  = 5 * time.Second

	progressTimeout = 5 * time.Second // for progress that should have come in a measurement

	longestBatch = 5 * time.Second // of a measurement of batch clients only; their rates need no more
)

// trial is a case during its measurement.
type trial struct {
	*harness
	c             Case
	online, batch []*client
	idle          []*client // online clients of phases that are over
	aloneRates    []float64 // of the batch loads
	result        CaseResult
}

// measure runs one case. After a setup that fails it goes on with the next.
func (h *harness) measure(ctx context.Context, c Case) CaseResult {
	t := &trial{harness: h, c: c, aloneRates: make([]float64, len(c.Batch))}
	t.result = CaseResult{Name: c.Name, About: c.About, Light: c.Light, Mixed: c.mixed()}
	if c.Pause && h.Giveway == nil {
		return t.skipped(needsDaemon)
	}
	first := t.unprepared
	if c.InRounds != nil {
		first = t.measureInRounds
	}
	err := first(ctx)
	t.stop()
	if c.Torch && h.torch.cannotRun() != "" {
		return t.skipped(h.torch.problem)
	}
	for _, s := range c.Setups {
		if reason := h.cannot(s); reason != "" {
			t.result.Notes = append(t.result.Notes, s.Name+": not measured: "+reason)
		} else if e := t.prepared(ctx, s); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", s.Name, e))
		}
	}
	if err != nil {
		t.result.Error = err.Error()
		fmt.Fprintf(h.Log, "%s: %v\n", c.Name, err)
	}
	t.result.compare()
	t.result.judge(c.Targets)
	return t.result
}

func (t *trial) skipped(reason string) CaseResult {
	t.result.Skipped = reason
	fmt.Fprintf(t.Log, "%s: skipped: %s\n", t.c.Name, reason)
	return t.result
}

// unprepared measures clients that nothing was prepared for: alone, native, and with
// classes that are set while they run. The same processes run through all phases.
func (t *trial) unprepared(ctx context.Context) error {
	if err := t.start(ctx, Setup{}, nil); err != nil {
		return err
	}
	if err := t.measureAlone(ctx); err != nil {
		return err
	}
	if err := send("work", t.batch); err != nil {
		return err
	}
	if t.c.Pause {
		return t.pauseAndResume(ctx)
	}
	if err := t.together(ctx, native); err != nil || t.Giveway == nil || t.c.Prepared {
		return err
	}
	if err := t.classify(func(Load) bool { return true }); err != nil {
		return err
	}
	if err := sleep(ctx, t.Adapt); err != nil {
		return err
	}
	return t.together(ctx, underGiveway)
}

// measureAlone measures the first online client, then all online clients, and then each
// kind of batch client. The other clients rest.
func (t *trial) measureAlone(ctx context.Context) error {
	first, all, random := newPhase(alone, ""), newPhase(onlineOnly, ""), newPhase(alone, randomArrivals)
	if len(t.online) > 0 {
		if err := t.run(ctx, &first, t.online[:1], nil); err != nil {
			return err
		}
	}
	if len(t.online) > 1 {
		if err := t.run(ctx, &all, t.online, nil); err != nil {
			return err
		}
	}
	if t.c.Random {
		if err := t.run(ctx, &random, t.online[:1], nil); err != nil {
			return err
		}
	}
	if err := t.measureBatchAlone(ctx, &first); err != nil {
		return err
	}
	t.add(first)
	if len(t.online) > 1 {
		t.add(all)
	}
	if t.c.Random {
		t.add(random)
	}
	return nil
}

// measureBatchAlone measures each kind of batch client alone.
func (t *trial) measureBatchAlone(ctx context.Context, p *Phase) error {
	for i, cl := range t.batch {
		if like := t.c.firstLike(i); like < i {
			t.aloneRates[i] = t.aloneRates[like]
			continue
		}
		only := []*client{cl}
		if err := errors.Join(send("work", only), t.run(ctx, p, nil, only), send("rest", only)); err != nil {
			return err
		}
		t.aloneRates[i] = p.Batch[len(p.Batch)-1].Rate
	}
	return nil
}

// together measures all clients, in each situation of the case.
func (t *trial) together(ctx context.Context, name string) error {
	if t.c.Idle {
		if err := t.measurePhase(ctx, newPhase(name, onlineIdle), nil, t.batch); err != nil {
			return err
		}
	}
	if err := t.measurePhase(ctx, newPhase(name, ""), t.online, t.batch); err != nil {
		return err
	}
	if t.c.Random {
		return t.measurePhase(ctx, newPhase(name, randomArrivals), t.online, t.batch)
	}
	return nil
}

func (t *trial) measurePhase(ctx context.Context, p Phase, online, batch []*client) error {
	if err := t.run(ctx, &p, online, batch); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	t.add(p)
	return nil
}

func (t *trial) add(p Phase) {
	again := slices.ContainsFunc(t.result.Phases, func(q Phase) bool { return q.Name == p.Name })
	t.result.Phases = append(t.result.Phases, p)
	fmt.Fprintf(t.Log, "%s: %s\n", t.c.Name, p.line())
	if t.Traces == "" || t.Ask == nil {
		return
	}
	name := p.Name
	if again {
		name += fmt.Sprintf(" %d", len(t.result.Phases))
	}
	file := filepath.Join(t.Traces, fileName(t.c.Name, name))
	t.Ask("trace", "dump", "-o", file)
	if _, err := os.Stat(file); err != nil {
		t.result.Notes = append(t.result.Notes, p.Name+": no trace was written to "+file)
	}
}

// fileName returns the name of the trace of a phase.
func fileName(testCase, phase string) string {
	return strings.NewReplacer(" ", "-", ",", "").Replace(testCase+"-"+phase) + ".pftrace"
}

// run waits for the clients to settle, measures them, and adds the results to p.
func (t *trial) run(ctx context.Context, p *Phase, online, batch []*client) error {
	t.showProgress(t.c, "measuring "+p.Name)
	if err := sleep(ctx, t.Settle); err != nil {
		return err
	}
	start := "start"
	if p.Situation == randomArrivals {
		start = "start random"
	}
	before := t.counters(online)
	from := time.Now()
	if err := send(start, online); err != nil {
		return err
	}
	length := t.length(t.c)
	if len(online) == 0 {
		length = min(length, longestBatch)
	}
	if err := sleep(ctx, length); err != nil {
		return err
	}
	to := time.Now() // online clients may still have waiting requests
	for _, cl := range online {
		a, err := cl.samples(ctx, t.length(t.c)+grace)
		if err != nil {
			return err
		}
		a.skip(p.learn)
		p.Online = append(p.Online, newOnlineResult(cl.name, a))
	}
	for _, cl := range batch {
		r, err := cl.rate(from, to)
		if err != nil {
			return err
		}
		p.Batch = append(p.Batch, BatchResult{Name: cl.name, Rate: r, AloneRate: t.aloneRates[slices.Index(t.batch, cl)]})
	}
	t.counters(online).addTo(p, before)
	p.sum()
	return nil
}

// pauseAndResume measures the batch client while it is paused, and after.
func (t *trial) pauseAndResume(ctx context.Context) error {
	cl := t.batch[0]
	pause := time.Now()
	if err := t.Giveway("pause", cl.pid); err != nil {
		return fmt.Errorf("pause %d: %w", cl.pid, err)
	}
	t.result.Pause = &PauseResult{PauseCallUs: us(time.Since(pause))}
	if err := t.measurePhase(ctx, newPhase(pausedPhase, ""), nil, t.batch); err != nil {
		return errors.Join(err, t.Giveway("resume", cl.pid))
	}
	t.result.Pause.StoppedAfterUs = us(cl.lastCompletion().Sub(pause))
	resume := time.Now()
	if err := t.Giveway("resume", cl.pid); err != nil {
		return fmt.Errorf("resume %d: %w", cl.pid, err)
	}
	t.result.Pause.ResumeCallUs = us(time.Since(resume))
	return t.measurePhase(ctx, newPhase(resumedPhase, ""), nil, t.batch)
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
