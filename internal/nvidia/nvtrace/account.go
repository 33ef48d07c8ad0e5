package nvtrace

import (
	"cmp"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/stats"
	"github.com/giveway/giveway/sched"
)

// MaxSwitch is the longest time between END and START that counts as a context switch (81
// us on an H200). The GPU was idle if it took longer.
const MaxSwitch = time.Millisecond

// Limits of an Account.
const (
	maxPending = 1 << 20 // switches between two calls of Advance; more are lost
	maxAhead   = int64(time.Second)
	maxRecent  = 1024 // switch times that are kept for P50 and P99

	// maxWait is how long the first switch is waited for, which tells what was on the GPU
	// before it. After that the time is unknown.
	maxWait = int64(time.Second)
)

// Span is a hal.Span in GPU time.
type Span struct {
	Begin, End int64
	PID        uint32 // may be PIDHidden or PIDKernel
	Kind       hal.SpanKind
	Left       hal.Departure
}

// Totals are sums over all processes since the start of the Account. Resident, Switching
// and Idle never decrease. Together with Unknown they equal Window.
type Totals struct {
	Window    time.Duration
	Resident  time.Duration // a process was on the GPU
	Switching time.Duration // between an END and the next START
	// Idle is time with no process on the GPU. It includes a process that was on before
	// the start and exited alone, which leaves no record.
	Idle time.Duration
	// Unknown is time for which records were lost, or are still to come: before the first
	// record, and during a switch.
	Unknown time.Duration

	Switches uint64        // END to START within MaxSwitch
	P50, P99 time.Duration // of the last maxRecent switches

	Lost     uint64 // switches that were lost, by sequence number
	Unpaired uint64 // START without END, END without START
	Bad      uint64 // switches without a time, with an impossible one, or repeated
}

// Account turns switches into spans, and into the usage of the processes that are tracked.
// Add takes the switches that were read; Advance accounts for everything up to a time. Each
// moment is accounted for once, in spend, and that does not change: a switch that comes late
// counts as if it had happened at the last such time.
//
// Account accepts any switches in any order and has no clock of its own. A zero Account
// starts at the first time that Advance is called with. Once its buffers have grown it
// allocates nothing.
type Account struct {
	Slice      func(pid uint32) time.Duration   // the default slice of a process; nil: visits are not compared with it
	Cut        func(pid uint32, end int64) bool // whether the process was stopped then; may be nil
	MinAbsence time.Duration                    // after which a process counts as arrived; zero: none does
	// Left says how a visit of a process ended; nil: unknown.
	Left func(pid uint32, begin, end int64) hal.Departure
	// Spent is called with each span, in order. It may be nil. A span begins where the one
	// before ended, unless the clock was set back. A visit or a time that is not over is
	// reported in parts.
	Spent func(Span)

	begun   bool
	pending []Switch
	tracked table
	now     int64 // switches up to this time are applied

	state  state
	holder uint32 // in stateHeld: the pid on the GPU; in stateReleased: that was
	cameOn int64  // in stateHeld: the time of its START
	since  int64  // everything up to this time is spent
	endAt  int64  // in stateReleased: the time of the END

	haveSeq bool
	seq     uint16 // of the last switch
	at      int64  // of the last switch, as recorded

	totals Totals
	recent [maxRecent]time.Duration // the last switch times, a ring
}

type state int

const (
	stateUnknown  state = iota // no switch yet
	stateHeld                  // holder is on the GPU
	stateReleased              // END, and no START yet
	stateLost                  // unknown until the next switch
)

// NewAccount returns an Account that starts at a GPU time, such as Trace.Started.
func NewAccount(start int64) *Account {
	start = min(max(start, 0), maxTime)
	return &Account{begun: true, now: start, since: start, at: start}
}

// Add adds the switches that Read returned, in their order.
func (a *Account) Add(switches []Switch) {
	room := maxPending - len(a.pending)
	cut := len(switches) > room
	a.pending = append(a.pending, switches[:min(len(switches), room)]...)
	if cut {
		a.pending[len(a.pending)-1].Cut = true
	}
}

