package daemon

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/policy"
)

// soakConfigs are the files that the daemon reads again. The last ones are refused: a
// running daemon keeps the one before, and a new daemon does not start with them.
var soakConfigs = []string{
	"policy: slo\nrules: [{match: {command: sleep}, class: batch}, {match: {command: openclwork}, late_entry: on}]\n",
	"policy: {name: giveway, turn: 20ms}\nrules: [{match: {command: sleep}, class: batch}, {match: {command: openclwork}, late_entry: on}]\n",
	"policy: wfq\nrules: [{match: {}, weight: 3}]\n",
	"policy: slo\ndevices: [{device: gpu0, policy: cfs}]\nrules: [{match: {}, class: batch}]\n",
	"policy: rr\n",
	"policy: no such policy\n",
	"rules: [{match",
}

// refusedConfigs is how many there are of these.
const refusedConfigs = 2

// A storm of kills and orders is followed by a calm, in which one policy is in force for
// long enough to see whether a process starves under it.
const (
	stormTime = 40 * time.Second
	calmTime  = 40 * time.Second
)

// disturb gives an order or kills something, except in a calm. It returns when to call it
// again.
func (s *soak) disturb() (next time.Time) {
	now := time.Now()
	if now.After(s.calmEnd) {
		s.calm, s.isCalm = now.Add(stormTime), false
		s.calmEnd = s.calm.Add(calmTime)
	}
	switch {
	case now.After(s.calm) && !s.isCalm:
		s.isCalm = true
		s.beginCalm()
	case s.isCalm:
	case now.After(s.nextKill):
		s.nextKill = now.Add(time.Second + time.Duration(s.r.Int64N(int64(4*time.Second))))
		s.pick([]choice{{6, s.killDaemon}, {2, s.takeOver}, {4, s.killProgram}, {2, s.killGuardian}, {3, s.killFrontEnd}, {2, s.replaceSleeper}})
	default:
		s.pick([]choice{{20, s.setAttrs}, {10, s.pause}, {6, s.setPolicy}, {4, s.ask}, {3, s.reload}, {2, s.openRun}})
	}
	return time.Now().Add(time.Duration(s.r.Int64N(int64(time.Second))))
}

// choice is something to do, and how likely it is.
type choice struct {
	weight int
	do     func()
}

// pick does one of the choices.
func (s *soak) pick(all []choice) {
	sum := 0
	for _, c := range all {
		sum += c.weight
	}
	n := s.r.IntN(sum)
	for _, c := range all {
		if n -= c.weight; n < 0 {
			c.do()
			return
		}
	}
}

// beginCalm puts one policy in force and gives every process other attributes.
func (s *soak) beginCalm() {
	s.event("calm")
	s.resume(true)
	names := policy.Names()
	p := api.Policy{Name: names[s.r.IntN(len(names))]}
	for _, device := range []string{"", "gpu0", "npu0", "fake0", "opencl"} {
		p.Device = device
		err := s.call("choose a policy", func(ctx context.Context) error { _, err := s.client.SetPolicy(ctx, p); return err })
		s.event("policy %s on %q: %v", p.Name, p.Device, err)
	}
	for _, one := range s.list() {
		attrs := fmt.Sprintf("class=%s priority=%d weight=%d", []string{"batch", "batch", "standard", "online"}[s.r.IntN(4)], s.r.IntN(5), 1+s.r.IntN(5))
		s.change(one.PID, given(attrs))
	}
}

// anyProcess returns a process that the daemon lists; zero: there is none.
func (s *soak) anyProcess() (pid int) {
	if all := s.list(); len(all) > 0 {
		pid = all[s.r.IntN(len(all))].PID
	}
	return pid
}

