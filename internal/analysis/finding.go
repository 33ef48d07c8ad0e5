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
	return "With " + a.Runs[subject].Policy + " " + strings.Join(parts, "; ") + "." + a.best()
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
		text = fmt.Sprintf("the worst P99 latency of the %d %v clients, that of %s,", clients(groups), t.Group.Class, t.Group.Name)
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

// best names, among three runs or more, the one with the lowest tail and the one
// in which batch clients keep the most work.
func (a *Analysis) best() string {
	if len(a.Runs) < 3 {
		return ""
	}
	text := ""
	low := -1
	for i, r := range a.Runs {
		if t := r.Tail; t.Group != nil && !t.FallsBehind && (low < 0 || t.P99OverAlone < a.Runs[low].Tail.P99OverAlone) {
			low = i
		}
	}
	if low >= 0 && !math.IsNaN(a.Runs[low].Tail.P99OverAlone) {
		text += fmt.Sprintf(" Lowest P99: %s (%s).", a.Runs[low].Policy, format.Ratio(a.Runs[low].Tail.P99OverAlone))
	}
	if i := slices.IndexFunc(a.Classes, func(c *Class) bool { return c.Class == sched.Batch }); i >= 0 {
		runs := a.Classes[i].Runs
		most := 0
		for r := range runs {
			if runs[r].WorkKept > runs[most].WorkKept {
				most = r
			}
		}
		if !math.IsNaN(runs[most].WorkKept) {
			text += fmt.Sprintf(" Most batch work kept: %s (%s).", a.Runs[most].Policy, format.Percent(runs[most].WorkKept))
		}
	}
	return text
}

// Warnings lists what the reader must know before trusting the figures.
func (a *Analysis) Warnings() []string {
	var all []string
	for i := range a.Outcome.Runs {
		run := &a.Outcome.Runs[i]
		if m := run.Result.Overruled; m != sched.NoMistake {
			all = append(all, fmt.Sprintf("%s: the policy %v. It was overruled, and for a while the device shared as without a daemon.", run.Policy, m))
		}
		if n := run.Result.Crashes; n > 0 {
			all = append(all, fmt.Sprintf("%s: the scenario killed the daemon %s.", run.Policy, format.Plural(n, "time")))
		}
		for _, g := range a.Latency {
			if f := &g.Runs[i]; f.FallsBehind() {
				all = append(all, fmt.Sprintf("%s: %s had no answer to %s when the run ended. They count with their wait until then: the true latency is longer.",
					run.Policy, g.Name, format.Plural(f.Unanswered, "request")))
			}
		}
	}
	return all
}

func clients(groups []*Group) int {
	n := 0
	for _, g := range groups {
		n += g.Count
	}
	return n
}
