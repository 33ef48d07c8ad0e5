package daemon

import (
	"fmt"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/server"
)

// checkLimits refuses what a caller wants to give to its processes if that exceeds the
// caller's limits.
func (d *Daemon) checkLimits(by server.Caller, v attr.Values) error {
	d.mu.Lock()
	conf := d.conf
	d.mu.Unlock()
	if by.Pod != "" {
		return d.checkPod(by, v, conf)
	}
	if by.All || v.Empty() || len(conf.Limits) == 0 {
		return nil
	}
	a := d.users.get(by.Account)
	info := proc.Process{} // of a caller that has exited only the user is known; its processes have limits of their own
	if conf.LimitsGroups() {
		info, _ = d.procs.Process(by.PID)
	}
	limit := d.limitOf(conf, by.Account, &info)
	id, exceeds := v.Exceeds(limit.Ceiling)
	if !exceeds {
		return nil
	}
	asked, _ := v.Get(id)
	most, _ := limit.Ceiling.Get(id)
	return server.Forbidden("%v %s exceeds the limit of user %s, which is %s (limits, line %d of the daemon's configuration): ask for that or less, or ask the administrator",
		id, id.Row().Format(asked), proc.Printable(a.name), id.Row().Format(most), limit.Line)
}

// limitOf returns the limit of a user and a process of it.
func (d *Daemon) limitOf(conf *config.Config, uid uint32, info *proc.Process) config.Limit {
	a := d.users.get(uid)
	groups := a.groups
	if conf.LimitsGroups() {
		groups = d.users.groupsOf(a, info)
	}
	return conf.Limit(uid, a.name, groups)
}

// checkPod refuses what a caller in a pod wants to give to its processes if that exceeds what
// the pod was given.
func (d *Daemon) checkPod(by server.Caller, v attr.Values, conf *config.Config) error {
	info, err := d.procs.Process(by.PID)
	if err != nil {
		return errExited(by.PID)
	}
	a := d.adminSettingsOf(&info, conf, *d.containers.Load())
	id, exceeds := v.Exceeds(a.limits.Ceiling)
	if !exceeds {
		return nil
	}
	asked, _ := v.Get(id)
	most, _ := a.limits.Ceiling.Get(id)
	return server.Forbidden("%v %s exceeds what the pod was given, which is %s: ask for that or less, or give the pod more by its annotations", id, id.Row().Format(asked), id.Row().Format(most))
}

// limited lists what was asked for a process, which has attrs, beyond its limits, or by hints that
// are doubted.
func limited(attrs attr.Resolved, reduced attr.Values, doubted bool) (out []api.Ignored) {
	for _, id := range reduced.IDs() {
		asked, _ := reduced.Get(id)
		r := id.Row()
		reason := "%s was asked for; the limits of its user, its rule or its pod allow %s"
		if doubted {
			reason = "%s was asked for by a hint; others waited too long while the process completed no command, so for now it has %s"
		}
		out = append(out, api.Ignored{Name: r.Name, Mark: api.Limited, Reason: fmt.Sprintf(reason, r.Format(asked), r.Format(attrs.Int(id)))})
	}
	return out
}

// noteReduced queues a line of the log about runs and hints of a process that exceed its limits or are doubted: one
// for each attribute and process. The log is written without d.mu, which is held.
func (d *Daemon) noteReduced(p *process) {
	for _, id := range p.reduced.IDs() {
		if p.logged.Has(id) {
			continue
		}
		p.logged.Set(id, 0)
		asked, _ := p.reduced.Get(id)
		select {
		case d.reduced <- reducedAttr{p, id, asked, p.attrs.Int(id), p.claim.doubted}:
		default: // there are too many: giveway ps shows all
		}
	}
}

// reducedAttr is an attribute of which a run or a hint asked for more than it gets.
type reducedAttr struct {
	process        *process
	id             attr.ID
	asked, allowed int64
	doubted        bool // by hints that are doubted: see claim.go
}

// logReduced writes a line about such an attribute to the log.
func (d *Daemon) logReduced(h reducedAttr) {
	r, message := h.id.Row(), "more was asked for than the limits allow"
	if h.doubted {
		message = "a hint is not followed for now: others waited too long while the process completed no command"
	}
	d.cfg.Log.Info(message, "pid", h.process.info.PID, "user", h.process.user,
		"attribute", r.Name, "asked", r.Format(h.asked), "in_force", r.Format(h.allowed))
}
