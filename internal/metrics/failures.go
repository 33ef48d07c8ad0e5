package metrics

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/giveway/giveway/sched"
)

const (
	// FailureTime is for how long failed actions are remembered.
	FailureTime = time.Hour
	// reportTime is for how long failures of the same kind are not worth another line, and
	// maxReports how many lines there are in that time.
	reportTime = time.Minute
	maxReports = 32

	minutes = int(FailureTime / time.Minute)
)

// failures counts the failed actions of the last hour, minute by minute.
type failures struct {
	counts [minutes]int
	last   sched.Time // of the last failure; the counts are those of the hour before it
	what   Action     // the last one

	reported []reported
}

// reported is a kind of failure that had a line.
type reported struct {
	pid     int
	verb    sched.Verb
	level   sched.Level
	outcome sched.Outcome
	at      sched.Time
}

// add counts a failure. It reports whether it is worth a line.
func (f *failures) add(a Action) bool {
	f.turn(a.At)
	f.counts[minuteOf(f.last)%minutes]++
	f.what = a
	f.reported = slices.DeleteFunc(f.reported, func(r reported) bool { return a.At.Sub(r.at) >= reportTime })
	r := reported{a.PID, a.Verb, a.Level, a.Outcome, 0}
	if len(f.reported) >= maxReports || slices.ContainsFunc(f.reported, func(o reported) bool { o.at = 0; return o == r }) {
		return false
	}
	r.at = a.At
	f.reported = append(f.reported, r)
	return true
}

// turn forgets what is more than an hour before now.
func (f *failures) turn(now sched.Time) {
	now = max(now, f.last)
	for m := max(minuteOf(f.last)+1, minuteOf(now)-minutes+1); m <= minuteOf(now); m++ {
		f.counts[m%minutes] = 0
	}
	f.last = now
}

func minuteOf(t sched.Time) int { return int(time.Duration(t) / time.Minute) }

// Failures says how many actions failed in the last hour, and which one was the last.
func (t *Tally) Failures(now sched.Time) (count int, last Action) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures.turn(now)
	for _, n := range t.failures.counts {
		count += n
	}
	return count, t.failures.what
}

// String returns the action and its outcome in a few words.
func (a *Action) String() string {
	var b strings.Builder
	b.WriteString(a.Verb.String())
	if name := levelNames[min(int(a.Level), levels-1)]; name != "" {
		b.WriteString(" (" + name + ")")
	}
	fmt.Fprintf(&b, " of process %d: %v", a.PID, a.Outcome)
	return b.String()
}

var levelNames = [levels]string{"", "hold", "deactivate", "interrupt"}
