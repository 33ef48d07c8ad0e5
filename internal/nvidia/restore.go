package nvidia

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/discover"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/proc"
)

// Adopt implements hal.Adopter.
func (b *Backend) Adopt(state json.RawMessage, fd int) (hal.Queue, error) {
	g := &group{file: nvrm.NewFile(fd)}
	if err := json.Unmarshal(state, g); err != nil {
		return nil, errors.Join(fmt.Errorf("state of a channel group: %w", err), g.file.Close())
	}
	return g, nil
}

// Reopen implements hal.Reopener. The journal has the handles, so nothing is guessed.
func (b *Backend) Reopen(p proc.ID, state json.RawMessage) (hal.Queue, error) {
	g := &group{}
	if err := json.Unmarshal(state, g); err != nil {
		return nil, fmt.Errorf("state of a channel group: %w", err)
	}
	file, err := discover.Open(b.cfg.discover(), p, discover.Key{Client: g.Client, Handle: g.Handle})
	if err != nil {
		return nil, err
	}
	g.file = file
	return g, nil
}

// RestoreAll implements hal.Restorer. It lets every compute group run, with the slice that
// CUDA sets, for the case that the daemon and its guardian were both killed. After an error
// some groups may not be restored.
func (b *Backend) RestoreAll(ctx context.Context) (hal.Restored, error) {
	var r hal.Restored
	ctx, stop := context.WithCancel(ctx) // ends discovery when we return early
	defer stop()
	claimed, err := claim(b.cfg.Control)
	if errors.Is(err, errClaimed) {
		return r, fmt.Errorf("%w, so nothing was changed; let it put everything back with 'giveway restore', or end it", err)
	}
	defer claimed.Close() // nil: an error
	c := b.cfg.discover()
	c.NoBPF, c.Once = true, true
	w, err := discover.Watch(ctx, c)
	if err != nil {
		return r, err
	}
	var errs []error
	for ev := range w.Events() {
		if ev.Found == nil {
			continue
		}
		if s := b.driver.state(); !s.mayChange() {
			_ = ev.Found.File.Close()
			return r, fmt.Errorf("NVIDIA driver %s is unknown and its self-test failed, so nothing is changed: %w", s.Version, s.selfTest)
		}
		r.Queues++
		changed, err := restoreGroup(newGroup(ev.Found))
		if changed {
			r.Slices++
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("restore process %d: %w", ev.Found.Process.PID, err))
		}
	}
	if err := ctx.Err(); err != nil {
		errs = append(errs, fmt.Errorf("not all processes were looked at, %d compute groups were found: %w; run it again", r.Queues, err))
	}
	return r, errors.Join(errs...)
}

// restoreGroup lets one group run with the slice that CUDA sets. changed reports whether it
// had another one.
func restoreGroup(g *group) (changed bool, err error) {
	defer g.file.Close()
	slice, err := g.rm().Timeslice()
	if err == nil && slice != defaultSlice {
		changed = true
		err = g.SetSlice(defaultSlice)
	}
	return changed, errors.Join(err, g.Restore())
}

// Probe implements hal.Prober.
func (b *Backend) Probe(ctx context.Context) []hal.Check {
	driver, usable := b.driver.check()
	checks := []hal.Check{driver}
	if !usable {
		return checks
	}
	c := b.cfg.discover()
	c.Once = true
	w, err := discover.Watch(ctx, c)
	if err != nil {
		return append(checks, hal.Check{Name: "discovery", Detail: err.Error()})
	}
	for ev := range w.Events() {
		if ev.Found != nil {
			_ = ev.Found.File.Close()
		}
	}
	return append(checks, discoverChecks(w)...)
}
