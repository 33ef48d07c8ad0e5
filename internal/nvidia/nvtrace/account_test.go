package nvtrace

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

const us = int64(time.Microsecond)

// script returns switches with sequence numbers in order, from pairs of time and pid. A
// negative pid goes off, a positive one comes on.
func script(steps ...[2]int64) []Switch {
	var out []Switch
	for i, s := range steps {
		out = append(out, Switch{PID: uint32(max(s[1], -s[1])), On: s[1] > 0, At: s[0], Seq: uint16(i)})
	}
	return out
}

// newTracking returns an Account that tracks processes 1 to 9.
func newTracking(start int64) *Account {
	a := NewAccount(start)
	for pid := range uint32(9) {
		a.Track(pid + 1)
	}
	return a
}

func totals(a *Account, now int64) Totals {
	a.Advance(now)
	return a.Totals()
}

// resident returns the time of each tracked process that had some.
func resident(a *Account, now int64) map[uint32]time.Duration {
	a.Advance(now)
	out := map[uint32]time.Duration{}
	for _, u := range a.tracked {
		if u.Resident > 0 {
			out[u.pid] = u.Resident
		}
	}
	return out
}

// usages returns the usage of the tracked processes that came on or went off.
func usages(a *Account, now int64) []Usage {
	a.Advance(now)
	var out []Usage
	for _, u := range a.tracked {
		if u.Left, u.over = 0, false; u != (Usage{pid: u.pid}) {
			out = append(out, u)
		}
	}
	return out
}

func TestAccountTwoProcesses(t *testing.T) {
	a := newTracking(1000 * us)
	// 7 is on from the start, 8 comes on for 75 us, then 7 comes on and stays.
	a.Add(script([2]int64{1500 * us, -7}, [2]int64{1580 * us, 8}, [2]int64{1655 * us, -8}, [2]int64{1737 * us, 7}))
	want := []Usage{
		{pid: 7, Resident: time.Duration(500*us + 263*us), SwitchIns: 1, Visits: sched.Visits{Count: 1}},
		{pid: 8, Resident: time.Duration(75 * us), SwitchIns: 1, Visits: sched.Visits{Count: 1}},
	}
	if got := usages(a, 2000*us); !slices.Equal(got, want) {
		t.Errorf("usage: got %+v, want %+v", got, want)
	}
	tot := totals(a, 2000*us)
	if tot.Switching != time.Duration(162*us) || tot.Switches != 2 || tot.Idle != 0 || tot.Unknown != 0 || tot.Window != time.Millisecond {
		t.Errorf("totals: got %+v", tot)
	}
	// A process that is alone makes no records and stays on.
	if got := resident(a, 10_000_000*us)[7]; got != time.Duration(763*us+9_998_000*us) {
		t.Errorf("alone: got %v", got)
	}
}

func TestAccountIdle(t *testing.T) {
	a := newTracking(0)
	if tot := totals(a, 5000*us); tot.Unknown != 5*time.Millisecond || tot.Idle != 0 {
		t.Errorf("before the first record: got %+v", tot)
	}
	a.Add(script([2]int64{6000 * us, 1}, [2]int64{7000 * us, -1}))
	if tot := totals(a, 7500*us); tot.Idle != 6*time.Millisecond || tot.Unknown != 500*time.Microsecond {
		t.Errorf("during a switch: got %+v", tot)
	}
	if tot := totals(a, 9000*us); tot.Idle != 8*time.Millisecond || tot.Unknown != 0 || tot.Switches != 0 {
		t.Errorf("while idle: got %+v", tot)
	}
	a.Add([]Switch{{PID: 2, On: true, At: 10_000 * us, Seq: 2}})
	if tot := totals(a, 10_000*us); tot.Idle != 9*time.Millisecond || tot.Switches != 0 || tot.Window != 10*time.Millisecond {
		t.Errorf("after idle time: got %+v", tot)
	}
}

