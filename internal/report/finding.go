package report

import (
	"fmt"
	"math"
	"slices"
)

// finding is what the numbers say in one sentence, whichever way they point.
func (s *study) finding() string {
	switch {
	case len(s.subjects) == 0:
		return "The scenario has no clients: there is nothing to find."
	case len(s.o.Runs) == 0:
		return "Every client was run alone, and no policy was asked for: there is nothing to compare."
	}
	known := slices.DeleteFunc(slices.Clone(s.runs), func(r runFigures) bool { return math.IsNaN(r.ratio) && math.IsNaN(r.kept) })
	switch len(known) {
	case 0:
		return "Nothing was finished alone that a run could be compared with."
	case 1:
		return "Under " + known[0].policy + " " + s.both(known[0]) + "."
	case 2:
		a, b := known[0], known[1]
		if b.policy == "native" {
			a, b = b, a
		}
		return "Under " + b.policy + " " + s.both(b) + "; under " + a.policy + " " + s.short(a) + "."
	}
	return s.best(known)
}

// both says what a run comes to.
func (s *study) both(r runFigures) string {
	var text string
	if !math.IsNaN(r.ratio) {
		text = fmt.Sprintf("%s is %s that of running alone (%s)", s.p99Name(r), times(r.ratio), duration(r.p99))
	}
	if !math.IsNaN(r.kept) {
		if text != "" {
			text += " and "
		}
		text += fmt.Sprintf("%s work keeps %s of what the device would do of it alone", s.words.Batch, percent(r.kept))
	}
	return text
}

// short is both again, once the reader knows what is meant.
func (s *study) short(r runFigures) string {
	switch {
	case math.IsNaN(r.ratio):
		return "it keeps " + percent(r.kept)
	case math.IsNaN(r.kept):
		return fmt.Sprintf("it is %s (%s)", times(r.ratio), duration(r.p99))
	}
	return fmt.Sprintf("they are %s (%s) and %s", times(r.ratio), duration(r.p99), percent(r.kept))
}

func (s *study) p99Name(r runFigures) string {
	switch {
	case len(s.latency) == 1:
		return "the P99 latency of " + r.worst.name
	default:
		return fmt.Sprintf("the worst P99 latency of %d %s clients (%s)", len(s.latency), s.words.Online, r.worst.name)
	}
}

// best names, of three runs and more, the one with the lowest P99 and the one
// that keeps the most, and what each costs in the other.
func (s *study) best(runs []runFigures) string {
	byRatio, byKept := -1, -1
	for i, r := range runs {
		if !math.IsNaN(r.ratio) && (byRatio < 0 || r.ratio < runs[byRatio].ratio) {
			byRatio = i
		}
		if !math.IsNaN(r.kept) && (byKept < 0 || r.kept > runs[byKept].kept) {
			byKept = i
		}
	}
	of := fmt.Sprintf("Of %d policies, ", len(runs))
	switch {
	case byKept < 0:
		r := runs[byRatio]
		return of + fmt.Sprintf("%s does best: %s is %s that of running alone (%s).", r.policy, s.p99Name(r), times(r.ratio), duration(r.p99))
	case byRatio < 0:
		r := runs[byKept]
		return of + fmt.Sprintf("%s does best: %s work keeps %s of what the device would do of it alone.", r.policy, s.words.Batch, percent(r.kept))
	case byRatio == byKept:
		r := runs[byRatio]
		return of + r.policy + " does best by both measures: " + s.both(r) + "."
	}
	low, most := runs[byRatio], runs[byKept]
	return of + fmt.Sprintf("%s has the lowest tail: %s; %s keeps the most %s work, %s, with a tail of %s.",
		low.policy, s.both(low), most.policy, s.words.Batch, percent(most.kept), timesOr(most.ratio, "unknown length"))
}