// Advance accounts for everything up to now, a GPU time. The process that came on last
// counts as on until now, for a process that is alone makes no records. Switches later than
// now are kept.
func (a *Account) Advance(now int64) {
	if now < 0 || now > maxTime {
		return
	}
	if !a.begun {
		a.begun, a.now, a.since = true, now, now
	}
	if now < a.now-maxAhead {
		a.lose()
		a.restart(now, stateLost)
	}
	a.extend(now)
	done := 0
	for _, s := range a.pending {
		if s.At > a.now && s.At-a.now <= maxAhead {
			break
		}
		a.apply(s)
		if s.Cut {
			a.lose()
		}
		done++
	}
	a.pending = slices.Delete(a.pending, 0, done)
	a.spendCertain()
}

// Reopen goes on with a trace that was opened at start, a GPU time, because the last one
// could not be read any more. The time in between is unknown. Usage and Totals are kept.
func (a *Account) Reopen(start int64) {
	start = min(max(start, 0), maxTime)
	a.pending = a.pending[:0]
	a.lose()
	if start >= a.now {
		a.extend(start)
		a.spendCertain()
	}
	a.restart(start, stateUnknown)
}

// Known reports whether the present state of the GPU is known: there was a switch, and none
// was lost since.
func (a *Account) Known() bool { return a.state == stateHeld || a.state == stateReleased }

// Totals returns the sums up to the last Advance.
func (a *Account) Totals() Totals {
	t := a.totals
	t.Unknown += time.Duration(a.now - a.since)
	recent := slices.Clone(a.recent[:min(t.Switches, maxRecent)])
	slices.Sort(recent)
	t.P50, t.P99 = stats.Quantile(recent, 0.50), stats.Quantile(recent, 0.99)
	return t
}

// extend makes the window end at now, but not earlier than it does.
func (a *Account) extend(now int64) {
	now = max(now, a.now)
	a.totals.Window += time.Duration(now - a.now)
	a.now = now
}

// restart goes on at now, in a state, without regard to earlier switches: the clock was set
// back, or the trace is another.
func (a *Account) restart(now int64, s state) {
	a.spend(hal.SpanUnknown, 0, a.now, hal.Stays)
	a.now, a.since, a.at = now, now, now
	a.state, a.haveSeq = s, false
}

// spend accounts for the time up to t. It is the only way to do so, so that the sums are
// those of the spans.
func (a *Account) spend(kind hal.SpanKind, pid uint32, t int64, left hal.Departure) {
	length := time.Duration(t - a.since)
	switch kind {
	case hal.SpanHeld:
		a.totals.Resident += length
		if u := a.tracked.of(pid); u != nil {
			u.Resident += length
		}
	case hal.SpanSwitch:
		a.totals.Switching += length
	case hal.SpanIdle:
		a.totals.Idle += length
	default:
		a.totals.Unknown += length
	}
	if a.Spent != nil && (length > 0 || left != hal.Stays || kind == hal.SpanSwitch) {
		a.Spent(Span{a.since, t, pid, kind, left})
	}
	a.since = t
}

// spendCertain accounts for the time up to now as far as it is certain.
func (a *Account) spendCertain() {
	switch {
	case a.state == stateHeld:
		a.spend(hal.SpanHeld, a.holder, a.now, hal.Stays)
	case a.state == stateReleased && a.now-a.endAt > int64(MaxSwitch):
		a.spend(hal.SpanIdle, 0, a.now, hal.Stays)
	case a.state == stateLost, a.state == stateUnknown && a.now-a.since > maxWait:
		a.spend(hal.SpanUnknown, 0, a.now, hal.Stays)
	}
}