func TestAccountBadTraces(t *testing.T) {
	on := func(pid uint32, at int64, seq uint16) Switch { return Switch{PID: pid, On: true, At: at, Seq: seq} }
	off := func(pid uint32, at int64, seq uint16) Switch { return Switch{PID: pid, At: at, Seq: seq} }
	for _, c := range []struct {
		name     string
		switches []Switch
		one, two time.Duration // resident time of 1 and 2 at 1000
		unknown  time.Duration
		totals   func(Totals) bool
	}{
		{
			"gap",
			[]Switch{on(1, 0, 0), off(1, 100, 1), on(1, 400, 4), off(1, 500, 5), on(2, 600, 6)},
			200, 400, 300, func(t Totals) bool { return t.Lost == 2 && t.Switches == 1 },
		},
		{
			"gap while on",
			[]Switch{on(1, 1, 0), off(1, 500, 3), on(2, 600, 4)},
			0, 400, 499, func(t Totals) bool { return t.Lost == 2 },
		},
		{
			"numbers wrap",
			[]Switch{on(1, 1, 65535), off(1, 500, 0), on(2, 600, 1)},
			499, 400, 0, func(t Totals) bool { return t.Lost == 0 },
		},
		{
			"START without END",
			[]Switch{on(1, 1, 0), on(2, 600, 1)},
			599, 400, 0, func(t Totals) bool { return t.Unpaired == 1 },
		},
		{
			"END without START",
			[]Switch{on(1, 1, 0), off(1, 100, 1), off(2, 300, 2), on(1, 400, 3)},
			699, 0, 200, func(t Totals) bool { return t.Unpaired == 1 && t.Switches == 1 },
		},
		{
			"END of another",
			[]Switch{on(1, 1, 0), off(2, 300, 1), on(1, 400, 2)},
			600, 0, 299, func(t Totals) bool { return t.Unpaired == 1 },
		},
		{
			"clock goes back",
			[]Switch{on(1, 500, 0), off(1, 400, 1), on(2, 450, 2)},
			0, 500, 0, func(t Totals) bool { return t.Idle == 500 && t.Switching == 0 && t.Switches == 1 },
		},
		{
			"START before END",
			[]Switch{on(1, 1, 0), off(1, 500, 1), on(2, 400, 2)},
			499, 500, 0, func(t Totals) bool { return t.Switches == 0 },
		},
		{
			"twice",
			[]Switch{on(1, 1, 0), off(1, 500, 1), off(1, 500, 1), on(1, 1, 0), on(2, 600, 2)},
			499, 400, 0, func(t Totals) bool { return t.Bad == 2 && t.Lost == 0 && t.Unpaired == 0 },
		},
		{
			"hidden times",
			[]Switch{on(1, 1, 0), off(1, 500, 1), on(PIDKernel, 0, 2), off(PIDKernel, 0, 3), on(2, 600, 4)},
			499, 400, 0, func(t Totals) bool { return t.Bad == 2 && t.Switches == 1 },
		},
		{
			"impossible times",
			[]Switch{on(1, 1, 0), off(1, math.MaxInt64, 1), on(1, math.MinInt64, 2), on(2, 600, 3)},
			0, 400, 599, func(t Totals) bool { return t.Bad == 2 && t.Lost == 0 },
		},
		{
			"before the start",
			[]Switch{off(1, 0, 9), on(2, -5, 10), on(2, 600, 11)},
			0, 400, 600, func(t Totals) bool { return t.Bad == 2 },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newTracking(0)
			a.Add(c.switches)
			got, tot := resident(a, 1000), totals(a, 1000)
			if got[1] != c.one || got[2] != c.two || tot.Unknown != c.unknown || !c.totals(tot) {
				t.Errorf("got %v, %+v; want %v and %v, unknown %v", got, tot, c.one, c.two, c.unknown)
			}
		})
	}
}

// TestAccountLateSwitches checks that a switch which arrives after its time was accounted
// for never reduces the time of a process.
func TestAccountLateSwitches(t *testing.T) {
	a := newTracking(0)
	a.Add(script([2]int64{1, 1}))
	a.Advance(1000)
	a.Add([]Switch{{PID: 1, At: 600, Seq: 1}, {PID: 2, On: true, At: 700, Seq: 2}})
	if got, tot := resident(a, 1500), totals(a, 1500); got[1] != 999 || got[2] != 500 || tot.P50 != 100 || tot.Unknown != 0 {
		t.Errorf("got %v, %+v", got, tot)
	}
}

