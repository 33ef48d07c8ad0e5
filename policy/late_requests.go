package policy

import (
	"slices"
	"time"

	"github.com/giveway/giveway/sched"
)

// This file counts late requests, by which the ladder judges a rung. It distinguishes those that are
// late because of the rung from those that met a stall of the host.

// rungRequests describes the requests that began since the current rung came into force.
type rungRequests struct {
	requests int
	late     int
	lastLate [lateLimit]int              // numbers of the last late requests, the newest first; the first min(late, lateLimit) are valid
	spare    [keptRequests]time.Duration // SLO minus duration of the last requests
	took     [keptRequests]time.Duration // their durations
	failed   bool                        // too many were late
}

// allRequests describes the requests under all rungs. The recent ones are roughly the last
// budgetRequests: their numbers decay.
type allRequests struct {
	allTook        [2 * probeRequests]time.Duration // durations of the last requests
	total          int                              // requests whose durations are known
	recentRequests float64
	recentLate     float64 // late ones that count
	recentStalls   float64 // late ones that took so long that a stall may be the reason: see countStall
	stallsInRow    int
}

// addDuration keeps how long a finished request took.
func (l *ladder) addDuration(took time.Duration) {
	l.allTook[l.total%len(l.allTook)] = took
	l.total++
}

// addRequest counts a request that is finished or late. took is its duration so far, allowed its
// SLO, and score the late score of its queue, which addRequest updates.
func (l *ladder) addRequest(began sched.Time, took, allowed time.Duration, score *float64) {
	late := took > allowed
	stalled := late && l.countStall(took)
	if !late {
		l.stallsInRow = 0
	}
	l.recentStalls -= l.recentStalls / budgetRequests
	l.recentRequests += 1 - l.recentRequests/budgetRequests
	l.recentLate -= l.recentLate / budgetRequests
	if stalled {
		return // the setting is not the reason
	}
	if late {
		l.recentLate++
	}
	if began < l.since {
		return // another setting was in force, at least at first
	}
	r := &l.rungs[l.current]
	if r.tried++; r.tried > 4*keptRequests {
		r.tried, r.late = r.tried/2, r.late/2
	}
	n := l.requests % keptRequests
	l.spare[n], l.took[n] = allowed-took, took
	l.requests++
	if late {
		r.late++
		l.late++
		copy(l.lastLate[1:], l.lastLate[:])
		l.lastLate[0] = l.requests
	}
	if l.current != l.chosen {
		return // the first late request ends a probe: it needs no score
	}
	if !late {
		*score = max(*score-lateBySetting, 0)
		return
	}
	if *score++; l.nearlyLate() {
		*score++
	}
	l.failed = l.failed || *score >= lateLimit
}

// countStall counts a late request as a stall if it took so long that the setting is hardly the
// reason. It reports whether the request is excused. If stalls are many, or many in a row, the setting
// is the reason.
func (l *ladder) countStall(took time.Duration) bool {
	if l.total < probeRequests/2 || took < l.stallTime() {
		l.stallsInRow = 0
		return false
	}
	l.recentStalls++
	l.stallsInRow++
	limit := maxStallsInRow
	if l.current != l.chosen {
		limit = 1 // two in a row are due to the probe
	}
	return l.stallsInRow <= limit && l.recentStalls <= maxStallsInRow+lateByStall*min(float64(l.total), budgetRequests)
}

// stallTime returns the duration from which on a late request may be due to a stall of the host.
func (l *ladder) stallTime() time.Duration {
	usual := quantileOf(l.allTook[:], l.total, 1, 2)
	spread := quantileOf(l.allTook[:], l.total, 9, 10) - usual
	return usual + stallFactor*max(l.batchStay(l.current), l.device.StopTime, spread)
}

// latePeriod returns after how long a request that is still open counts as late. It is late after
// its SLO, but until stallTime it may turn out to be due to a stall. The result is at most twice
// the SLO.
func (l *ladder) latePeriod(allowed time.Duration) time.Duration {
	return min(max(allowed+1, l.stallTime()), 2*allowed)
}

// nearlyLate reports whether one in a hundred requests would be late, even if none
// has been, if the durations of the slow requests are normally distributed. Then
// the time from the slowest tenth to the slowest hundredth is 1.72 times that from
// the slowest quarter to the slowest tenth. If there are two kinds of requests, the
// quarter may be of the faster kind; so the time from the slowest tenth to the very
// slowest is used if it is shorter.
func (l *ladder) nearlyLate() bool {
	if l.requests < probeRequests {
		return false
	}
	least, tenth, quarter := l.spareOf(0, 1), l.spareOf(1, 10), l.spareOf(1, 4)
	return float64(tenth) < 1.72*float64(min(quarter-tenth, tenth-least))
}

// spareOf returns a quantile of the time that the last requests had to spare.
func (l *ladder) spareOf(num, den int) time.Duration {
	return quantileOf(l.spare[:], l.requests, num, den)
}

// quantileOf returns the value below which num/den of the last n values in a ring
// are, or 0 if there are none.
func quantileOf(ring []time.Duration, n, num, den int) time.Duration {
	var buf [keptRequests]time.Duration
	values := buf[:copy(buf[:], ring[:min(n, len(ring))])]
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[len(values)*num/den]
}