// apply accounts for one switch that is not later than now, or impossible.
func (a *Account) apply(s Switch) {
	missing := s.Seq - a.seq - 1
	if a.haveSeq && missing >= 1<<15 && s.At <= a.at {
		a.totals.Bad++ // repeated
		return
	}
	if a.haveSeq && missing != 0 {
		a.totals.Lost += uint64(missing)
		a.lose() // what happened since is unknown
	}
	a.haveSeq, a.seq = true, s.Seq
	if s.At <= 0 || s.At > a.now {
		a.totals.Bad++
		if s.At != 0 {
			a.lose() // it happened at an unknown time
		}
		return
	}
	a.at = s.At
	t := max(s.At, a.since)
	if s.On {
		a.start(s, t)
	} else {
		a.end(s, t)
	}
}

// start accounts for a context that came on.
func (a *Account) start(s Switch, t int64) {
	again := false // the same process was on until now
	switch took := s.At - a.endAt; {
	case a.state == stateLost:
		a.spend(hal.SpanUnknown, 0, t, hal.Stays)
	case a.state == stateUnknown: // a context that was on before would have gone off first
		a.spend(hal.SpanIdle, 0, t, hal.Stays)
	case a.state == stateHeld: // the END of the holder is missing: it was on until now
		a.totals.Unpaired++
		a.spend(hal.SpanHeld, a.holder, t, hal.LeftUnknown)
		a.lose()
	case took > int64(MaxSwitch):
		a.spend(hal.SpanIdle, 0, t, hal.Stays)
	case took >= 0:
		a.recent[a.totals.Switches%maxRecent] = time.Duration(took)
		a.totals.Switches++
		again = a.holder == s.PID
		a.spend(hal.SpanSwitch, s.PID, t, hal.Stays)
	default: // it is earlier than the END before it
		a.spend(hal.SpanUnknown, 0, t, hal.Stays)
	}
	a.state, a.holder, a.cameOn = stateHeld, s.PID, s.At
	if u := a.tracked.of(s.PID); u != nil {
		u.SwitchIns++
		if !again || u.over {
			u.Visits.Count++
		}
		if a.MinAbsence > 0 && u.Left > 0 && s.At-u.Left >= int64(a.MinAbsence) {
			u.Arrived = s.At
		}
	}
}

// end accounts for a context that went off.
func (a *Account) end(s Switch, t int64) {
	u := a.tracked.of(s.PID)
	if u != nil {
		u.Left, u.over = s.At, false
	}
	switch {
	case a.state == stateHeld && a.holder == s.PID:
		if u != nil {
			a.endVisit(u, s)
		}
		left := hal.LeftUnknown
		if a.Left != nil {
			left = cmp.Or(a.Left(s.PID, a.cameOn, s.At), left)
		}
		a.spend(hal.SpanHeld, s.PID, t, left)
	case a.state == stateUnknown:
		a.spend(hal.SpanHeld, s.PID, t, hal.LeftUnknown)
	case a.state == stateHeld, a.state == stateReleased: // its START is missing
		a.totals.Unpaired++
		a.spend(hal.SpanUnknown, 0, t, hal.Stays)
	default:
		a.spend(hal.SpanUnknown, 0, t, hal.Stays)
	}
	a.state, a.holder, a.endAt = stateReleased, s.PID, s.At
}

// endVisit counts the visit of u that ended with s. One that took the whole slice is over even if the
// same context comes back at once.
func (a *Account) endVisit(u *Usage, s Switch) {
	if a.Slice == nil {
		return
	}
	took, slice := time.Duration(s.At-a.cameOn), a.Slice(s.PID)
	u.over = sched.IsFull(took, slice)
	u.Visits.End(took, slice, a.Cut != nil && a.Cut(s.PID, s.At))
}

// lose is for when switches were lost. The end of the visit that went on is then not known: what it was
// alone so far still counts, because Usage has told it.
func (a *Account) lose() {
	if u := a.tracked.of(a.holder); u != nil {
		u.Visits.Alone += a.aloneNow(a.holder)
	}
	a.state = stateLost
}

// aloneNow returns for how much of its present visit a process was alone.
func (a *Account) aloneNow(pid uint32) time.Duration {
	if a.state != stateHeld || a.holder != pid || a.Slice == nil {
		return 0
	}
	return sched.TimeAlone(time.Duration(a.now-a.cameOn), a.Slice(pid))
}