// TestAccountClockSetBack checks that a clock which is set back starts a new window and keeps
// the time of the processes.
func TestAccountClockSetBack(t *testing.T) {
	a := newTracking(int64(time.Hour))
	a.Add([]Switch{{PID: 1, On: true, At: int64(time.Hour) + 10, Seq: 4}})
	a.Advance(int64(time.Hour) + 110)
	a.Add([]Switch{{PID: 1, On: true, At: 50, Seq: 0}})
	if got := resident(a, 40)[1]; got != 100 {
		t.Errorf("resident: got %v, want 100ns", got)
	}
	if got, tot := resident(a, 150)[1], totals(a, 150); got != 200 || tot.Window != 220 || tot.Lost != 0 {
		t.Errorf("got %v, %+v", got, tot)
	}
	for _, now := range []int64{-1, math.MinInt64, math.MaxInt64} {
		if tot := totals(a, now); tot.Window != 220 {
			t.Errorf("at %d: got %+v", now, tot)
		}
	}
}

// TestAccountForgets checks that a pid which is used again begins without usage, and that a
// process for which there is no room is not reported at all.
func TestAccountForgets(t *testing.T) {
	a := NewAccount(0)
	for pid := range uint32(maxTracked) {
		if !a.Track(pid + 1) {
			t.Fatalf("process %d is not tracked", pid+1)
		}
	}
	const late = maxTracked + 1
	a.Add(script([2]int64{1, 7}, [2]int64{101, -7}, [2]int64{103, late}, [2]int64{203, -late}))
	a.Advance(300)
	if _, ok := a.Usage(late); a.Track(late) || ok {
		t.Error("process without room: it has a usage")
	}
	if !a.Track(7) || resident(a, 300)[7] != 100 {
		t.Error("process that is tracked already: it lost its usage, or found no room")
	}
	if tot := a.Totals(); tot.Resident != 200 {
		t.Errorf("totals: got %+v, want a resident time of both", tot)
	}
	a.Forget(7)
	a.Forget(7)
	if _, ok := a.Usage(7); ok {
		t.Error("forgotten process: it has a usage")
	}
	a.Track(late)
	if u, ok := a.Usage(late); !ok || u != (Usage{pid: late}) {
		t.Errorf("after another was forgotten: got %+v, %v; want an empty usage", u, ok)
	}
}

// TestAccountLimits checks that switches beyond the limit are lost, which makes the time
// after them unknown.
func TestAccountLimits(t *testing.T) {
	a := newTracking(0)
	a.Add(slices.Repeat([]Switch{{Seq: 65535}}, maxPending-1)) // without a time
	a.Add([]Switch{{PID: 1, On: true, At: 10}, {PID: 1, At: 20, Seq: 1}})
	if len(a.pending) != maxPending || !a.pending[maxPending-1].Cut {
		t.Errorf("pending: got %d, cut %v; want %d, cut", len(a.pending), a.pending[len(a.pending)-1].Cut, maxPending)
	}
	if tot := totals(a, 100); tot.Unknown != 90 || a.Known() {
		t.Errorf("got %+v, known %v; want 90 ns unknown", tot, a.Known())
	}
	a.Add(make([]Switch, 5))
	if len(a.pending) != 5 {
		t.Errorf("pending: got %d, want 5", len(a.pending))
	}
}

