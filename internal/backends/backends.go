// Package backends names every backend there is. A new vendor is one package and one
// line in the table below; nothing else in the daemon knows it.
package backends

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/shim"
	"github.com/giveway/giveway/internal/sim/live"
)

// options is what a backend is made with.
type options struct {
	uid    int // find the processes of this user only, or of proc.Everyone
	config config.Config
	gates  *shim.Backend // nil: processes cannot be asked to stop their own queues
	log    *slog.Logger
}

// entry makes one backend. left is not empty if the configuration leaves the backend
// out, and then says so.
type entry struct {
	name string
	make func(options) hal.Backend
	left func(config.Config) string
}

// table names the vendors' backends. The shim is not among them: New makes it first,
// because vendors' backends may use it.
var table = []entry{
	{
		name: "NVIDIA",
		make: func(o options) hal.Backend {
			return nvidia.New(nvidia.Config{Only: o.uid, NoTrace: o.config.NoTrace, Log: o.log})
		},
		left: func(c config.Config) string {
			if c.NoNVIDIA {
				return "nvidia: false"
			}
			return ""
		},
	},
	{
		name: "AMD",
		make: newAMD,
		left: func(c config.Config) string {
			if c.NoAMD {
				return "amd: false"
			}
			return ""
		},
	},
}

// newAMD makes the AMD backend. A process that loaded the shim can stop its own queues,
// where the driver lets no other process do it.
func newAMD(o options) hal.Backend {
	cfg := amd.Config{Only: o.uid, Log: o.log}
	if o.gates != nil {
		cfg.Shim = func(pid int) amd.Shim {
			if g := o.gates.GateOf(pid); g != nil {
				return g
			}
			return nil
		}
	}
	return amd.New(cfg)
}

// New makes the backends of a daemon. The checks say which of them the configuration
// leaves out.
func New(cfg config.Config, uid int, log *slog.Logger) ([]hal.Backend, []hal.Check, error) {
	gates, err := shim.New(uid)
	if err != nil {
		return nil, nil, err
	}
	all := []hal.Backend{gates}
	var notes []hal.Check
	for _, e := range table {
		if why := e.left(cfg); why != "" {
			notes = append(notes, hal.Check{
				Name: e.name, OK: true, Detail: "the configuration says " + why + ": only processes that loaded the shim are controlled",
			})
			continue
		}
		all = append(all, e.make(options{uid, cfg, gates, log}))
	}
	return all, notes, nil
}

// Simulated returns a function like New for a daemon whose only backend is the simulator,
// running a scenario file at so many simulated seconds per second.
func Simulated(file string, speed float64) func(config.Config, int, *slog.Logger) ([]hal.Backend, []hal.Check, error) {
	return func(config.Config, int, *slog.Logger) ([]hal.Backend, []hal.Check, error) {
		s, err := scenario.Load(file)
		if err != nil {
			return nil, nil, err
		}
		b, err := live.New(s, live.Options{Speed: speed})
		if err != nil {
			return nil, nil, err
		}
		return []hal.Backend{b}, nil, nil
	}
}

// unstarted returns the vendors' backends, made for the processes that this user may
// control, to be used without a daemon.
func unstarted() (all []hal.Backend) {
	uid := proc.Everyone
	if os.Geteuid() != 0 {
		uid = os.Geteuid()
	}
	for _, e := range table {
		all = append(all, e.make(options{uid: uid, log: slog.New(slog.DiscardHandler)}))
	}
	return all
}

// Adopt takes over a queue in the guardian process: see guardian.Adopter.
func Adopt(found json.RawMessage, fd int) (hal.Queue, error) {
	var a struct {
		Backend string          `json:"backend"`
		State   json.RawMessage `json:"state"`
	}
	if err := json.Unmarshal(found, &a); err != nil {
		return nil, fmt.Errorf("adopt a queue: %w", err)
	}
	for _, b := range unstarted() {
		if adopter, ok := b.(hal.Adopter); ok && b.Name() == a.Backend {
			return adopter.Adopt(a.State, fd)
		}
	}
	return nil, fmt.Errorf("adopt a queue: backend %q cannot restore queues", a.Backend)
}

// restoreTime is how long RestoreAll may take, which is much longer than it needs.
const restoreTime = 30 * time.Second

// RestoreAll puts every queue of this machine back as its vendor made it. It is for when
// a daemon and its guardian were both killed. After an error, what it counted may be
// incomplete.
func RestoreAll(ctx context.Context) (total hal.Restored, err error) {
	ctx, stop := context.WithTimeout(ctx, restoreTime)
	defer stop()
	for _, b := range unstarted() {
		if r, ok := b.(hal.Restorer); ok {
			restored, failed := r.RestoreAll(ctx)
			total.Queues += restored.Queues
			total.Slices += restored.Slices
			err = errors.Join(err, failed)
		}
	}
	return total, err
}

// probeTime is how long Probe may take.
const probeTime = 700 * time.Millisecond

// Probe says what a daemon would find on this machine.
func Probe() (checks []hal.Check) {
	ctx, stop := context.WithTimeout(context.Background(), probeTime)
	defer stop()
	for _, b := range unstarted() {
		if p, ok := b.(hal.Prober); ok {
			checks = append(checks, p.Probe(ctx)...)
		}
	}
	return checks
}
