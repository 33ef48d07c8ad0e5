package scenario

import (
	"slices"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// NotApplicable is a policy that a comparison leaves out, because it orders queues by
// an attribute that no client has. It would run every queue, as native does, and the
// comparison would say nothing about it.
type NotApplicable struct {
	Policy string `json:"policy"`
	Reason string `json:"reason"`
}

// needs names the attribute without which a policy does not tell queues apart.
var needs = map[string]string{
	"hpf": "priority", "hpf-global": "priority", "nice": "nice", "edf": "deadline", "kedf": "deadline", "llf": "deadline",
	"share": "share", "share-process": "share", "window": "focus",
}

// shared lists the policies that divide time by an attribute among the queues with work. A
// queue without the shim counts as having work when it is idle, and with a derived attribute
// an idle online client would have nearly all of the time: Linux, which knows which tasks are
// runnable, would not give it to them.
var shared = map[string]string{"cfs": "nice"}

const unfair = "no client has a nice value, and one derived from the class is fair only if all clients have shim: true: without it an idle client counts as having work, and its share is lost"

// The attributes that a comparison derives from the class.
var (
	priorityOf = map[sched.Class]int32{sched.Online: 0, sched.Standard: -1, sched.Batch: -2, sched.Idle: -3}
	niceOf     = map[sched.Class]int8{sched.Online: -10, sched.Standard: 0, sched.Batch: 10, sched.Idle: 19}
)

// derivation is how a comparison gives clients an attribute that none of them has.
type derivation struct {
	has     func(*sched.Attr) bool
	derive  func(*sched.Attr)               // nil: the attribute cannot be derived
	source  func(a, first *sched.Attr) bool // one of the clients must have this
	derived string
	missing string
}

var derivations = map[string]derivation{
	"priority": {
		has:     func(a *sched.Attr) bool { return a.Priority != 0 },
		derive:  func(a *sched.Attr) { a.Priority = priorityOf[a.Class] },
		source:  classDiffers,
		derived: "no client has a priority, so it was derived from the class",
		missing: "no client has a priority, and all have the same class",
	},
	"nice": {
		has:     func(a *sched.Attr) bool { return a.Nice != 0 || a.RealTime != 0 },
		derive:  func(a *sched.Attr) { a.Nice = niceOf[a.Class] },
		source:  classDiffers,
		derived: "no client has a nice value, so it was derived from the class",
		missing: "no client has a nice value, and all have the same class",
	},
	"deadline": {
		has:     func(a *sched.Attr) bool { return a.Deadline != 0 },
		derive:  func(a *sched.Attr) { a.Deadline = a.SLO },
		source:  func(a, _ *sched.Attr) bool { return a.SLO != 0 },
		derived: "no client has a deadline, so the SLO was taken",
		missing: "no client has a deadline or an SLO",
	},
	"share": {has: func(a *sched.Attr) bool { return a.Share != 0 }, missing: "no client has a share"},
	"focus": {has: func(a *sched.Attr) bool { return a.Focus }, missing: "no client has the focus"},
}

func classDiffers(a, first *sched.Attr) bool { return a.Class != first.Class }

// prepare gives the clients of cfg the attributes that a policy uses and none of them
// has, as an administrator would for that policy. derived says what was derived.
// If the policy needs an attribute that cannot be derived, reason says so.
func prepare(cfg *sim.Config, name string) (derived, reason string) {
	all := policy.List()
	i := slices.IndexFunc(all, func(p policy.Info) bool { return p.Name == name })
	if i < 0 || slices.Contains(all[i].Uses, "class") {
		return "", ""
	}
	for _, attribute := range all[i].Uses {
		d, known := derivations[attribute]
		anyClient := func(has func(*sched.Attr) bool) bool {
			return slices.ContainsFunc(cfg.Clients, func(c sim.ClientConfig) bool { return has(&c.Attr) })
		}
		switch {
		case !known || anyClient(d.has):
		case d.derive != nil && anyClient(func(a *sched.Attr) bool { return d.source(a, &cfg.Clients[0].Attr) }):
			if shared[name] == attribute && slices.ContainsFunc(cfg.Clients, func(c sim.ClientConfig) bool { return !c.Shim }) {
				return "", unfair
			}
			cfg.Clients = slices.Clone(cfg.Clients)
			for i := range cfg.Clients {
				d.derive(&cfg.Clients[i].Attr)
			}
			derived = d.derived
		case needs[name] == attribute:
			return "", d.missing
		}
	}
	return derived, ""
}
