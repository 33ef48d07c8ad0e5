package nvtrace

import (
	"cmp"
	"slices"
	"time"
)

// MaxSwitch divides going off and coming on (81 us on an H200) from nobody's
// wanting the GPU: a longer time between END and START is idle.
const MaxSwitch = time.Millisecond

// Limits of an Account.
const (
	maxPending = 1 << 20 // switches that wait for Usage; more are lost
	maxPIDs    = 1 << 16 // processes apart; what more there are is PIDHidden's
	maxAhead   = int64(time.Second)
)

// Usage is one process's part of the GPU since the Account's start.
type Usage struct {
	PID       uint32
	Resident  time.Duration // time its contexts were on the GPU; never less than it was
	SwitchIns uint64        // times one came on
	On        bool          // one is on now
}

// Totals are of all processes since the Account's start. Resident, Switching and
// Idle never go back, and with Unknown they are the Window.
type Totals struct {
	Window    time.Duration
	Resident  time.Duration // somebody held it
	Switching time.Duration // between one's END and the next one's START
	// Idle is time that nobody held it; or that one did who came before the start
	// and died alone, which leaves no record.
	Idle time.Duration
	// Unknown is time that lost records would have told of, or that a record to
	// come will: before the first one, and a switch that is being made.
	Unknown time.Duration

	Switches           uint64 // END to START within MaxSwitch
	P50, P90, P99, Max time.Duration

	Lost     uint64 // switches that were lost, by their numbers
	Unpaired uint64 // START without END, END without START
	Bad      uint64 // switches with no time, or an impossible one, or that came again
}

// Account turns switches into time on the GPU per process. Add hands it what was
// read, Usage settles it up to a time. Time that is settled stays so: what is
// late is taken to have been at the time settled last.
//
// It takes any switches, in any order, and has no clock of its own. A zero
// Account starts at the first time that it is asked for.
type Account struct {
	begun   bool
	pending []Switch
	pids    map[uint32]*usage
	now     int64 // settled up to here

	state  state
	holder uint32 // whose it is, when held
	since  int64  // time from here on has no owner yet
	endAt  int64  // when released: the END's own time

	haveSeq bool
	seq     uint16 // of the last switch
	at      int64  // of the last switch, as it says

	totals    Totals
	durations histogram
}

type usage struct {
	resident int64
	ins      uint64
}

type state int

const (
	fresh    state = iota // no switch yet: its first tells who had it
	held                  // by holder
	released              // END, and no START yet
	lost                  // not known until the next switch
)

// NewAccount starts an account at a GPU time: Trace.Started.
func NewAccount(start int64) *Account {
	start = min(max(start, 0), maxTime)
	return &Account{begun: true, now: start, since: start, at: start}
}

// Add takes what Read returned, in its order.
func (a *Account) Add(switches []Switch) {
	room := maxPending - len(a.pending)
	if len(switches) > room {
		// The numbers of those that follow will show the gap.
		switches = switches[:room]
	}
	a.pending = append(a.pending, switches...)
}

// Usage settles everything up to now, a GPU time, and returns each process's
// part, by pid. Whoever came on last is on until now: one that is alone makes no
// records. Switches later than now are kept for the next time.
func (a *Account) Usage(now int64) []Usage {
	a.settle(now)
	out := make([]Usage, 0, len(a.pids))
	for pid, u := range a.pids {
		on := a.state == held && a.name(a.holder) == pid
		out = append(out, Usage{PID: pid, Resident: time.Duration(u.resident), SwitchIns: u.ins, On: on})
	}
	slices.SortFunc(out, func(x, y Usage) int { return cmp.Compare(x.PID, y.PID) })
	return out
}

// Totals settles everything up to now, a GPU time, and returns the sums.
func (a *Account) Totals(now int64) Totals {
	a.settle(now)
	t := a.totals
	t.Unknown = t.Window - t.Resident - t.Switching - t.Idle
	t.Switches = a.durations.n
	t.P50, t.P90, t.P99 = a.durations.quantile(0.50), a.durations.quantile(0.90), a.durations.quantile(0.99)
	t.Max = time.Duration(a.durations.max)
	return t
}

func (a *Account) settle(now int64) {
	if now < 0 || now > maxTime {
		return
	}
	if !a.begun {
		a.begun, a.now, a.since = true, now, now
	}
	if now < a.now-maxAhead {
		a.restart(now)
	}
	now = max(now, a.now)
	a.totals.Window += time.Duration(now - a.now)
	a.now = now
	done := 0
	for _, s := range a.pending {
		if s.At > now && s.At-now <= maxAhead {
			break
		}
		a.apply(s)
		done++
	}
	a.pending = slices.Delete(a.pending, 0, done)
	a.advance()
}

// restart begins again at now: the clock was set back.
func (a *Account) restart(now int64) {
	a.now, a.since, a.at = now, now, now
	a.state, a.haveSeq = lost, false
}

// advance gives the time up to now to whom it is certain to belong.
func (a *Account) advance() {
	switch {
	case a.state == held:
		a.give(a.holder, a.now)
	case a.state == released && a.now-a.endAt > int64(MaxSwitch):
		a.idle(a.now)
	}
}

// apply moves on over one switch that is not later than now, or impossible.
func (a *Account) apply(s Switch) {
	missing := s.Seq - a.seq - 1
	if a.haveSeq && missing >= 1<<15 && s.At <= a.at {
		a.totals.Bad++ // it was here before
		return
	}
	gap := a.haveSeq && missing != 0
	if gap {
		a.totals.Lost += uint64(missing)
	}
	a.haveSeq, a.seq = true, s.Seq
	if gap {
		a.state = lost // and the time since then is nobody's
	}
	if s.At <= 0 || s.At > a.now {
		a.totals.Bad++
		if s.At != 0 {
			a.state = lost // it happened, nobody knows when
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

// start is a context's coming on.
func (a *Account) start(s Switch, t int64) {
	switch a.state {
	case fresh: // somebody on before would have gone off first
		a.idle(t)
	case held: // its END is missing: it was on until now
		a.totals.Unpaired++
		a.give(a.holder, t)
	case released:
		took := s.At - a.endAt
		if took > int64(MaxSwitch) {
			a.idle(t)
			break
		}
		if took >= 0 {
			a.durations.add(took)
		}
		a.totals.Switching += time.Duration(t - a.since)
	}
	a.state, a.holder, a.since = held, s.PID, t
	a.of(s.PID).ins++
}

// end is a context's going off.
func (a *Account) end(s Switch, t int64) {
	switch {
	case a.state == fresh, a.state == held && a.holder == s.PID:
		a.give(s.PID, t)
	case a.state == held, a.state == released: // when it came on is missing
		a.totals.Unpaired++
	}
	a.state, a.since, a.endAt = released, t, s.At
}

// give makes the time up to t a process's.
func (a *Account) give(pid uint32, t int64) {
	a.of(pid).resident += t - a.since
	a.totals.Resident += time.Duration(t - a.since)
	a.since = t
}

// idle makes the time up to t nobody's.
func (a *Account) idle(t int64) {
	a.totals.Idle += time.Duration(t - a.since)
	a.since = t
}

// name is the pid that a process is accounted under.
func (a *Account) name(pid uint32) uint32 {
	if a.pids[pid] == nil && len(a.pids) >= maxPIDs {
		return PIDHidden
	}
	return pid
}

func (a *Account) of(pid uint32) *usage {
	pid = a.name(pid)
	u := a.pids[pid]
	if u == nil {
		if a.pids == nil {
			a.pids = map[uint32]*usage{}
		}
		u = &usage{}
		a.pids[pid] = u
	}
	return u
}
