package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Names of phases.
const (
	alone        = "alone"       // the first online client, then the first batch client
	onlineOnly   = "online only" // all online clients, if there are several
	native       = "native"      // all clients, without the daemon
	nativeIdle   = "native, online idle"
	underGiveway = "giveway"
	givewayIdle  = "giveway, online idle"
	pausedPhase  = "paused"
	resumedPhase = "resumed"
)

const (
	grace        = 30 * time.Second // for requests that wait at the end of a measurement
	startTimeout = 60 * time.Second
	torchTimeout = 300 * time.Second
	quitTimeout  = 5 * time.Second
)

// trial is a case during its measurement.
type trial struct {
	*harness
	c             Case
	online, batch []*client
	result        CaseResult
}

// measure runs one case. Its clients run through all phases.
func (h *harness) measure(ctx context.Context, c Case) CaseResult {
	t := &trial{harness: h, c: c, result: CaseResult{Name: c.Name, About: c.About}}
	switch {
	case c.Torch && h.noTorch != "":
		t.result.Skipped = h.noTorch
	case c.Pause && h.Giveway == nil:
		t.result.Skipped = "needs the daemon: run with --giveway"
	}
	if t.result.Skipped != "" {
		fmt.Fprintf(h.Log, "%s: skipped: %s\n", c.Name, t.result.Skipped)
		return t.result
	}
	err := t.phases(ctx)
	for _, cl := range slices.Concat(t.online, t.batch) {
		cl.stop()
	}
	if err != nil {
		t.result.Error = err.Error()
		fmt.Fprintf(h.Log, "%s: %v\n", c.Name, err)
	}
	t.result.compare()
	return t.result
}

func (t *trial) phases(ctx context.Context) error {
	if err := t.measureAlone(ctx); err != nil {
		return err
	}
	if t.c.Pause {
		return t.pauseAndResume(ctx)
	}
	if err := t.start(ctx, t.c.Batch[len(t.batch):], "be", &t.batch); err != nil {
		return err
	}
	if err := t.together(ctx, native, nativeIdle); err != nil {
		return err
	}
	if t.Giveway == nil {
		return nil
	}
	// Online clients first: the daemon does not schedule batch clients without them.
	for i, cl := range slices.Concat(t.online, t.batch) {
		l := slices.Concat(t.c.Online, t.c.Batch)[i]
		if err := t.Giveway("set", cl.pid, "--class", l.Class, "--weight", fmt.Sprint(l.Weight)); err != nil {
			return fmt.Errorf("set %s (pid %d) to class %s, weight %d: %w", l.Name, cl.pid, l.Class, l.Weight, err)
		}
	}
	return t.together(ctx, underGiveway, givewayIdle)
}

// start starts a client for each load, one after the other, and appends it to to.
func (t *trial) start(ctx context.Context, loads []Load, kind string, to *[]*client) error {
	timeout := startTimeout
	if t.c.Torch {
		timeout = torchTimeout
	}
	for _, l := range loads {
		cl, _, err := startClient(ctx, l.Name, t.argv(t.c, l, kind), timeout)
		if err != nil {
			return fmt.Errorf("start %s: %w", l.Name, err)
		}
		*to = append(*to, cl)
	}
	return nil
}

// measureAlone measures the first online client, then all online clients, before any
// batch client is started, and then the first batch client.
func (t *trial) measureAlone(ctx context.Context) error {
	if err := t.start(ctx, t.c.Online, "lc", &t.online); err != nil {
		return err
	}
	first, all := Phase{Name: alone}, Phase{Name: onlineOnly}
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
	if err := t.start(ctx, t.c.Batch[:1], "be", &t.batch); err != nil {
		return err
	}
	if err := t.run(ctx, &first, nil, t.batch); err != nil {
		return err
	}
	t.add(first)
	if len(t.online) > 1 {
		t.add(all)
	}
	return nil
}

// together measures all clients. If several batch clients share the GPU, it first
// measures them while the online clients are idle.
func (t *trial) together(ctx context.Context, name, idle string) error {
	if len(t.online) > 0 && len(t.batch) > 1 {
		if err := t.measurePhase(ctx, idle, nil, t.batch); err != nil {
			return err
		}
	}
	return t.measurePhase(ctx, name, t.online, t.batch)
}

func (t *trial) measurePhase(ctx context.Context, name string, online, batch []*client) error {
	p := Phase{Name: name}
	if err := t.run(ctx, &p, online, batch); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	t.add(p)
	return nil
}

func (t *trial) add(p Phase) {
	t.result.Phases = append(t.result.Phases, p)
	fmt.Fprintf(t.Log, "%s: %s\n", t.c.Name, p.line())
}

// run waits for the clients to settle, measures them, and adds the results to p.
func (t *trial) run(ctx context.Context, p *Phase, online, batch []*client) error {
	if err := sleep(ctx, t.Settle); err != nil {
		return err
	}
	from := time.Now()
	for _, cl := range online {
		if err := cl.send("start"); err != nil {
			return err
		}
	}
	if err := sleep(ctx, t.Length); err != nil {
		return err
	}
	to := time.Now() // online clients may still have waiting requests
	for _, cl := range online {
		a, err := cl.samples(ctx, t.Length+grace)
		if err != nil {
			return err
		}
		p.Online = append(p.Online, newOnlineResult(cl.name, a))
	}
	for _, cl := range batch {
		r, err := cl.rate(from, to)
		if err != nil {
			return err
		}
		p.Batch = append(p.Batch, BatchResult{Name: cl.name, Rate: r})
	}
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
	if err := t.measurePhase(ctx, pausedPhase, nil, t.batch); err != nil {
		return errors.Join(err, t.Giveway("resume", cl.pid))
	}
	t.result.Pause.StoppedAfterUs = us(cl.lastCompletion().Sub(pause))
	resume := time.Now()
	if err := t.Giveway("resume", cl.pid); err != nil {
		return fmt.Errorf("resume %d: %w", cl.pid, err)
	}
	t.result.Pause.ResumeCallUs = us(time.Since(resume))
	return t.measurePhase(ctx, resumedPhase, nil, t.batch)
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
