package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia"
	"github.com/giveway/giveway/internal/nvidia/discover"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// What can be done where no daemon runs.

// How long discovery may take, which is much longer than it mostly does: to find all
// there is, and to find out how it gets on.
const (
	lookEverywhere = 30 * time.Second
	lookAround     = 700 * time.Millisecond
)

func everywhere() discover.Config {
	c := discover.Config{Only: proc.Everyone, NoBPF: true, Once: true}
	if os.Geteuid() != 0 {
		c.Only = os.Geteuid()
	}
	return c
}

// RestoreAll puts every compute group that can be reached back as CUDA makes
// them, and says how many it let run and how many of those had another slice: for
// when a daemon and its guardian were both killed, and nobody knows any more what
// was found. Where it returns an error some may not be as counted.
func RestoreAll(ctx context.Context) (groups, slices int, err error) {
	return restoreAll(ctx, everywhere())
}

func restoreAll(ctx context.Context, where discover.Config) (groups, slices int, err error) {
	ctx, stop := context.WithTimeout(ctx, lookEverywhere)
	defer stop()
	w, err := discover.Watch(ctx, where)
	if err != nil {
		return 0, 0, err
	}
	var errs []error
	for ev := range w.Events() {
		if ev.Found == nil {
			continue
		}
		groups++
		did, err := restoreGroup(ev.Found)
		if did {
			slices++
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("process %d: %w", ev.Found.Process.PID, err))
		}
	}
	if ctx.Err() != nil {
		errs = append(errs, fmt.Errorf("there may be more than the %d compute groups that were found: %w; run it again", groups, ctx.Err()))
	}
	return groups, slices, errors.Join(errs...)
}

// restoreGroup lets one group run, with a slice that is CUDA's unless it has one
// that somebody may have wanted.
func restoreGroup(g *discover.Group) (changed bool, err error) {
	t := nvidia.Target{File: g.File, Client: g.Client, Group: g.Handle, Subdevice: g.Subdevice, Channels: g.Channels}
	q := nvidia.Adopt(t, nvidia.DefaultSlice)
	defer func() { _ = hal.Abandon(q) }()
	slice, err := nvrm.Group{File: g.File, Client: g.Client, Handle: g.Handle}.Timeslice()
	if err == nil && slice != nvidia.DefaultSlice {
		changed = true
		err = hal.Do(q, sched.Action{Verb: sched.SetSlice})
	}
	return changed, errors.Join(err, hal.Start(q, sched.LevelInterrupt))
}

// LocalChecks says what a daemon would find here.
func LocalChecks() []api.Check {
	ctx, stop := context.WithTimeout(context.Background(), lookAround)
	defer stop()
	c := everywhere()
	c.NoBPF = false
	w, err := discover.Watch(ctx, c)
	if err != nil {
		return append(localAMD(amd.Config{}), api.Check{Name: "discovery", Detail: err.Error()})
	}
	for ev := range w.Events() {
		if ev.Found != nil {
			_ = ev.Found.File.Close()
		}
	}
	var checks []api.Check
	for _, c := range w.Checks() {
		checks = append(checks, api.Check{Name: c.Name, OK: c.OK, Detail: c.Detail, Fix: c.Fix})
	}
	return append(checks, localAMD(amd.Config{})...)
}
