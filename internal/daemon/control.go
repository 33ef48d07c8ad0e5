package daemon

import (
	"cmp"
	"maps"
	"os"
	"os/user"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/internal/stats"
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

// records returns the scheduler's record of every queue.
func (d *Daemon) records() map[sched.QueueID]sched.Queue {
	records := make(map[sched.QueueID]sched.Queue)
	d.events.inLoop(func() {
		for _, q := range d.sched.Queues(nil) {
			records[q.ID] = q
		}
	})
	return records
}

// describe returns a process as the API shows it. d.mu is held.
func (d *Daemon) describe(p *process, records map[sched.QueueID]sched.Queue) api.Process {
	out := api.Process{
		PID: p.info.PID, Command: p.info.Command, UID: p.info.UID, User: p.user,
		Container: p.info.Container, Pod: p.info.Pod, Attrs: p.attrs, Ignored: d.ignoredOf(p),
		Queues: []api.Queue{}, Requests: p.requests.describe(), Shim: p.describeShim(),
	}
	// The scheduler has the time at which a request is expected, users see the time until then.
	out.Attrs.Replace(attr.Expect, int64(max(p.attr.Expect.Sub(d.Now()), 0)))
	for _, q := range p.queues {
		r := records[q.id]
		out.Queues = append(out.Queues, api.Queue{
			ID: uint64(q.id), Device: string(q.device.info.Device.ID), Index: q.device.info.Index, State: r.State.String(),
			Can: strings.FieldsFunc(r.Can.String(), func(c rune) bool { return c == ',' }), Slice: r.Slice, VendorSlice: q.detail.FoundSlice,
			Served: r.Served, Measured: r.Measured, Shared: q.detail.SharedBy,
			KFDQueues: q.detail.NativeQueues, Way: q.detail.StopMethod,
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

// find returns the record of a process that is known or about to be. Backends look for a
// process that is not known.
func (d *Daemon) find(pid int) (*process, error) {
	known := func() *process {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.processes[pid]
	}
	if p := known(); p != nil {
		return p, nil
	}
	notes := d.scan(pid)
	if p := known(); p != nil {
		return p, nil
	}
	return nil, server.NotFound("process %d is not known here: it uses no device, and was not started by 'giveway run' or has launched nothing yet%s", pid, notes)
}

// scan asks the backends to look for a process at once. It returns their notes.
func (d *Daemon) scan(pid int) (notes string) {
	for _, b := range d.cfg.Backends {
		finder, ok := b.(hal.Finder)
		if !ok {
			continue
		}
		found := finder.Find(pid)
		if found.Pending != nil {
			d.mu.Lock()
			d.process(*found.Pending)
			d.mu.Unlock()
		}
		if found.Note != "" {
			notes += " (" + found.Note + ")"
		}
	}
	return notes
}

// description is a process as it is when all that was posted has been taken in.
func (d *Daemon) description(p *process) api.Process {
	records := d.records()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.describe(p, records)
}

// describe returns what the API reports of requests; nil: nothing is known.
func (r *requests) describe() *api.Requests {
	n := min(r.count, uint64(len(r.last)))
	out := &api.Requests{Count: r.count, Open: uint32(len(r.open)) + r.reported}
	if *out == (api.Requests{}) {
		return nil
	}
	if n > 0 {
		last := slices.Sorted(slices.Values(r.last[:n]))
		out.P50, out.P99 = stats.Quantile(last, 0.50), stats.Quantile(last, 0.99)
	}
	return out
}

// describeShim returns what the API reports of the gate; nil: there is none. d.mu is held.
func (p *process) describeShim() *api.Shim {
	s := p.gate.stats()
	if s == nil {
		return nil
	}
	return &api.Shim{
		Runtime: s.Runtime, Launched: s.Launched, Completed: s.Completed, Holds: s.Holds, HeldFor: s.HeldFor, Overruns: s.Overruns,
		Parked: s.Parked, Hits: s.Hits, ParkedFor: s.ParkedFor, Saved: s.Saved, Ignored: p.invalid + s.Invalid,
	}
}

// Restore implements server.Node. Afterwards the policy is native and every process has
// its default attributes. Rules and runs apply again once a policy is chosen.
func (d *Daemon) Restore(by server.Caller) error {
	return d.apply(order{Kind: orderRestore, By: by})
}

// restoreAll carries out a restore.
func (d *Daemon) restoreAll(o *order) error {
	d.mu.Lock()
	o.Seq = d.nextOrder()
	clear(d.trees)
	for _, p := range d.processes {
		p.layers[attr.FromHint], p.layers[attr.FromSet] = attr.Values{}, attr.Values{}
		p.owned, p.restored, p.expectAt = false, true, time.Time{}
		p.merge()
		for range p.requests.open {
			for _, q := range p.queues {
				d.events.post(sched.Event{Kind: sched.RequestFinished, Queue: q.id})
			}
		}
		clear(p.requests.open)
		p.requests.byAPI = false
		d.announce(p)
	}
	d.mu.Unlock()
	if err := d.putInForce(api.Policy{Name: "native"}); err != nil {
		return err
	}
	if !d.settle() {
		return server.Conflict("restore: not every queue was put back within %v; try again", settleTime)
	}
	return nil
}

// Status implements server.Node.
func (d *Daemon) Status() api.Status {
	s := api.Status{Version: d.cfg.Version, PID: os.Getpid(), Uptime: time.Since(d.start), Policy: d.Policy(), Goroutines: runtime.NumGoroutine()}
	checks := slices.Clone(d.cfg.Notes)
	for _, b := range d.cfg.Backends {
		checks = append(checks, b.Checks()...)
		if l, ok := b.(hal.KernelLogger); ok {
			s.KernelLogLines += l.KernelLogLines()
		}
	}
	for _, c := range checks {
		s.Checks = append(s.Checks, api.Check(c))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(d.devices)) {
		dev := d.devices[id]
		tracing, ok := dev.Device.(hal.Tracing)
		s.Devices = append(s.Devices, api.Device{
			ID: string(id), Index: dev.info.Index, Model: dev.info.Model, Backend: dev.info.Backend, Trace: ok && tracing.Tracing(),
		})
	}
	for _, name := range slices.Sorted(maps.Keys(d.failed)) {
		s.Checks = append(s.Checks, api.Check{Name: name, Detail: d.failed[name].Error(), Fix: "see the daemon's log; run the daemon as root"})
	}
	if d.confFile != "" {
		s.Checks = append(s.Checks, ConfigCheck(d.confFile, d.confErr))
	}
	s.Checks = append(s.Checks, d.guardian.check())
	return s
}

// ConfigCheck reports whether a configuration file was accepted.
func ConfigCheck(file string, err error) api.Check {
	if err == nil {
		return api.Check{Name: "configuration", OK: true, Detail: file}
	}
	mistakes := strings.Join(strings.FieldsFunc(err.Error(), func(c rune) bool { return c == '\n' }), "; ")
	return api.Check{Name: "configuration", Detail: file + " is refused: " + mistakes, Fix: "correct the file; until then the daemon keeps the last one that was right, or does not start"}
}
