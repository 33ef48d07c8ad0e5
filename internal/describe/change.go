package describe

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// situation is a queue of a process, and the policy of its device.
type situation struct {
	process *api.Process
	policy  string
	caller  int // uid
}

// change returns the commands that would change how a queue is scheduled, and what they do.
// It returns none that have no effect under the policy, or on the process as it is.
type change func(s *situation) []string

// uses reports whether the policy uses an attribute of a process of its class. An external
// policy may use any.
func (s *situation) uses(id attr.ID) bool {
	name := id.Row().Uses
	in := policy.ClassesUsing(s.policy, name)
	return s.policy == policy.ExternalName || slices.Contains(policy.NamesUsing(name), s.policy) &&
		(len(in) == 0 || slices.Contains(in, s.process.Attrs.Class().String()))
}

// mayChange reports whether the caller may change the process. The daemon shows the command
// only to a caller that may.
func (s *situation) mayChange() bool {
	return s.caller == 0 || s.caller == int(s.process.UID) || s.process.Command != ""
}

// set returns a command that sets something of the process.
func (s *situation) set(command, effect string) []string {
	if !s.mayChange() {
		return nil
	}
	return []string{fmt.Sprintf(command, s.process.PID) + ": " + effect}
}

// toClass returns a change to a class.
func toClass(class sched.Class, effect string) change {
	return func(s *situation) []string {
		if !s.uses(attr.Class) || s.process.Attrs.Class() == class {
			return nil
		}
		return s.set("giveway set %d --class "+class.String(), effect)
	}
}

var (
	makeOnline   = toClass(sched.Online, "it is not stopped any more, and batch work gives way to it")
	makeBatch    = toClass(sched.Batch, "it gives way to online work and takes turns with other batch work")
	makeStandard = toClass(sched.Standard, "it is scheduled as the device itself does, and takes no turns")
)

// moreWeight is a larger weight. A policy that uses the class divides the time of a class.
func moreWeight(s *situation) []string {
	of := "device time"
	if !s.uses(attr.Weight) {
		return nil
	}
	if s.uses(attr.Class) {
		of = "time that " + s.process.Attrs.Class().String() + " work has"
	}
	return s.set("giveway set %d --weight N", "with a larger N it gets a larger part of the "+of)
}

// orderBy names the attributes by which the policy puts queues in order. Those of an external
// policy are not known.
func orderBy(s *situation) (out []string) {
	if s.policy == policy.ExternalName {
		return nil
	}
	for _, id := range attr.IDs(attr.BySet) {
		if r := id.Row(); r.Uses != "" && id != attr.Expect && s.uses(id) {
			out = append(out, s.set("giveway set %d --"+r.Name+" VALUE", "policy "+s.policyName()+" decides by it")...)
		}
	}
	return out
}

func pauseIt(s *situation) []string {
	return s.set("giveway pause %d", "it waits until it is resumed")
}

func resumeIt(s *situation) []string {
	return s.set("giveway resume %d", "it uses its devices again")
}

// toPolicy returns a change of the policy.
func toPolicy(name, effect string) change {
	return func(s *situation) []string {
		command := "giveway policy " + name
		if s.caller != 0 {
			command += ", by root or the daemon's own user"
		}
		if s.policy == name {
			return nil
		}
		return []string{command + ": " + effect}
	}
}

var (
	makeNative  = toPolicy("native", "the device's own scheduling, for all processes")
	otherPolicy = toPolicy("NAME", "another policy; 'giveway policy list' lists them")
	useSLO      = toPolicy("slo", "online work goes first, and batch work gives way to it")
)

// useClasses is a policy that uses the class, if the policy does not.
func useClasses(s *situation) []string {
	if s.uses(attr.Class) {
		return nil
	}
	return useSLO(s)
}

// happens returns a change that is no command.
func happens(what string) change { return func(*situation) []string { return []string{what} } }

func (s *situation) policyName() string { return format.Text(s.policy, 40) }

// runBesideIfUnknown lists the policies under which a process runs beside the others if it
// is not known whether it has work. docs/POLICIES.md says why.
var runBesideIfUnknown = []string{"fifo", "edf", "kedf", "llf"}

// because returns why a queue runs or waits.
func (s *situation) because(r sched.Reason) string {
	if r == sched.IsFirst && s.process.Shim == nil && slices.Contains(runBesideIfUnknown, s.policy) {
		return "it has no shim, so that it is not known whether it has work. Under policy " + s.policy + " such a process runs beside the others"
	}
	return reasons[r].because
}

// changes returns the commands that would change how a queue with a reason is scheduled.
func (s *situation) changes(r sched.Reason) (out []string) {
	for _, c := range reasons[r].change {
		out = include(out, c(s)...)
	}
	if !s.mayChange() {
		out = include(out, fmt.Sprintf("only %s can set its attributes or pause it", s.owner()))
	}
	return out
}

// owner names the users that may change the process.
func (s *situation) owner() string {
	if s.process.UID == 0 {
		return "root"
	}
	name := format.Text(s.process.User, 40)
	if name == "" {
		name = strconv.Itoa(int(s.process.UID))
	}
	return "user " + name + " or root"
}

// policyOf returns the name of the policy in force for a queue.
func (f *Facts) policyOf(q *api.Queue) string {
	for _, own := range f.Policy.Devices {
		if own.Device == q.Device || own.Device == strconv.Itoa(q.Index) {
			return own.Name
		}
	}
	return f.Policy.Name
}