// call makes a call and checks that it is answered: refusals are allowed, an error of the
// daemon is not. A call on a connection that was lost with a front end is made again.
func (s *soak) call(what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	for {
		began := time.Now()
		err := f(ctx)
		var refused *client.Error
		answered := err == nil || errors.As(err, &refused) && refused.Status < 500
		lost := !answered && refused == nil && time.Since(s.frontEndKilled) < frontEndTime
		s.mu.Lock()
		if lost {
			s.figures.lostCalls++
		} else {
			s.figures.calls.add(time.Since(began))
		}
		s.mu.Unlock()
		if !lost {
			if !answered {
				s.violation("%s: after %v: %v\n%s", what, time.Since(began), err, tail(s.daemon.output))
			}
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *soak) change(pid int, c api.Change) {
	if pid == 0 || pid == canaryPID() {
		return
	}
	err := s.call("set", func(ctx context.Context) error { _, err := s.client.Change(ctx, pid, c); return err })
	s.event("set %d %v tree=%v: %v", pid, c.Values, c.Tree, err)
}

// setAttrs sets attributes of a process.
func (s *soak) setAttrs() {
	attrs := []string{
		"class=online", "class=batch", "class=standard", "class=idle", "class=batch weight=8", "weight=1", "priority=5", "priority=-5",
		"slo=10ms", "slo=0s", "deadline=50ms", "share=40%", "bound=4", "bound=0", "class=online slo=5ms",
		"class=online late-entry=on", "late-entry=on", "late-entry=auto", "late-entry=off",
	}
	c := api.Change{Values: attr.Must(attrs[s.r.IntN(len(attrs))]), Tree: s.r.IntN(4) == 0}
	s.change(s.anyProcess(), c)
}

// pause pauses a process, which check resumes some seconds later.
func (s *soak) pause() {
	if pid := s.anyProcess(); pid != 0 && pid != canaryPID() {
		s.change(pid, given("paused=true"))
		s.resumes[pid] = time.Now().Add(time.Duration(s.r.Int64N(int64(8 * time.Second))))
	}
}

// resume resumes the processes whose pause is over.
func (s *soak) resume(all bool) {
	for pid, at := range s.resumes {
		if all || time.Now().After(at) {
			s.change(pid, given("paused=false"))
			delete(s.resumes, pid)
		}
	}
}

// setPolicy chooses a policy. Those that are used by default are chosen more often.
func (s *soak) setPolicy() {
	names := append(policy.Names(), "slo", "slo", "giveway", "giveway", "wfq", "cfs")
	p := api.Policy{Name: names[s.r.IntN(len(names))], Device: []string{"", "", "", "gpu0", "npu0", "fake0", "opencl"}[s.r.IntN(7)]}
	err := s.call("choose a policy", func(ctx context.Context) error { _, err := s.client.SetPolicy(ctx, p); return err })
	s.event("policy %s on %q: %v", p.Name, p.Device, err)
}

// ask asks for what changes nothing, and now and then for a restore.
func (s *soak) ask() {
	_ = s.call("status", func(ctx context.Context) error { _, err := s.client.Status(ctx); return err })
	_ = s.call("policy", func(ctx context.Context) error { _, err := s.client.Policy(ctx); return err })
	if s.r.IntN(10) == 0 {
		err := s.call("restore", func(ctx context.Context) error { _, err := s.client.Restore(ctx); return err })
		s.event("restore: %v", err)
		s.pauseCanary(s.daemon)
	}
}

// reload gives the daemon another configuration.
func (s *soak) reload() {
	i := s.r.IntN(len(soakConfigs))
	s.event("configuration %d", i)
	s.write("giveway.yaml", soakConfigs[i])
	s.reloaded = time.Now()
	if i < len(soakConfigs)-refusedConfigs {
		s.config = i
	}
	_ = s.daemon.Process.Signal(syscall.SIGHUP)
}

// openRun begins a run of this process and ends it soon.
func (s *soak) openRun() {
	s.event("a run of the test's own process")
	_ = s.call("run", func(ctx context.Context) error {
		run, err := s.client.Run(ctx, api.Run{Values: attr.Must("weight=2")})
		if err == nil {
			run.Close()
		}
		return err
	})
}

// killProgram kills an OpenCL program, or the giveway run in front of it.
func (s *soak) killProgram() {
	s.mu.Lock()
	p := s.programs[s.r.IntN(len(s.programs))]
	s.mu.Unlock()
	if p == nil {
		return
	}
	pid := p.pid()
	s.event("kill program %d, front end %v", p.Process.Pid, pid == 0)
	p.markKilled()
	if pid == 0 || s.r.IntN(2) == 0 {
		p.kill()
		return
	}
	_ = syscall.Kill(pid, syscall.SIGKILL) // it may have exited
}

// killDaemon kills the daemon, and sometimes all its children at the same time, and starts
// another. If the guardian lives, it must have undone everything by itself. Otherwise the
// next daemon does, by its journal.
func (s *soak) killDaemon() {
	if time.Since(s.daemon.answered) < s.daemonLife() {
		return
	}
	before := s.readOrders()
	d, both := s.daemon, s.r.IntN(3) == 0
	kids := children(d.Process.Pid)
	changed := len(s.changedQueues())
	s.event("kill daemon %d, with its children: %v; %d queues are changed; orders %+v", d.Process.Pid, both, changed, before)
	d.markKilled()
	s.mu.Lock()
	s.figures.daemonKills++
	s.mu.Unlock()
	if both {
		for _, pid := range kids {
			_ = syscall.Kill(pid, syscall.SIGSTOP) // so that it cannot act before it is killed
		}
	}
	_ = d.Process.Kill()
	if both {
		for _, pid := range kids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	} else {
		s.mu.Lock()
		s.figures.leftChanged += changed
		s.mu.Unlock()
		s.checkUndone(time.Now())
	}
	d.kill()
	s.checkEnded(kids)
	s.write("giveway.yaml", soakConfigs[s.config])
	s.startDaemon()
	s.checkKept(before)
}

// checkEnded checks that the children of a killed daemon end.
func (s *soak) checkEnded(pids []int) {
	for end := time.Now().Add(maxUndo); ; time.Sleep(time.Millisecond) {
		pids = slices.DeleteFunc(pids, func(pid int) bool { return !isRunning(pid) })
		if len(pids) == 0 {
			return
		}
		if time.Now().After(end) {
			s.violation("%d children of a killed daemon run %v after its end: %v", len(pids), maxUndo, pids)
			return
		}
	}
}

// takeOver starts a daemon that takes over from the one that runs, as an upgrade does.
func (s *soak) takeOver() {
	if time.Since(s.daemon.answered) < s.daemonLife() {
		return
	}
	before, old := s.readOrders(), s.daemon
	s.event("take over from daemon %d; orders %+v", old.Process.Pid, before)
	old.markKilled()
	s.write("giveway.yaml", soakConfigs[s.config])
	s.startDaemon("takeover")
	select {
	case <-old.ended:
	case <-time.After(20 * time.Second):
		s.violation("daemon %d does not end when another takes over: %s", old.Process.Pid, tail(old.output))
		old.kill()
	}
	if !old.ProcessState.Success() {
		s.violation("daemon %d ended with %v when another took over: %s", old.Process.Pid, old.ProcessState, tail(old.output))
	}
	s.mu.Lock()
	s.figures.takeovers++
	s.mu.Unlock()
	s.checkKept(before)
}

// daemonLife is how long a daemon lives at least: one in eight for minutes, so that a leak
// shows.
func (s *soak) daemonLife() time.Duration {
	if rand.New(rand.NewPCG(s.seed, uint64(s.daemon.Process.Pid))).IntN(8) == 0 {
		return 4 * time.Minute
	}
	return 0
}

// killGuardian kills the daemon's guardian.
func (s *soak) killGuardian() {
	fronts := frontEnds(s.daemon.Process.Pid)
	for _, pid := range children(s.daemon.Process.Pid) {
		if !slices.Contains(fronts, pid) {
			s.event("kill %d, a child of the daemon that is no front end", pid)
			s.killChild(pid)
			return
		}
	}
}

// killFrontEnd kills one of the daemon's front ends.
func (s *soak) killFrontEnd() {
	fronts := frontEnds(s.daemon.Process.Pid)
	if len(fronts) == 0 {
		return
	}
	pid := fronts[s.r.IntN(len(fronts))]
	s.event("kill front end %d", pid)
	s.frontEndKilled = time.Now()
	s.killChild(pid)
	s.mu.Lock()
	s.figures.frontEndKills++
	s.mu.Unlock()
}

func (s *soak) killChild(pid int) {
	_ = syscall.Kill(pid, syscall.SIGKILL)
	s.mu.Lock()
	s.figures.childKills++
	s.mu.Unlock()
}
