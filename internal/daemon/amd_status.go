package daemon

import (
	"errors"
	"fmt"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/amd"
	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// priorities are what KFD's would be of the classes: to count who waits for whom, and
// whom reserved slots are kept from. sysfs does not tell those that programs ask for.
var priorities = map[sched.Class]uint32{sched.Online: kfd.MaxPriority, sched.Standard: 7, sched.Batch: 3, sched.Idle: 0}

// localAMD says what a daemon would find of AMD's.
func localAMD(where amd.Config) []api.Check {
	driver, err := amd.Open(where)
	if err != nil {
		return whyNoAMD(err)
	}
	defer driver.Close()
	return doctorAMD(driver)
}

// whyNoAMD is nothing where there is no AMD GPU.
func whyNoAMD(err error) []api.Check {
	if err == nil || errors.Is(err, hal.ErrNotSupported) {
		return nil
	}
	return []api.Check{{
		Name: "AMD", Detail: err.Error(), Fix: "run the daemon as root, or as a user who may open /dev/kfd (group render)",
	}}
}

// doctorAMD is what the driver's doctor says. Of the ways to stop queues one is enough.
func doctorAMD(driver *amd.Driver) []api.Check {
	found := driver.Doctor()
	works := map[string]bool{}
	for _, c := range found {
		works[c.Name] = c.OK
	}
	var checks []api.Check
	for _, c := range found {
		out := api.Check{Name: "AMD " + c.Name, OK: c.OK, Detail: c.Detail}
		switch c.Name {
		case "batch", "debug", "ptrace":
			out.Fix = "docs/AMD.md says which drivers and GPUs there are ways for; the shim works everywhere (giveway run)"
			if !c.OK && (works["batch"] || c.Name == "batch" && works["debug"] && works["ptrace"]) {
				out.OK, out.Detail = true, "not needed here, and not there: "+c.Detail
			}
		}
		checks = append(checks, out)
	}
	return checks
}

// checkAMD says how things stand with AMD's GPUs: what works, what was done, whose queues
// cannot be stopped, and who waits for whom that should not.
func (d *Daemon) checkAMD() []api.Check {
	d.mu.Lock()
	a, err := d.amd, d.noAMD
	d.mu.Unlock()
	switch {
	case d.cfg.NoAMD:
		return []api.Check{{
			Name: "AMD", OK: true, Detail: "the configuration says amd: false: programs on AMD's GPUs are controlled by the shim only",
		}}
	case a == nil:
		return whyNoAMD(err)
	}
	checks := doctorAMD(a.driver)
	s := a.driver.Stats()
	checks = append(checks, api.Check{Name: "AMD calls", OK: s.Stops.Failed+s.Starts.Failed == 0, Detail: fmt.Sprintf(
		"%s; %s; %d in another way after one failed", sumUp("stop", s.Stops), sumUp("start", s.Starts), s.Fallbacks)})
	checks = append(checks, d.unstoppable()...)
	return append(checks, d.inversions()...)
}

func sumUp(what string, c amd.Calls) string {
	return fmt.Sprintf("%d calls to %s %d queues (%d failed), mean %v, longest %v", c.Calls, what, c.Queues, c.Failed, c.Mean(), c.Longest)
}

// unstoppable tells of processes whose queues were to be controlled and cannot be.
func (d *Daemon) unstoppable() []api.Check {
	d.mu.Lock()
	defer d.mu.Unlock()
	var checks []api.Check
	for pid, p := range d.processes {
		if p.kfd == nil || p.kfd.why == nil {
			continue
		}
		for _, q := range p.queues {
			if q.bundle != nil && hal.Abilities(q.plain) == 0 {
				checks = append(checks, api.Check{
					Name: fmt.Sprintf("AMD queues of %d", pid), Detail: "they cannot be stopped: " + p.kfd.why.Error(),
					Fix: "start the program with 'giveway run', so that the shim can",
				})
				break
			}
		}
	}
	return checks
}

// inversions tells of queues that wait for queues of a lower class. One that its owner
// has paused waits for nobody else.
func (d *Daemon) inversions() []api.Check {
	records := d.records()
	type standing struct {
		priority uint32
		ready    bool
	}
	d.mu.Lock()
	of := make(map[int]standing)
	for pid, p := range d.processes {
		s := standing{priority: priorities[p.attr.Class]}
		for _, q := range p.queues {
			r := records[q.id]
			s.ready = s.ready || q.bundle != nil && r.Ready() && !p.attr.Paused
		}
		of[pid] = s
	}
	d.mu.Unlock()
	var checks []api.Check
	for _, dev := range d.amd.driver.Devices() {
		states, err := dev.States()
		if err != nil {
			continue // the doctor has said so
		}
		for i := range states {
			if s, known := of[states[i].PID]; known {
				states[i].Priority, states[i].Ready = s.priority, s.ready
			}
		}
		for _, v := range amd.Inversions(dev.Slots(), states) {
			checks = append(checks, api.Check{
				Name: "AMD priority inversion", Detail: fmt.Sprintf(
					"queue %d of process %d on %s: %v (%d queues)", v.Waiting.Queue, v.Waiting.PID, dev.Info().Device.ID, v.Why, len(v.Behind)),
				Fix: "set what may wait to batch: its queues then leave their slots",
			})
		}
	}
	return checks
}
