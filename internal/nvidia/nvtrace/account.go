package nvtrace

import (
	"cmp"
	"slices"
	"time"

	"github.com/giveway/giveway/internal/stats"
)

// MaxSwitch is the longest time between END and START that counts as a context switch (81
// us on an H200). The GPU was idle if it took longer.
const MaxSwitch = time.Millisecond

// Limits of an Account.
const (
	maxPending = 1 << 20 // switches between two calls of Usage; more are lost
	maxPIDs    = 1 << 16 // processes; further ones count as PIDHidden
	maxAhead   = int64(time.Second)
	maxRecent  = 1024 // switch times that are kept for P50 and P99
)

// Usage is the GPU time of one process since the start of the Account.
type Usage struct {
	PID       uint32
	Resident  time.Duration // time that its contexts were on the GPU; never decreases
	SwitchIns uint64        // how often one came on
	Full      uint64        // of those, the visits for which Account.IsFull was true when they ended
	Arrived   int64         // GPU time at which one last came on after none was for MinAbsence; zero: never
	On        bool          // one is on now
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

// Account turns switches into time on the GPU per process. Add takes the switches that were
// read; Usage accounts for everything up to a time. Time that is accounted for does not
// change: a switch that comes late counts as if it had happened at the last such time.
//
// Account accepts any switches in any order and has no clock of its own. A zero Account
// starts at the first time that Usage or Totals is called with.
type Account struct {
	IsFull     func(visit time.Duration) bool // counts visits by their length; may be nil
	MinAbsence time.Duration                  // after which a process counts as arrived; zero: none does

	begun   bool
	pending []Switch
	pids    map[uint32]*usage
	now     int64 // everything up to this time is accounted for

	state  state
	holder uint32 // in stateHeld: the pid on the GPU
	cameOn int64  // in stateHeld: the time of its START; zero: unknown
	since  int64  // time from here on is not attributed yet
	endAt  int64  // in stateReleased: the time of the END

	haveSeq bool
	seq     uint16 // of the last switch
	at      int64  // of the last switch, as recorded

	totals Totals
	recent [maxRecent]time.Duration // the last switch times, a ring
}

type usage struct {
	resident int64
	ins      uint64
	full     uint64
	arrived  int64
	leftAt   int64 // the time of its last END; zero: none
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
	if len(switches) > room {
		// The sequence numbers of later switches show the gap.
		switches = switches[:room]
	}
	a.pending = append(a.pending, switches...)
}

// Usage accounts for everything up to now, a GPU time, and returns the usage of each
// process, sorted by pid. The process that came on last counts as on until now, for a
// process that is alone makes no records. Switches later than now are kept.
func (a *Account) Usage(now int64) []Usage {
	a.advanceTo(now)
	out := make([]Usage, 0, len(a.pids))
	for pid, u := range a.pids {
		on := a.state == stateHeld && a.accountedPID(a.holder) == pid
		out = append(out, Usage{PID: pid, Resident: time.Duration(u.resident), SwitchIns: u.ins, Full: u.full, Arrived: u.arrived, On: on})
	}
	slices.SortFunc(out, func(x, y Usage) int { return cmp.Compare(x.PID, y.PID) })
	return out
}

// Totals accounts for everything up to now, a GPU time, and returns the sums.
func (a *Account) Totals(now int64) Totals {
	a.advanceTo(now)
	t := a.totals
	t.Unknown = t.Window - t.Resident - t.Switching - t.Idle
	recent := slices.Clone(a.recent[:min(t.Switches, maxRecent)])
	slices.Sort(recent)
	t.P50, t.P99 = stats.Quantile(recent, 0.50), stats.Quantile(recent, 0.99)
	return t
}

// Switching returns the time lost in context switches so far, and their number, as in Totals.
func (a *Account) Switching() (lost time.Duration, switches uint64) {
	return a.totals.Switching, a.totals.Switches
}

// advanceTo applies the pending switches that are not later than now.
func (a *Account) advanceTo(now int64) {
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
	a.attribute()
}

// restart starts again at now, because the clock was set back.
func (a *Account) restart(now int64) {
	a.now, a.since, a.at = now, now, now
	a.state, a.haveSeq = stateLost, false
}

// attribute adds the time up to now to a process, or to idle time, as far as it is certain.
func (a *Account) attribute() {
	switch {
	case a.state == stateHeld:
		a.addResident(a.holder, a.now)
	case a.state == stateReleased && a.now-a.endAt > int64(MaxSwitch):
		a.addIdle(a.now)
	}
}

// apply accounts for one switch that is not later than now, or impossible.
func (a *Account) apply(s Switch) {
	missing := s.Seq - a.seq - 1
	if a.haveSeq && missing >= 1<<15 && s.At <= a.at {
		a.totals.Bad++ // repeated
		return
	}
	gap := a.haveSeq && missing != 0
	if gap {
		a.totals.Lost += uint64(missing)
	}
	a.haveSeq, a.seq = true, s.Seq
	if gap {
		a.state = stateLost // the time since then stays unknown
	}
	if s.At <= 0 || s.At > a.now {
		a.totals.Bad++
		if s.At != 0 {
			a.state = stateLost // it happened at an unknown time
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
	switch a.state {
	case stateUnknown: // a context that was on before would have gone off first
		a.addIdle(t)
	case stateHeld: // the END of the holder is missing: it was on until now
		a.totals.Unpaired++
		a.addResident(a.holder, t)
	case stateReleased:
		took := s.At - a.endAt
		if took > int64(MaxSwitch) {
			a.addIdle(t)
			break
		}
		if took >= 0 {
			a.recent[a.totals.Switches%maxRecent] = time.Duration(took)
			a.totals.Switches++
		}
		a.totals.Switching += time.Duration(t - a.since)
	}
	a.state, a.holder, a.since, a.cameOn = stateHeld, s.PID, t, s.At
	u := a.usageOf(s.PID)
	u.ins++
	if a.MinAbsence > 0 && u.leftAt > 0 && s.At-u.leftAt >= int64(a.MinAbsence) {
		u.arrived = s.At
	}
}

// end accounts for a context that went off.
func (a *Account) end(s Switch, t int64) {
	u := a.usageOf(s.PID)
	u.leftAt = s.At
	switch {
	case a.state == stateHeld && a.holder == s.PID:
		if a.IsFull != nil && a.IsFull(time.Duration(s.At-a.cameOn)) {
			u.full++
		}
		a.addResident(s.PID, t)
	case a.state == stateUnknown:
		a.addResident(s.PID, t)
	case a.state == stateHeld, a.state == stateReleased: // its START is missing
		a.totals.Unpaired++
	}
	a.state, a.since, a.endAt = stateReleased, t, s.At
}

// addResident attributes the time up to t to a process.
func (a *Account) addResident(pid uint32, t int64) {
	a.usageOf(pid).resident += t - a.since
	a.totals.Resident += time.Duration(t - a.since)
	a.since = t
}

// addIdle counts the time up to t as idle.
func (a *Account) addIdle(t int64) {
	a.totals.Idle += time.Duration(t - a.since)
	a.since = t
}

// accountedPID returns the pid under which a process is accounted for.
func (a *Account) accountedPID(pid uint32) uint32 {
	if a.pids[pid] == nil && len(a.pids) >= maxPIDs {
		return PIDHidden
	}
	return pid
}

func (a *Account) usageOf(pid uint32) *usage {
	pid = a.accountedPID(pid)
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
