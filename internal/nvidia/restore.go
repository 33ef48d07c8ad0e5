package nvidia

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/discover"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/sched"
)

// handoffState is what the guardian needs to restore a group.
type handoffState struct {
	Client    nvrm.Handle   `json:"client"`
	Group     nvrm.Handle   `json:"group"`
	Subdevice nvrm.Handle   `json:"subdevice"`
	Channels  []nvrm.Handle `json:"channels"`
	Found     time.Duration `json:"found_ns"` // the slice to restore
}

// Adopt implements hal.Adopter.
func (b *Backend) Adopt(state json.RawMessage, fd int) (hal.Queue, error) {
	f := nvrm.NewFile(fd)
	var s handoffState
	if err := json.Unmarshal(state, &s); err != nil {
		return nil, errors.Join(fmt.Errorf("state of a channel group: %w", err), f.Close())
	}
	t := target{File: f, Client: s.Client, Group: s.Group, Subdevice: s.Subdevice, Channels: s.Channels}
	return adopt(t, s.Found), nil
}

// RestoreAll implements hal.Restorer. It lets every compute group run, with the slice that
// CUDA sets, for the case that the daemon and its guardian were both killed. After an error
// some groups may not be restored.
func (b *Backend) RestoreAll(ctx context.Context) (hal.Restored, error) {
	var r hal.Restored
	ctx, stop := context.WithCancel(ctx) // ends discovery when we return early
	defer stop()
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
		changed, err := restoreGroup(ev.Found)
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
func restoreGroup(g *discover.Group) (changed bool, err error) {
	t := target{File: g.File, Client: g.Client, Group: g.Handle, Subdevice: g.Subdevice, Channels: g.Channels}
	q := adopt(t, defaultSlice)
	defer func() { _ = hal.Abandon(q) }()
	slice, err := nvrm.Group{File: g.File, Client: g.Client, Handle: g.Handle}.Timeslice()
	if err == nil && slice != defaultSlice {
		changed = true
		err = hal.Do(q, sched.Action{Verb: sched.SetSlice})
	}
	return changed, errors.Join(err, hal.Start(q, sched.LevelInterrupt))
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
