package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/giveway/giveway/internal/format"
	"github.com/giveway/giveway/internal/scenario"
	"github.com/giveway/giveway/sched"
)

// summary says in a sentence or two what the numbers come to: the worst tail
// among the programs that somebody waits for, and what the others got done.
func summary(o *scenario.Outcome) string {
	if len(o.Runs) == 0 {
		return ""
	}
	all := jobs(o)
	var parts []string
	if s := tailSentence(o, all); s != "" {
		parts = append(parts, s)
	}
	for _, c := range crews(all) {
		parts = append(parts, crewSentence(o, &c))
	}
	if len(parts) == 0 {
		return ""
	}
	return "With " + o.Runs[subject(o)].Policy + " " + strings.Join(parts, "; ") + "." + unanswered(o, all)
}

// subject is the run that the sentence is about: giveway's, or the last.
func subject(o *scenario.Outcome) int {
	isGiveway := func(r scenario.Run) bool {
		name, _, _ := strings.Cut(r.Policy, ":")
		return name == "giveway"
	}
	if i := slices.IndexFunc(o.Runs, isGiveway); i >= 0 {
		return i
	}
	return len(o.Runs) - 1
}

// others adds what to compare with, in brackets: all other runs if they are few,
// else the native one.
func others(o *scenario.Outcome, value func(run int) string) string {
	var words []string
	for i, r := range o.Runs {
		if i == subject(o) || len(o.Runs) > 4 && r.Policy != scenario.Native {
			continue
		}
		words = append(words, r.Policy+": "+value(i))
	}
	if len(words) == 0 {
		return ""
	}
	return " (" + strings.Join(words, ", ") + ")"
}

// tailSentence is about the online programs, or the standard ones if there are
// no others to wait for.
func tailSentence(o *scenario.Outcome, all []job) string {
	for _, class := range []sched.Class{sched.Online, sched.Standard} {
		var waiting []*job
		for i := range all {
			if j := &all[i]; j.waits() && j.class == class && j.alone.latency.P99 > 0 {
				waiting = append(waiting, j)
			}
		}
		if len(waiting) == 0 {
			continue
		}
		what := "the P99 of " + waiting[0].name
		if len(waiting) > 1 {
			what = fmt.Sprintf("the worst P99 of the %d %v programs", len(waiting), class)
		}
		tail := func(run int) string { return worstTail(waiting, run).String() }
		here := worstTail(waiting, subject(o))
		switch {
		case here.times == 0:
			what = here.String()
		case here.of != "":
			what += " is " + format.Ratio(here.times) + " that alone, for " + here.of
		default:
			what += " is " + format.Ratio(here.times) + " that alone"
		}
		return what + others(o, tail)
	}
	return ""
}

// tail is the longest P99 among some jobs, as a multiple of that alone.
type tail struct {
	times float64 // zero: it has none
	of    string  // whose it is, if there are several jobs
	why   string  // it has none
}

func (t tail) String() string {
	switch {
	case t.times == 0:
		return t.why
	case t.of != "":
		return format.Ratio(t.times) + " for " + t.of
	}
	return format.Ratio(t.times)
}

// worstTail finds the longest, unless a job falls ever further behind: then any
// multiple only tells how long the run was.
func worstTail(jobs []*job, run int) tail {
	var t tail
	for _, j := range jobs {
		f := &j.runs[run]
		switch x := j.tail(run); {
		case f.unfinished > 2 && f.unfinished > f.latency.Count/100:
			return tail{why: j.name + " falls behind"}
		case x == 0:
			return tail{why: j.name + " is not answered"}
		case x > t.times:
			t.times = x
			if len(jobs) > 1 {
				t.of = j.name
			}
		}
	}
	return t
}

func crewSentence(o *scenario.Outcome, c *crew) string {
	kept := func(run int) string { return format.Percent(c.kept(run)) }
	of := "of what one does alone"
	if c.devices() > 1 {
		of = "of what one on each device does alone"
	}
	who := fmt.Sprintf("the %d %v jobs together do", c.programs, c.class)
	switch {
	case c.programs == 1:
		who, of = c.jobs[0].name+" does", "of what it does alone"
	case !c.flatOut:
		of = "of what is asked of them"
	}
	return fmt.Sprintf("%s %s %s%s", who, kept(subject(o)), of, others(o, kept))
}

// unanswered warns where the wait is longer than the numbers say.
func unanswered(o *scenario.Outcome, all []job) string {
	s := ""
	for i := range all {
		j := &all[i]
		if n := j.runs[subject(o)].unfinished; j.waits() && n > 1 {
			s += fmt.Sprintf(" %d requests of %s are still unanswered at the end.", n, j.name)
		}
	}
	return s
}
