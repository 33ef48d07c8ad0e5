package amd

import (
	"context"
	"errors"
	"fmt"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// Probe implements hal.Prober.
func (b *Backend) Probe(context.Context) []hal.Check {
	driver, err := Open(b.cfg)
	switch {
	case errors.Is(err, hal.ErrNotSupported):
		return nil // no AMD GPU
	case err != nil:
		return []hal.Check{{
			Name: "AMD", Detail: err.Error(), Fix: "run the daemon as root, or as a user who may open /dev/kfd (group render)",
		}}
	}
	defer driver.Close()
	return driver.checks()
}

// Checks implements hal.Backend: what works, what was done, which processes cannot be
// stopped, and where a queue waits for queues of a lower class.
func (b *Backend) Checks() []hal.Check {
	if b.driver == nil {
		return nil
	}
	checks := b.driver.checks()
	s := b.driver.Stats()
	checks = append(checks, hal.Check{Name: "AMD calls", OK: s.Stops.Failed+s.Starts.Failed == 0, Detail: fmt.Sprintf(
		"%s; %s; %d with another method after one failed", s.Stops.describe("stop"), s.Starts.describe("start"), s.Fallbacks)})
	checks = append(checks, b.unstoppable()...)
	return append(checks, b.inversions()...)
}

// checks returns the checks of the driver. One working method to stop queues is enough.
func (d *Driver) checks() []hal.Check {
	found := d.Doctor()
	works := map[string]bool{}
	for _, c := range found {
		works[c.Name] = c.OK
	}
	var checks []hal.Check
	for _, c := range found {
		out := hal.Check{Name: "AMD " + c.Name, OK: c.OK, Detail: c.Detail}
		switch c.Name {
		case "batch", "debug", "ptrace":
			out.Fix = "see docs/AMD.md for the drivers and GPUs that each method needs; the shim works everywhere (giveway run)"
			if !c.OK && (works["batch"] || c.Name == "batch" && works["debug"] && works["ptrace"]) {
				out.OK, out.Detail = true, "not available, and not needed here: "+c.Detail
			}
		}
		checks = append(checks, out)
	}
	return checks
}

func (c Calls) describe(verb string) string {
	return fmt.Sprintf("%d calls to %s %d queues (%d failed), mean %v, longest %v", c.Calls, verb, c.Queues, c.Failed, c.Mean(), c.Longest)
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

// inversions reports queues that wait for queues of a lower class. A process that its
// owner has paused does not wait for others.
func (b *Backend) inversions() []hal.Check {
	type standing struct {
		priority uint32
		ready    bool
	}
	standings := make(map[int]standing)
	for _, pid := range b.known() { // not with b.mu held: Ready waits for the daemon's loop, which polls
		class, ready, _ := b.host.Ready(pid)
		standings[pid] = standing{classPriority[class], ready}
	}
	var checks []hal.Check
	for _, dev := range b.driver.Devices() {
		states, err := dev.States()
		if err != nil {
			continue // the check of the slots reports it
		}
		for i := range states {
			s := &states[i]
			s.Priority = classPriority[sched.Standard]
			if p, known := standings[s.PID]; known {
				s.Priority, s.Ready = p.priority, p.ready
			}
		}
		for _, v := range Inversions(dev.Slots(), states) {
			checks = append(checks, hal.Check{
				Name: "AMD priority inversion", Detail: fmt.Sprintf(
					"queue %d of process %d on %s: %v (%d queues)", v.Waiting.Queue, v.Waiting.PID, dev.Info().Device.ID, v.Why, len(v.Behind)),
				Fix: "set the processes that may wait to class batch: they then leave their slots",
			})
		}
	}
	return checks
}
