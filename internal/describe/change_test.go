package describe

import (
	"slices"
	"strings"
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// TestChangesHaveAnEffect: what is recommended has an effect under the policy and on the
// process, and the caller may do it.
func TestChangesHaveAnEffect(t *testing.T) {
	const bob, eve = 1001, 1002
	for _, c := range []struct {
		name   string
		policy string
		reason sched.Reason
		class  string
		caller int
		want   []string // the command of each
	}{
		{"native ignores the class", "native", sched.ByDefault, "online", 0, []string{"giveway policy slo", "giveway pause 7"}},
		{"a user may not change the policy", "native", sched.ByDefault, "online", bob, []string{"giveway policy slo, by root or the daemon's own user", "giveway pause 7"}},
		{"slo uses the class", "slo", sched.ByDefault, "standard", 0, []string{"giveway set 7 --class online", "giveway set 7 --class batch", "giveway pause 7"}},
		{"not the class that it has", "slo", sched.IsOnline, "batch", 0, []string{"giveway pause 7"}},
		{"weights of batch work", "slo", sched.ItsTurn, "batch", 0, []string{"giveway set 7 --weight N", "giveway set 7 --class standard", "giveway pause 7"}},
		{"online work has no use for its weight", "slo", sched.FloorTurn, "online", 0, []string{"giveway set 7 --class standard"}},
		{"wfq divides all by weight", "wfq", sched.Shared, "online", 0, []string{"giveway set 7 --weight N", "giveway policy slo", "giveway pause 7"}},
		{"fifo uses no attribute", "fifo", sched.NotFirst, "batch", 0, []string{"giveway policy slo", "giveway policy native"}},
		{"hpf orders by priority", "hpf", sched.NotFirst, "batch", 0, []string{"giveway set 7 --priority VALUE", "giveway policy slo", "giveway policy native"}},
		{"edf orders by deadline", "edf", sched.IsFirst, "batch", bob, []string{"giveway set 7 --deadline VALUE", "giveway policy slo, by root or the daemon's own user", "giveway pause 7"}},
		{"another user", "slo", sched.ItsTurn, "batch", eve, []string{"only user bob or root can set its attributes or pause it"}},
		{"another user's is paused", "slo", sched.UserPaused, "batch", eve, []string{"only user bob or root can set its attributes or pause it"}},
	} {
		p := api.Process{PID: 7, User: "bob", UID: bob, Attrs: from(attr.FromSet, "class="+c.class)}
		var got []string
		for _, text := range (&situation{&p, c.policy, c.caller}).changes(c.reason) {
			command, _, _ := strings.Cut(text, ": ")
			got = append(got, command)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestChangesNameOnlyAttributesThatThePolicyUses checks every reason under every policy.
func TestChangesNameOnlyAttributesThatThePolicyUses(t *testing.T) {
	for _, info := range policy.List() {
		for _, r := range sched.Reasons() {
			for _, class := range attr.ClassNames() {
				p := api.Process{PID: 7, Attrs: from(attr.FromSet, "class="+class)}
				for _, text := range (&situation{&p, info.Name, 0}).changes(r) {
					_, option, isSet := strings.Cut(text, "giveway set 7 --")
					if !isSet {
						continue
					}
					name, _, _ := strings.Cut(option, " ")
					if name == "real-time" {
						name = "nice" // Info.Uses has one name for both
					}
					if !slices.Contains(info.Uses, name) || strings.HasPrefix(option, "class "+class+":") {
						t.Errorf("policy %s, reason %v, class %s: got %q", info.Name, r, class, text)
					}
				}
			}
		}
	}
}

// TestPolicyOfADevice: a device may have its own policy.
func TestPolicyOfADevice(t *testing.T) {
	f := Facts{Policy: api.Policy{Name: "slo", Devices: []api.Policy{{Name: "fifo", Device: "GPU-b"}, {Name: "rr", Device: "2"}}}}
	for _, c := range []struct {
		queue api.Queue
		want  string
	}{
		{api.Queue{Device: "GPU-a"}, "slo"},
		{api.Queue{Device: "GPU-b", Index: 1}, "fifo"},
		{api.Queue{Device: "GPU-c", Index: 2}, "rr"},
	} {
		if got := f.policyOf(&c.queue); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.queue, got, c.want)
		}
	}
}

// TestFirstOfThoseThatAreKnown: without the shim it is not known whether a process has work,
// and fifo does not put it in its order.
func TestFirstOfThoseThatAreKnown(t *testing.T) {
	for _, c := range []struct {
		policy string
		shim   *api.Shim
		want   string
	}{
		{"fifo", nil, "it has no shim, so that it is not known whether it has work. Under policy fifo such a process runs beside the others"},
		{"fifo", &api.Shim{}, "it goes before all others in the policy's order"},
		{"hpf", nil, "it goes before all others in the policy's order"},
	} {
		s := situation{&api.Process{PID: 7, Shim: c.shim}, c.policy, 0}
		if got := s.because(sched.IsFirst); got != c.want {
			t.Errorf("policy %s, shim %v: got %q, want %q", c.policy, c.shim, got, c.want)
		}
	}
}
