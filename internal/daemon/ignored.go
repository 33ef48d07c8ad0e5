package daemon

import (
	"fmt"
	"slices"
	"strings"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// policyNames returns the names of the policies that are in force on the devices of some
// queues, or of all devices if there are no queues: sorted, each once. d.mu is held.
func (d *Daemon) policyNames(queues ...*queue) (names []string) {
	for _, q := range queues {
		names = append(names, d.policyOf(q.device))
	}
	if len(queues) == 0 {
		for _, dev := range d.devices {
			names = append(names, d.policyOf(dev))
		}
	}
	if len(names) == 0 {
		names = append(names, d.policy.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// attrContext is what decides whether an attribute has an effect.
type attrContext struct {
	policies []string // in force on the devices of the process
	class    sched.Class
	shim     bool
	runtime  string // of the shim; empty: not known
	pool     bool   // 'giveway run' has the priority from v when it starts the process in a pool
}

// cause is a reason for which an attribute has no effect.
type cause struct {
	holds  func(s *attrContext, r *attr.Row) bool
	mark   func(s *attrContext, r *attr.Row) string // for tables
	reason func(s *attrContext, r *attr.Row) string
}

// causes lists all of them. The first that holds is reported.
var causes = []cause{
	{ // no policy uses it
		func(s *attrContext, r *attr.Row) bool { return len(s.users(r)) == 0 && !s.shimApplies(r) },
		func(s *attrContext, _ *attr.Row) string { return "ignored by " + strings.Join(s.policies, ", ") },
		func(s *attrContext, r *attr.Row) string {
			return fmt.Sprintf("policy %s does not use it; policies that do: %s", strings.Join(s.policies, ", "), strings.Join(policy.NamesUsing(r.Uses), ", "))
		},
	},
	{ // the policies use it in other classes only
		func(s *attrContext, r *attr.Row) bool {
			return !slices.ContainsFunc(s.users(r), s.usesInClass(r)) && !s.shimApplies(r)
		},
		func(s *attrContext, _ *attr.Row) string { return "ignored in class " + s.class.String() },
		func(s *attrContext, r *attr.Row) string {
			user := s.users(r)[0]
			return fmt.Sprintf("policy %s uses it in class %s only, and the process is of class %v", user, strings.Join(policy.ClassesUsing(user, r.Uses), " and "), s.class)
		},
	},
	{
		func(s *attrContext, r *attr.Row) bool { return r.Shim && !s.shim },
		func(*attrContext, *attr.Row) string { return "ignored without the shim" },
		func(*attrContext, *attr.Row) string {
			return "the process has no shim; 'giveway run' starts a program with it"
		},
	},
	{
		func(s *attrContext, r *attr.Row) bool {
			return r.Shim && len(r.Runtimes) > 0 && s.runtime != "" && !slices.Contains(r.Runtimes, s.runtime)
		},
		func(s *attrContext, _ *attr.Row) string { return "ignored by " + s.runtime },
		func(s *attrContext, r *attr.Row) string {
			return fmt.Sprintf("the shim can do it for %s only, and the process uses %s", strings.Join(r.Runtimes, ", "), s.runtime)
		},
	},
	{
		func(s *attrContext, r *attr.Row) bool { return r.Online && s.class != sched.Online },
		func(s *attrContext, _ *attr.Row) string { return "ignored in class " + s.class.String() },
		func(s *attrContext, _ *attr.Row) string {
			return fmt.Sprintf("the process is of class %v, and it works in class online only", s.class)
		},
	},
}

// users lists the policies in force that use an attribute. An external policy may use any; an
// attribute that no policy reads has the same effect under all of them.
func (s *attrContext) users(r *attr.Row) (names []string) {
	for _, name := range s.policies {
		if r.Uses == "" || name == policy.ExternalName || slices.Contains(policy.NamesUsing(r.Uses), name) {
			names = append(names, name)
		}
	}
	return names
}

// usesInClass returns whether a policy that uses an attribute does so in the process's class.
func (s *attrContext) usesInClass(r *attr.Row) func(name string) bool {
	return func(name string) bool {
		in := policy.ClassesUsing(name, r.Uses)
		return len(in) == 0 || slices.Contains(in, s.class.String())
	}
}

// shimApplies reports whether the shim applies an attribute that policies use too: it takes
// the device ahead of an expected request.
func (s *attrContext) shimApplies(r *attr.Row) bool {
	return r.Uses != "" && slices.Contains(r.Runtimes, s.runtime) && s.class == sched.Online
}

// withoutEffect lists the attributes in v that have no effect. One that has its default is not
// among them, except for the class, which is always shown.
func (s *attrContext) withoutEffect(v attr.Values) (out []api.Ignored) {
	for _, id := range v.IDs() {
		r := id.Row()
		value, _ := v.Get(id)
		if value == r.Default && id != attr.Class || s.pool && id == attr.Priority && value < 0 {
			continue
		}
		for _, c := range causes {
			if c.holds(s, r) {
				out = append(out, api.Ignored{Name: r.Name, Mark: c.mark(s, r), Reason: c.reason(s, r)})
				break
			}
		}
	}
	return out
}

// ignored lists the attributes that were given to a process and have no effect on it. gate
// is nil if it has no shim.
func (p *view) ignored(gate *hal.GateStats) []api.Ignored {
	var given attr.Values
	for _, id := range p.attrs.Given().IDs() {
		if p.attrs.Source(id) >= attr.FromBackend { // its priority on the CPU is not for the device
			given.Set(id, p.attrs.Int(id))
		}
	}
	s := attrContext{policies: p.policies, class: p.attr.Class, shim: p.gate != nil}
	if from := p.attrs.Source(attr.Priority); p.member != nil && p.member.Pool != "" {
		s.pool = from == attr.FromRule || from == attr.FromRun
	}
	if gate != nil {
		s.runtime = gate.Runtime
	}
	return s.withoutEffect(given)
}
