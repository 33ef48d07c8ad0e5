package daemon

import (
	"fmt"
	"slices"
	"strings"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// policiesInForce are the names of the policies that are in force, by device. The empty
// device stands for devices that are not known yet.
type policiesInForce map[sched.DeviceID]string

// ignored lists the attributes in v that no policy in force uses.
func (in policiesInForce) ignored(v attr.Values) (out []api.Ignored) {
	var names []string
	for id, name := range in {
		if (id != "" || len(in) == 1) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, id := range v.IDs() {
		r := id.Row()
		value, _ := v.Get(id)
		use := policy.Users(r.Uses)
		used := func(name string) bool { return slices.Contains(use, name) || name == policy.ExternalName }
		if r.Uses == "" || slices.ContainsFunc(names, used) || value == r.Default && id != attr.Class {
			continue
		}
		by := strings.Join(names, ", ")
		out = append(out, api.Ignored{
			Name: r.Name, Mark: "ignored by " + by,
			Reason: fmt.Sprintf("policy %s does not use it; policies that do: %s", by, strings.Join(use, ", ")),
		})
	}
	return out
}

// ignoredOf lists the attributes that were given to a process and have no effect on it.
func (in policiesInForce) ignoredOf(p *process) []api.Ignored {
	here := policiesInForce{}
	for _, q := range p.queues {
		id := q.device.info.Device.ID
		if here[id] = in[id]; here[id] == "" {
			here[id] = in[""]
		}
	}
	if len(here) == 0 {
		here[""] = in[""]
	}
	var given attr.Values
	for _, id := range p.attrs.Given().IDs() {
		if p.attrs.Source(id) >= attr.FromRule {
			given.Set(id, p.attrs.Int(id))
		}
	}
	shim, runtime := p.gate != nil, ""
	if stats := p.gate.stats(); stats != nil {
		runtime = stats.Runtime
	}
	if runtime == attr.Expect.Row().Runtime && p.attr.Class == sched.Online {
		given.Remove(attr.Expect) // the shim takes the device ahead of the request
	}
	out := here.ignored(given)
	for _, id := range given.IDs() {
		r := id.Row()
		if !r.Shim || p.attrs.Int(id) == r.Default {
			continue
		}
		i := api.Ignored{Name: r.Name}
		switch {
		case !shim:
			i.Mark, i.Reason = "ignored without the shim", "the process has no shim; 'giveway run' starts a program with it"
		case r.Runtime != "" && runtime != "" && runtime != r.Runtime:
			i.Mark = "ignored by " + runtime
			i.Reason = fmt.Sprintf("the shim can do it for %s only, and the process uses %s", r.Runtime, runtime)
		case id == attr.Predict && p.attr.Class != sched.Online:
			i.Mark = "ignored in class " + p.attr.Class.String()
			i.Reason = fmt.Sprintf("the process is of class %v, and it works in class online only", p.attr.Class)
		default:
			continue
		}
		out = append(out, i)
	}
	return out
}
