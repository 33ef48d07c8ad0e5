package amd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// Probe implements hal.Prober.
func (b *Backend) Probe(context.Context) []hal.Check {
	d, err := open(b.cfg)
	switch {
	case errors.Is(err, hal.ErrNotSupported):
		return nil // no AMD GPU
	case err != nil:
		return []hal.Check{{
			Name: "AMD", Detail: err.Error(), Fix: "run the daemon as root, or as a user who may open /dev/kfd (group render)",
		}}
	}
	defer d.close()
	return d.checks()
}

// Checks implements hal.Backend: what works, what was done, which processes cannot be
// stopped, and where a queue waits for queues of a lower class.
func (b *Backend) Checks() []hal.Check {
	if !b.started() {
		return nil
	}
	stops, starts, fallbacks := b.driver.stats.totals()
	checks := append(b.driver.checks(), hal.Check{
		Name: "AMD calls", OK: stops.failed+starts.failed == 0,
		Detail: fmt.Sprintf("%s; %s; %d by another method after one failed", stops.describe("stop"), starts.describe("start"), fallbacks),
	})
	checks = append(checks, b.unstoppable()...)
	return append(checks, b.inversions()...)
}

// checks says what the driver offers. A method that does not work is no problem if another
// does.
func (d *driver) checks() []hal.Check {
	checks := []hal.Check{{Name: "AMD driver", OK: true, Detail: fmt.Sprintf("KFD %v, %d GPUs", d.features.Version, len(d.gpus))}}
	if d.topologyErr != nil {
		checks = append(checks, hal.Check{Name: "AMD topology", Detail: d.topologyErr.Error()})
	}
	batch := d.methodCheck("batch", "the driver has the batch ioctls: one call stops all queues of a process")
	debug := d.methodCheck("debug", "the debugger interface suspends queues of processes that the daemon may trace")
	ptrace := d.ptraceCheck()
	switch {
	case batch.OK:
		markNotNeeded(&debug)
		markNotNeeded(&ptrace)
	case debug.OK && ptrace.OK:
		markNotNeeded(&batch)
	}
	checks = append(checks, batch, debug)
	if slices.ContainsFunc(d.methods, func(m method) bool { return m.name() == ownName }) {
		checks = append(checks, hal.Check{Name: "AMD own", OK: true, Detail: "processes with the shim stop their own queues where the daemon cannot"})
	}
	checks = append(checks, ptrace)
	for _, g := range d.gpus {
		checks = append(checks, g.cwsrCheck(), g.slotCheck(), g.reservationCheck())
	}
	return checks
}

// markNotNeeded marks a failed check as not needed.
func markNotNeeded(c *hal.Check) {
	if !c.OK {
		c.OK, c.Detail = true, "not available, and not needed here: "+c.Detail
	}
}

const methodFix = "see docs/AMD.md for the drivers and GPUs that each method needs; the shim works everywhere (giveway run)"

func (d *driver) methodCheck(name, works string) hal.Check {
	c := hal.Check{Name: "AMD " + name, OK: true, Detail: works, Fix: methodFix}
	if err := d.refused[name]; err != nil {
		c.OK, c.Detail = false, err.Error()
	}
	return c
}

// ptraceCheck reads the setting of Yama that says which processes may be traced.
func (d *driver) ptraceCheck() hal.Check {
	c := hal.Check{Name: "AMD ptrace", OK: true, Fix: methodFix}
	text, err := os.ReadFile(filepath.Join(d.proc, "sys/kernel/yama/ptrace_scope"))
	switch scope := strings.TrimSpace(string(text)); {
	case err != nil, scope == "0":
		c.Detail = "a user may trace its own processes, and root all"
	case scope == "3":
		c.OK, c.Detail = false, "no process may be traced (ptrace_scope is 3): without the batch ioctls only processes with the shim can be stopped"
	default:
		c.Detail = "tracing needs CAP_SYS_PTRACE (ptrace_scope)"
	}
	return c
}

