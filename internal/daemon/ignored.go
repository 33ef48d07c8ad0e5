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

// usedBy reports whether a policy uses an attribute. An external policy may use any.
func usedBy(id attr.ID, name string) bool {
	uses := id.Row().Uses
	return uses == "" || name == policy.ExternalName || slices.Contains(policy.Users(uses), name)
}

// ignoredBy lists the attributes in v that none of the policies uses.
func ignoredBy(policies []string, v attr.Values) (out []api.Ignored) {
	for _, id := range v.IDs() {
		r := id.Row()
		value, _ := v.Get(id)
		used := slices.ContainsFunc(policies, func(name string) bool { return usedBy(id, name) })
		if used || value == r.Default && id != attr.Class {
			continue
		}
		by := strings.Join(policies, ", ")
		out = append(out, api.Ignored{
			Name: r.Name, Mark: "ignored by " + by,
			Reason: fmt.Sprintf("policy %s does not use it; policies that do: %s", by, strings.Join(policy.Users(r.Uses), ", ")),
		})
	}
	return out
}

// ignored lists the attributes that were given to a process and have no effect on it. gate
// is nil if it has no shim.
func (p *view) ignored(gate *hal.GateStats) []api.Ignored {
	var given attr.Values
	for _, id := range p.attrs.Given().IDs() {
		if p.attrs.Source(id) >= attr.FromRule {
			given.Set(id, p.attrs.Int(id))
		}
	}
	shim, runtime := p.gate != nil, ""
	if gate != nil {
		runtime = gate.Runtime
	}
	if slices.Contains(attr.Expect.Row().Runtimes, runtime) && p.attr.Class == sched.Online {
		given.Remove(attr.Expect) // the shim takes the device ahead of the request
	}
	out := ignoredBy(p.policies, given)
	for _, id := range given.IDs() {
		r := id.Row()
		if !r.Shim || p.attrs.Int(id) == r.Default {
			continue
		}
		i := api.Ignored{Name: r.Name}
		switch {
		case !shim:
			i.Mark, i.Reason = "ignored without the shim", "the process has no shim; 'giveway run' starts a program with it"
		case len(r.Runtimes) > 0 && runtime != "" && !slices.Contains(r.Runtimes, runtime):
			i.Mark = "ignored by " + runtime
			i.Reason = fmt.Sprintf("the shim can do it for %s only, and the process uses %s", strings.Join(r.Runtimes, ", "), runtime)
		case r.Online && p.attr.Class != sched.Online:
			i.Mark = "ignored in class " + p.attr.Class.String()
			i.Reason = fmt.Sprintf("the process is of class %v, and it works in class online only", p.attr.Class)
		default:
			continue
		}
		out = append(out, i)
	}
	return out
}
