package analysis

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/sched"
)

// Finding returns the result in one or two sentences: the worst P99 and the work
// kept by each class under one policy, with the other policies for comparison. It
// is empty if nothing ran that could be compared.
func (a *Analysis) Finding() string {
	if len(a.Runs) == 0 {
		return ""
	}
	subject := a.subject()
	var parts []string
	if groups := a.TailGroups(); len(groups) > 0 {
		parts = append(parts, a.tailPhrase(groups, subject))
	}
	for _, c := range a.Classes {
		if !math.IsNaN(c.Runs[subject].WorkKept) {
			parts = append(parts, a.workPhrase(c, subject))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "With " + a.Runs[subject].Policy + " " + strings.Join(parts, "; ") + "." + a.best(subject)
}

// subject is the run that the finding is about: that under the scenario's own
// policy, else the last one.
func (a *Analysis) subject() int {
	own := func(r Run) bool { return r.Policy == a.Outcome.Policy }
	if i := slices.IndexFunc(a.Runs, own); i >= 0 && a.Outcome.Policy != scenario.Native {
		return i
	}
	return len(a.Runs) - 1
}

// others returns the same figure under the other policies, in brackets: all of
// them if there are at most three, else only native.
func (a *Analysis) others(subject int, figure func(run int) string) string {
	var list []string
	for i, r := range a.Runs {
		if i != subject && (len(a.Runs) <= 4 || r.Policy == scenario.Native) {
			list = append(list, r.Policy+": "+figure(i))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return " (" + strings.Join(list, ", ") + ")"
}

func (a *Analysis) tailPhrase(groups []*Group, subject int) string {
	several := len(groups) > 1
	short := func(run int) string { return a.Runs[run].Tail.text(several) }
	t := a.Runs[subject].Tail
	if t.FallsBehind || math.IsNaN(t.P99OverAlone) {
		return t.text(true) + a.others(subject, short)
	}
	text := "the P99 latency of " + t.Group.Name
	if several {
		clients := 0
		for _, g := range groups {
			clients += g.Count
		}
		text = fmt.Sprintf("the worst P99 latency of the %d %v clients, that of %s,", clients, t.Group.Class, t.Group.Name)
	}
	return text + " is " + format.Ratio(t.P99OverAlone) + " its P99 alone" + a.others(subject, short)
}

// text is the tail in a few words, with the group's name if named.
func (t Tail) text(named bool) string {
	name := ""
	if named {
		name = t.Group.Name + " "
	}
	switch {
	case t.FallsBehind:
		return name + "falls behind"
	case math.IsNaN(t.P99OverAlone):
		return name + "is not answered"
	}
	return name + format.Ratio(t.P99OverAlone)
}

func (a *Analysis) workPhrase(c *Class, subject int) string {
	kept := func(run int) string { return format.Percent(c.Runs[run].WorkKept) }
	others := a.others(subject, kept)
	if c.Clients == 1 {
		return fmt.Sprintf("%s keeps %s of its work%s", c.Groups[0].Name, kept(subject), others)
	}
	return fmt.Sprintf("the %d %v clients keep %s of their work%s", c.Clients, c.Class, kept(subject), others)
}

// best names, among three runs or more, the run with the lowest tail and the run in
// which batch clients keep the most work, unless it is the one that the finding is
// about.
func (a *Analysis) best(subject int) string {
	if len(a.Runs) < 3 {
		return ""
	}
	// largest returns the first run with the largest figure, or subject.
	largest := func(figure func(run int) float64) int {
		best := subject
		for i := range a.Runs {
			if x := figure(i); x > figure(best) || math.IsNaN(figure(best)) && !math.IsNaN(x) {
				best = i
			}
		}
		return best
	}
	text := ""
	i := largest(func(run int) float64 {
		if t := a.Runs[run].Tail; !t.FallsBehind {
			return -t.P99OverAlone
		}
		return math.NaN()
	})
	if i != subject {
		text += fmt.Sprintf(" Lowest P99: %s (%s).", a.Runs[i].Policy, format.Ratio(a.Runs[i].Tail.P99OverAlone))
	}
	for _, c := range a.Classes {
		i := largest(func(run int) float64 { return c.Runs[run].WorkKept })
		if i != subject {
			text += fmt.Sprintf(" Most %v work kept: %s (%s).", c.Class, a.Runs[i].Policy, format.Percent(c.Runs[i].WorkKept))
		}
	}
	return text
}

// Warnings lists what the reader must know before trusting the figures. A warning about
// several runs is given once.
func (a *Analysis) Warnings() []string {
	var w warnings
	var behind []string
	for i := range a.Outcome.Runs {
		run := &a.Outcome.Runs[i]
		r := &run.Result
		if run.Derived != "" {
			w.add(run.Derived+".", run.Policy)
		}
		if r.Overruled != sched.NoMistake {
			w.add(fmt.Sprintf("the policy %v. It was overruled, and for a while the device shared as without a daemon.", r.Overruled), run.Policy)
		}
		if r.Crashes > 0 {
			w.add(fmt.Sprintf("the scenario killed the daemon %s.", format.Plural(r.Crashes, "time")), run.Policy)
		}
		if r.Steps > 0 && r.Calls == 0 && run.Policy != scenario.Native {
			w.add("the policy changed nothing, so the figures are those of native. "+a.whyUnchanged(), run.Policy)
		}
		var groups []string
		for _, g := range a.Latency {
			if f := &g.Runs[i]; f.FallsBehind() {
				groups = append(groups, fmt.Sprintf("%s %d", g.Name, f.Unanswered))
			}
		}
		if len(groups) > 0 {
			behind = append(behind, run.Policy+" ("+strings.Join(groups, ", ")+")")
		}
	}
	if len(behind) > 0 {
		w.add("", "Requests without an answer when the run ended: "+strings.Join(behind, ", ")+". They count with their wait until then, so the true latency is longer.")
	}
	var left warnings
	for _, n := range a.Outcome.NotApplicable {
		left.add(n.Reason+".", n.Policy)
	}
	for _, text := range left.list() {
		w.add("", "Not applicable and not run: "+text)
	}
	return w.list()
}

// whyUnchanged says why a policy may have changed nothing.
func (a *Analysis) whyUnchanged() string {
	clients, most := map[sched.DeviceID]int{}, 0
	for _, g := range a.Groups {
		clients[g.Device] += g.Count
		most = max(most, clients[g.Device])
	}
	if most == 1 {
		return "No device has more than one client, so there is nothing to schedule."
	}
	return "Without the shim nothing tells whether a process has work, and slo and giveway leave standard processes to the device: see docs/POLICIES.md."
}

// warnings collects texts and the policies that each is about.
type warnings []warning

type warning struct {
	text     string
	policies []string
}

func (w *warnings) add(text, policy string) {
	for i := range *w {
		if (*w)[i].text == text && text != "" {
			(*w)[i].policies = append((*w)[i].policies, policy)
			return
		}
	}
	*w = append(*w, warning{text, []string{policy}})
}

// list returns each text behind its policies.
func (w warnings) list() []string {
	var all []string
	for _, v := range w {
		line := strings.Join(v.policies, ", ")
		if v.text != "" {
			line += ": " + v.text
		}
		all = append(all, line)
	}
	return all
}