// TestAccountDoesNotAllocate checks that a steady stream of switches costs no memory.
func TestAccountDoesNotAllocate(t *testing.T) {
	a := newTracking(0)
	a.Spent = func(Span) {}
	a.Left = func(uint32, int64, int64) hal.Departure { return hal.Preempted }
	switches := make([]Switch, 64)
	now, seq := int64(0), uint16(0)
	round := func() {
		for i := range switches {
			now += 100 * us
			switches[i] = Switch{PID: uint32(i/2%12 + 1), On: i%2 == 0, At: now, Seq: seq} // three are not tracked
			seq++
		}
		a.Add(switches)
		a.Advance(now - 50*us)
		for pid := range uint32(12) {
			a.Usage(pid + 1)
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}

// TestAccountReopen checks that the time between two traces is unknown, and that the usage
// goes on with the second.
func TestAccountReopen(t *testing.T) {
	for _, c := range []struct {
		name   string
		start  int64
		window time.Duration
	}{
		{"later", 5000, 6000},
		{"the clock was reset", 20, 1000 + 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newTracking(0)
			var spans []Span
			a.Spent = func(s Span) { spans = append(spans, s) }
			a.Add(script([2]int64{100, 1}))
			a.Advance(1000)
			a.Add(script([2]int64{1100, -1})) // read, and not accounted for
			a.Reopen(c.start)
			if a.Known() {
				t.Error("the state is known without a switch")
			}
			a.Add([]Switch{{PID: 2, At: c.start + 600, Seq: 900}, {PID: 1, On: true, At: c.start + 700, Seq: 901}})
			tot := totals(a, c.start+1000)
			if got := resident(a, c.start+1000); got[1] != 900+300 || got[2] != 600 {
				t.Errorf("got %v, want 1200 ns of 1 and 600 ns of 2", got)
			}
			if tot.Window != c.window || tot.Unknown != c.window-2000 || tot.Lost != 0 || tot.Switches != 1 || !a.Known() {
				t.Errorf("got %+v", tot)
			}
			var sum time.Duration
			for _, s := range spans {
				sum += time.Duration(s.End - s.Begin)
			}
			if sum != c.window {
				t.Errorf("spans: got %v together, want %v: %+v", sum, c.window, spans)
			}
		})
	}
}

// TestUnknownIsNotWaitedForLong checks that a GPU without switches is reported as unknown
// within a second or so, and that the process on it is then credited from there on.
func TestUnknownIsNotWaitedForLong(t *testing.T) {
	a := newTracking(0)
	var last Span
	a.Spent = func(s Span) { last = s }
	a.Advance(maxWait)
	if last != (Span{}) {
		t.Errorf("too early: got %+v", last)
	}
	a.Advance(maxWait + 1)
	if want := (Span{End: maxWait + 1}); last != want {
		t.Errorf("got %+v, want %+v", last, want)
	}
	a.Add(script([2]int64{maxWait + 50, -4}))
	if got := resident(a, maxWait+60)[4]; got != 49 {
		t.Errorf("got %v, want 49ns", got)
	}
}

func TestZeroAccount(t *testing.T) {
	const day = int64(24 * time.Hour)
	var a Account
	a.Add(script([2]int64{day - 30, -1}, [2]int64{day - 20, 2}, [2]int64{day + 10, -2}, [2]int64{day + 15, 1}))
	a.Track(1)
	a.Track(2)
	if got, tot := resident(&a, day), totals(&a, day); got[1] != 0 || got[2] != 0 || tot.Window != 0 || tot.P50 != 10 {
		t.Errorf("at its start: got %v, %+v", got, tot)
	}
	if got, tot := resident(&a, day+20), totals(&a, day+20); got[1] != 5 || got[2] != 10 || tot.Window != 20 || tot.Switching != 5 {
		t.Errorf("later: got %v, %+v", got, tot)
	}
}

func TestAccountSwitchTimes(t *testing.T) {
	a := newTracking(0)
	var now int64
	seq := uint16(0)
	add := func(took int64) { // a switch that takes so long
		a.Add([]Switch{{PID: 1, At: now + 1, Seq: seq}, {PID: 1, On: true, At: now + 1 + took, Seq: seq + 1}})
		seq += 2
		now += 1 + took
	}
	if tot := totals(a, now); tot.Switches != 0 || tot.P50 != 0 || tot.P99 != 0 {
		t.Errorf("without switches: got %+v", tot)
	}
	for range 5 * maxRecent {
		add(500 * us)
	}
	for i := range int64(maxRecent) {
		add(i + 1)
	}
	if tot := totals(a, now); tot.Switches != 6*maxRecent || tot.P50 != maxRecent/2 || tot.P99 != 1014 {
		t.Errorf("got %d switches, P50 %v, P99 %v; want %d, 512ns, 1.014us", tot.Switches, tot.P50, tot.P99, 6*maxRecent)
	}
}

// TestAccountVisits checks which visits are full, and which follow an absence.
func TestAccountVisits(t *testing.T) {
	a := newTracking(0)
	a.MinAbsence = 5 * time.Millisecond
	a.Slice = func(pid uint32) time.Duration { return time.Duration(pid) * 2 * time.Millisecond }
	a.Add(script(
		[2]int64{1000 * us, 1}, [2]int64{3000 * us, -1}, // full
		[2]int64{3100 * us, 2}, [2]int64{3600 * us, -2}, // the first visit is no arrival
		[2]int64{3700 * us, 1}, [2]int64{5700 * us, -1}, // full, after a short absence
		[2]int64{8600 * us, 2}, [2]int64{9000 * us, -2}, // after exactly MinAbsence
		[2]int64{9100 * us, 1},
	))
	want := []Usage{
		{pid: 1, Resident: time.Duration(4900 * us), SwitchIns: 3, Visits: sched.Visits{Count: 3, Full: 2}},
		{pid: 2, Resident: time.Duration(900 * us), SwitchIns: 2, Visits: sched.Visits{Count: 2}, Arrived: 8600 * us},
	}
	if got := usages(a, 10_000*us); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// twoMilliseconds is an Account.Slice.
func twoMilliseconds(uint32) time.Duration { return 2 * time.Millisecond }

// TestAccountCutVisits checks that a visit which ended by a stop is counted, unless it was full.
func TestAccountCutVisits(t *testing.T) {
	a := newTracking(0)
	a.Slice = twoMilliseconds
	a.Cut = func(pid uint32, end int64) bool { return pid == 1 && end >= 3000*us }
	a.Add(script(
		[2]int64{1000 * us, 1}, [2]int64{1500 * us, -1},
		[2]int64{1600 * us, 2}, [2]int64{4200 * us, -2}, // long
		[2]int64{4210 * us, 1}, [2]int64{4250 * us, -1}, // cut
		[2]int64{4300 * us, 2}, [2]int64{4400 * us, -2},
		[2]int64{4500 * us, 1}, [2]int64{6500 * us, -1}, // full
	))
	want := []sched.Visits{{Count: 3, Full: 1, Cut: 1}, {Count: 2, Full: 1, Alone: 600 * time.Microsecond}} // process 2 was on from 1600 to 4200 us
	for i, u := range usages(a, 10_000*us) {
		if u.Visits != want[i] {
			t.Errorf("process %d: got %+v, want %+v", i+1, u.Visits, want[i])
		}
	}
}

// TestAccountTimeAlone checks that the time in which a process was alone grows while its visit goes on, and
// never falls, whatever is lost.
func TestAccountTimeAlone(t *testing.T) {
	lost := map[string]func(a *Account){
		"nothing":           func(*Account) {},
		"a switch":          func(a *Account) { a.Add([]Switch{{PID: 2, On: true, At: 52_000 * us, Seq: 9}}) },
		"an end":            func(a *Account) { a.Add([]Switch{{PID: 2, On: true, At: 52_000 * us, Seq: 1}}) },
		"a time":            func(a *Account) { a.Add([]Switch{{PID: 1, At: -1, Seq: 1}}) },
		"all that followed": func(a *Account) { a.Add([]Switch{{PID: 1, At: 52_000 * us, Seq: 1, Cut: true}}) },
		"the trace":         func(a *Account) { a.Reopen(55_000 * us) },
	}
	for name, lose := range lost {
		a := newTracking(0)
		a.Slice = twoMilliseconds
		a.Add(script([2]int64{1000 * us, 1}))
		var last time.Duration
		for _, now := range []int64{2000, 3000, 4000, 51_000, 60_000, 61_000} {
			if now == 60_000 {
				lose(a)
			}
			u := usages(a, now*us)[0]
			got, _ := a.Usage(u.pid)
			if got.Visits.Alone < last || now == 51_000 && got.Visits.Alone != 48*time.Millisecond {
				t.Errorf("lost %s: alone for %v at %d us, before %v", name, got.Visits.Alone, now, last)
			}
			last = got.Visits.Alone
		}
		if last < 48*time.Millisecond {
			t.Errorf("lost %s: alone for %v in the end, want at least 48 ms", name, last)
		}
	}
}

// TestAccountReloads checks which visits were interrupted only by the stop of another group.
func TestAccountReloads(t *testing.T) {
	a := newTracking(0)
	a.Slice = twoMilliseconds
	a.Add(script(
		[2]int64{1000 * us, 1}, [2]int64{1500 * us, -1},
		[2]int64{1580 * us, 1}, [2]int64{3580 * us, -1}, // loaded again; full
		[2]int64{3660 * us, 1}, [2]int64{3700 * us, -1}, // its slice was over
		[2]int64{3780 * us, 2}, [2]int64{4000 * us, -2},
		[2]int64{4080 * us, 1}, [2]int64{4200 * us, -1}, // after another process
		[2]int64{9000 * us, 1}, // after an idle time
	))
	want := []Usage{
		{pid: 1, Resident: time.Duration(3660 * us), SwitchIns: 5, Visits: sched.Visits{Count: 4, Full: 1}},
		{pid: 2, Resident: time.Duration(220 * us), SwitchIns: 1, Visits: sched.Visits{Count: 1}},
	}
	if got := usages(a, 10_000*us); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