// slotUse is the use of the hardware slots (HQDs) of a GPU.
type slotUse struct {
	slots   uint32
	active  uint32 // compute queues that are not stopped, with work or without
	stopped uint32 // compute queues that this daemon stopped
	exact   bool   // the driver counted the active queues; otherwise some may be stopped by others
}

// oversubscribed reports whether there are more queues than slots, so that the firmware
// makes the queues take turns.
func (u slotUse) oversubscribed() bool { return u.active > u.slots }

func (u slotUse) String() string {
	about, share := "at most ", 0.0
	if u.exact {
		about = ""
	}
	if u.slots > 0 {
		share = 100 * float64(min(u.active, u.slots)) / float64(u.slots)
	}
	s := fmt.Sprintf("%s%d of %d slots in use (%.0f %%), %d queues stopped", about, u.active, u.slots, share, u.stopped)
	if u.oversubscribed() {
		s += ": more queues than slots"
	}
	return s
}

func (g *gpu) slotUse() (slotUse, error) {
	states, err := g.states()
	if err != nil {
		return slotUse{}, err
	}
	u := slotUse{slots: g.node.Slots}
	for _, s := range states {
		if s.stopped {
			u.stopped++
		} else {
			u.active++
		}
	}
	if g.driver.features.Batch == nil {
		if active, err := kfd.ActiveSlots(g.driver.file, g.node.GPU); err == nil {
			u.active, u.exact = active, true
		}
	}
	return u, nil
}

func (g *gpu) slotCheck() hal.Check {
	u, err := g.slotUse()
	c := hal.Check{Name: "AMD slots of " + string(g.info.Device.ID), OK: err == nil && !u.oversubscribed(), Detail: u.String()}
	if err != nil {
		c.Detail = err.Error()
	}
	return c
}

// unstoppable names the managed processes whose queues cannot be stopped.
func (b *Backend) unstoppable() []hal.Check {
	b.mu.Lock()
	defer b.mu.Unlock()
	var checks []hal.Check
	for pid, p := range b.processes {
		if p.why == nil {
			continue
		}
		for _, e := range p.entries {
			if hal.Abilities(e.queue) == 0 {
				checks = append(checks, hal.Check{
					Name: fmt.Sprintf("AMD queues of %d", pid), Detail: "cannot be stopped: " + p.why.Error(),
					Fix: "start the program with 'giveway run', so that the shim can stop it",
				})
				break
			}
		}
	}
	return checks
}

// classPriority orders the classes. KFD does not tell the priorities of queues.
var classPriority = map[sched.Class]uint32{sched.Online: 3, sched.Standard: 2, sched.Batch: 1, sched.Idle: 0}

// inversions reports queues that wait for queues of a lower class.
func (b *Backend) inversions() []hal.Check {
	type standing struct {
		priority uint32
		ready    bool
	}
	standings := make(map[int]standing)
	for _, pid := range b.pids() { // not with b.mu held: Ready waits for the daemon's loop, which calls Poll
		class, ready, _ := b.host.Ready(pid)
		standings[pid] = standing{classPriority[class], ready}
	}
	var checks []hal.Check
	for _, g := range b.driver.gpus {
		states, err := g.states()
		if err != nil {
			continue // slotCheck reports it
		}
		for i := range states {
			s := &states[i]
			s.priority = classPriority[sched.Standard]
			if p, known := standings[s.pid]; known {
				s.priority, s.ready = p.priority, p.ready
			}
		}
		for _, v := range inversions(g.node.Slots, states) {
			checks = append(checks, hal.Check{
				Name: "AMD priority inversion", Detail: fmt.Sprintf(
					"queue %d of process %d on %s: %s (%d queues)", v.waiting.queue, v.waiting.pid, g.info.Device.ID, v.why, len(v.lower)),
				Fix: "set the processes that may wait to class batch: they then leave their slots",
			})
		}
	}
	return checks
}
