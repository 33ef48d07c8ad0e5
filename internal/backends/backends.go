// Package backends is the table of all backends. A new vendor is a package and a line of
// the table; the daemon itself knows no vendor.
package backends

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/guardian"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/journal"
	"github.com/giveway/giveway/internal/nvidia"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/internal/shim"
	"github.com/giveway/giveway/internal/sim/live"
)

// options are the arguments of a backend's constructor.
type options struct {
	uid    int // find the processes of this user only, or of proc.Everyone
	config config.Config
	gates  *shim.Backend // nil: no process can be asked to stop its own queues
	log    *slog.Logger
}

// table lists the vendors' backends. The shim is not among them: New makes it first,
// because vendors' backends may use it.
var table = []struct {
	name string // as giveway doctor writes it
	make func(options) hal.Backend
	file string // a machine with a device of the vendor has it
	key  string // of the configuration; false leaves the backend out
	off  func(config.Config) bool
}{
	{"NVIDIA", newNVIDIA, "/dev/nvidiactl", "nvidia", func(c config.Config) bool { return c.NoNVIDIA }},
	{"AMD", newAMD, "/dev/kfd", "amd", func(c config.Config) bool { return c.NoAMD }},
}

// DeviceFiles returns files of which a machine with a device has one.
func DeviceFiles() (files []string) {
	for _, e := range table {
		files = append(files, e.file)
	}
	return files
}

func newNVIDIA(o options) hal.Backend {
	return nvidia.New(nvidia.Config{Only: o.uid, NoTrace: o.config.NoTrace, Log: o.log})
}

// newAMD returns the AMD backend. Where the driver lets no other process stop the queues
// of a process, a process that loaded the shim stops its own.
func newAMD(o options) hal.Backend {
	cfg := amd.Config{Only: o.uid, OnlineSlots: o.config.AMDSlots, Log: o.log}
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

// New returns the backends of a daemon, and a check for each vendor that the configuration
// leaves out.
func New(cfg config.Config, uid int, log *slog.Logger) ([]hal.Backend, []hal.Check, error) {
	gates, err := shim.New(uid)
	if err != nil {
		return nil, nil, err
	}
	all := []hal.Backend{gates}
	var notes []hal.Check
	for _, e := range table {
		if e.off(cfg) {
			notes = append(notes, hal.Check{
				Name: e.name, OK: true, Detail: "the configuration says " + e.key + ": false: only processes that loaded the shim are controlled",
			})
			continue
		}
		all = append(all, e.make(options{uid, cfg, gates, log}))
	}
	return all, notes, nil
}

// Simulated returns the simulator, running a scenario file, and the configuration that the
// scenario has for its daemon. Speed is the number of simulated seconds per second.
func Simulated(file string, speed float64) (hal.Backend, config.Config, error) {
	cfg := config.Default()
	s, err := scenario.Load(file)
	if err != nil {
		return nil, cfg, err
	}
	b, err := live.New(s, speed)
	if err != nil {
		return nil, cfg, err
	}
	cfg.Sched = s.Config.Sched
	cfg.Policy.Name, cfg.Policy.Params, err = scenario.ParsePolicy(s.Policy)
	return b, cfg, err
}

// unstarted returns the vendors' backends for use without a daemon. They see the
// processes that this user may control.
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

// Adopt returns a queue that the daemon has sent to the guardian process. It is a
// guardian.Adopter, so it takes the descriptor.
func Adopt(found json.RawMessage, fd int) (hal.Queue, error) {
	var a struct {
		Backend string          `json:"backend"`
		State   json.RawMessage `json:"state"`
	}
	if err := json.Unmarshal(found, &a); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("adopt a queue: %w", err)
	}
	for _, b := range unstarted() {
		if adopter, ok := b.(hal.Adopter); ok && b.Name() == a.Backend {
			return adopter.Adopt(a.State, fd)
		}
	}
	_ = unix.Close(fd)
	return nil, fmt.Errorf("adopt a queue: backend %q cannot restore queues", a.Backend)
}

// RestoreLeft undoes the changes that daemons which were killed, with their guardians, left in
// their journals. sockets are the control sockets of these daemons. It counts the queues that
// were changed; found is false if there is no journal.
func RestoreLeft(sockets []string, log *slog.Logger) (queues int, found bool, err error) {
	for _, socket := range sockets {
		path := journal.Path(socket)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		found = true
		s, failed := journal.Open(path, restoreWait, log)
		if failed == nil {
			var n int
			n, _, failed = guardian.UndoLeft(s, unstarted(), log)
			queues += n
			if damage := s.Damaged(); damage != nil {
				failed = errors.Join(failed, fmt.Errorf("%w. Changes that it listed may still be in force: run 'giveway restore --all'", damage))
			}
			failed = errors.Join(failed, s.Close())
		}
		err = errors.Join(err, failed)
	}
	return queues, found, err
}

// restoreWait is how long RestoreLeft waits for a guardian that is restoring queues.
const restoreWait = 10 * time.Second

// restoreTime is the time limit of RestoreAll, which usually needs much less.
const restoreTime = 30 * time.Second

// RestoreAll restores every queue of this machine to its vendor's state, for the case
// that the daemon and its guardian were both killed. After an error the counts may be
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

// probeTime is the time limit of Probe.
const probeTime = 700 * time.Millisecond

// Probe returns what a daemon would find on this machine.
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
