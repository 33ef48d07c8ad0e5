package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// Processes implements server.Node.
func (d *Daemon) Processes() []api.Process {
	records := d.records()
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]api.Process, 0, len(d.processes))
	for _, pid := range slices.Sorted(maps.Keys(d.processes)) {
		if p := d.processes[pid]; len(p.queues) > 0 {
			all = append(all, d.describe(p, records))
		}
	}
	return all
}

// records is what the scheduler has of every queue.
func (d *Daemon) records() map[sched.QueueID]sched.Queue {
	records := make(map[sched.QueueID]sched.Queue)
	d.box.ask(func() {
		for _, q := range d.sched.Queues(nil) {
			records[q.ID] = q
		}
	})
	return records
}

// describe is a process as the API tells of it. d.mu is held.
func (d *Daemon) describe(p *process, records map[sched.QueueID]sched.Queue) api.Process {
	out := api.Process{
		PID: p.info.PID, Command: p.info.Command, UID: p.info.UID, User: userName(p.info.UID),
		Container: p.info.Container, Pod: p.info.Pod,
		Class: p.attr.Class.String(), From: p.from, Weight: p.attr.Weight, Priority: p.attr.Priority, Paused: p.attr.Paused,
		Deadline: p.attr.Deadline, Laxity: p.attr.Laxity, Work: p.attr.Work, Expect: max(p.attr.Expect.Sub(d.Now()), 0),
		Idempotent: p.repeatable(), Predict: p.predict,
		Queues: []api.Queue{}, SLO: p.attr.SLO, Bound: p.bound, Batch: p.batch, Requests: p.asked.describe(p.guest), Shim: p.guest.describe(p.ignored),
	}
	for _, q := range p.queues {
		r := records[q.id]
		out.Queues = append(out.Queues, api.Queue{
			ID: uint64(q.id), Device: q.gpu.uuid, Index: q.gpu.index, State: r.State.String(),
			Can: strings.FieldsFunc(r.Can.String(), func(c rune) bool { return c == ',' }), Slice: r.Slice, Found: q.found,
			Served: r.Served, Measured: r.Measured, Shared: q.shared,
			Native: len(q.native), Way: q.way,
		})
	}
	slices.SortFunc(out.Queues, func(a, b api.Queue) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

// known returns our record of a process, or an error that says why there is none.
// d.mu is held.
func (d *Daemon) known(pid int) (*process, error) {
	if p := d.processes[pid]; p != nil {
		return p, nil
	}
	for name, a := range d.coming {
		if name.pid == pid {
			return d.process(a.group.Process), nil // it is about to be opened
		}
	}
	if d.watch != nil {
		d.watch.Rescan(pid)
	}
	if d.lookForQueuesOf(pid); d.processes[pid] != nil {
		return d.processes[pid], nil
	}
	return nil, fmt.Errorf("process %d is not known here: it uses no GPU, and was not started by 'giveway run' or has launched nothing yet%s: %w", pid, d.mpsHint(), server.ErrNotFound)
}

// description is a process as it is when all that was posted has been taken in.
func (d *Daemon) description(p *process) api.Process {
	records := d.records()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.describe(p, records)
}

// mpsHint is what to say of a process that has no group of its own: under MPS the
// server's is everybody's. d.mu is held.
func (d *Daemon) mpsHint() string {
	for pid, p := range d.processes {
		for _, q := range p.queues {
			if q.shared == "mps" {
				return fmt.Sprintf(" (if it is a client of MPS, its work runs in the group of the MPS server, process %d, which is one queue for all clients: set that)", pid)
			}
		}
	}
	return ""
}

// Policy implements server.Node.
func (d *Daemon) Policy() api.Policy {
	d.mu.Lock()
	p := d.policy
	ids := slices.Sorted(maps.Keys(d.gpus))
	d.mu.Unlock()
	d.box.ask(func() {
		for _, id := range ids {
			if m, _, yes := d.sched.Overruled(sched.DeviceID(id)); yes {
				p.Overruled = m.String()
			}
		}
	})
	return p
}

// SetPolicy implements server.Node.
func (d *Daemon) SetPolicy(p api.Policy) (api.Policy, error) {
	choice, err := policy.Choose(p.Name, p.Params)
	if err != nil {
		return api.Policy{}, fmt.Errorf("%w: %w", server.ErrBadRequest, err)
	}
	d.mu.Lock()
	if p.Device != "" && d.gpus[p.Device] == nil {
		d.mu.Unlock()
		return api.Policy{}, fmt.Errorf("there is no device %q here: %w", p.Device, server.ErrNotFound)
	}
	if p.Device == "" {
		d.policy = api.Policy{Name: p.Name, Params: p.Params}
	}
	d.mu.Unlock()
	d.box.post(sched.Event{Kind: sched.PolicyChosen, Device: sched.DeviceID(p.Device), Choice: choice})
	return d.Policy(), nil
}

// Restore implements server.Node: everything is as it was found, until a policy
// is chosen again.
func (d *Daemon) Restore() error {
	d.mu.Lock()
	clear(d.trees)
	for _, p := range d.processes {
		p.attr, p.from = sched.Attr{}, "default"
		p.run, p.said, p.classed, p.owned = nil, api.Change{}, false, false
		p.bound, p.bounded, p.batch = 0, false, 0
		p.predict, p.idempotent = false, false
		for range p.asked.open {
			for _, q := range p.queues {
				d.box.post(sched.Event{Kind: sched.RequestFinished, Queue: q.id})
			}
		}
		clear(p.asked.open)
		p.asked.told = false
		p.setIdempotent()
		if p.guest != nil {
			p.guest.page.SetExpectedArrival(0)
			d.setWatch(p.guest)
		}
		d.box.post(p.hinted(nil)...)
	}
	d.mu.Unlock()
	if _, err := d.SetPolicy(api.Policy{Name: "native"}); err != nil {
		return err
	}
	settled := false
	for end := time.Now().Add(settleTime); !settled && time.Now().Before(end); time.Sleep(time.Millisecond) {
		d.box.ask(func() { settled = d.sched.Settled() })
	}
	if !settled {
		return fmt.Errorf("not everything could be put back within %v: %w", settleTime, server.ErrConflict)
	}
	return nil
}

func eyesFix(why error) string {
	if errors.Is(why, errBlind) {
		return "take that line out"
	}
	return "run the daemon as root; under MIG or confidential computing the driver has no record"
}

// Status implements server.Node.
func (d *Daemon) Status() api.Status {
	s := api.Status{Version: d.cfg.Version, PID: os.Getpid(), Uptime: time.Since(d.start), Policy: d.Policy(), Goroutines: runtime.NumGoroutine()}
	amds := d.checkAMD()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(d.gpus)) {
		g := d.gpus[id]
		s.Devices = append(s.Devices, api.Device{ID: id, Index: g.index, Model: g.model, Backend: g.info().Backend, Eyes: g.trace != nil})
		if g.why != nil {
			s.Checks = append(s.Checks, api.Check{
				Name: "eyes on " + id, Detail: g.why.Error() + ": time on the GPU is estimated", Fix: eyesFix(g.why),
			})
		}
	}
	if d.cfg.NoNVIDIA {
		s.Checks = append(s.Checks, api.Check{
			Name: "NVIDIA", Detail: "the configuration says nvidia: false: programs are controlled by the shim only", Fix: "take that line out",
		})
	}
	if d.watch != nil {
		for _, c := range d.watch.Checks() {
			s.Checks = append(s.Checks, api.Check{Name: c.Name, OK: c.OK, Detail: c.Detail, Fix: c.Fix})
		}
		s.KernelLogLines = d.watch.Guesses()
		if n := s.KernelLogLines; n > 0 {
			s.Checks = append(s.Checks, api.Check{
				Name: "kernel log", OK: true,
				Detail: fmt.Sprintf("%d wrong guesses at handles of programs that were there before us, each a line in it", n),
			})
		}
	}
	s.Checks = append(append(s.Checks, amds...), d.ward.check())
	return s
}
