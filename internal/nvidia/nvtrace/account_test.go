package nvtrace

import (
	"math"
	"slices"
	"testing"
	"time"
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

func resident(a *Account, now int64) map[uint32]time.Duration {
	out := map[uint32]time.Duration{}
	for _, u := range a.Usage(now) {
		out[u.PID] = u.Resident
	}
	return out
}

func TestAccountTwoProcesses(t *testing.T) {
	a := NewAccount(1000 * us)
	// 7 is on from the start, 8 comes on for 75 us, then 7 comes on and stays.
	a.Add(script([2]int64{1500 * us, -7}, [2]int64{1580 * us, 8}, [2]int64{1655 * us, -8}, [2]int64{1737 * us, 7}))
	want := []Usage{
		{PID: 7, Resident: time.Duration(500*us + 263*us), SwitchIns: 1, On: true},
		{PID: 8, Resident: time.Duration(75 * us), SwitchIns: 1},
	}
	if got := a.Usage(2000 * us); !slices.Equal(got, want) {
		t.Errorf("usage: got %+v, want %+v", got, want)
	}
	tot := a.Totals(2000 * us)
	if tot.Switching != time.Duration(162*us) || tot.Switches != 2 || tot.Idle != 0 || tot.Unknown != 0 || tot.Window != time.Millisecond {
		t.Errorf("totals: got %+v", tot)
	}
	if lost, switches := a.Switching(); lost != tot.Switching || switches != tot.Switches {
		t.Errorf("switching: got %v in %d switches, want %v in %d", lost, switches, tot.Switching, tot.Switches)
	}
	// A process that is alone makes no records and stays on.
	if got := resident(a, 10_000_000*us)[7]; got != time.Duration(763*us+9_998_000*us) {
		t.Errorf("alone: got %v", got)
	}
}

func TestAccountIdle(t *testing.T) {
	a := NewAccount(0)
	if tot := a.Totals(5000 * us); tot.Unknown != 5*time.Millisecond || tot.Idle != 0 {
		t.Errorf("before the first record: got %+v", tot)
	}
	a.Add(script([2]int64{6000 * us, 1}, [2]int64{7000 * us, -1}))
	if tot := a.Totals(7500 * us); tot.Idle != 6*time.Millisecond || tot.Unknown != 500*time.Microsecond {
		t.Errorf("during a switch: got %+v", tot)
	}
	if tot := a.Totals(9000 * us); tot.Idle != 8*time.Millisecond || tot.Unknown != 0 || tot.Switches != 0 {
		t.Errorf("while idle: got %+v", tot)
	}
	a.Add([]Switch{{PID: 2, On: true, At: 10_000 * us, Seq: 2}})
	if tot := a.Totals(10_000 * us); tot.Idle != 9*time.Millisecond || tot.Switches != 0 || tot.Window != 10*time.Millisecond {
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
			a := NewAccount(0)
			a.Add(c.switches)
			got, tot := resident(a, 1000), a.Totals(1000)
			if got[1] != c.one || got[2] != c.two || tot.Unknown != c.unknown || !c.totals(tot) {
				t.Errorf("got %v, %+v; want %v and %v, unknown %v", got, tot, c.one, c.two, c.unknown)
			}
		})
	}
}

// TestAccountLateSwitches checks that a switch which arrives after its time was accounted
// for never reduces the time of a process.
func TestAccountLateSwitches(t *testing.T) {
	a := NewAccount(0)
	a.Add(script([2]int64{1, 1}))
	a.Usage(1000)
	a.Add([]Switch{{PID: 1, At: 600, Seq: 1}, {PID: 2, On: true, At: 700, Seq: 2}})
	if got, tot := resident(a, 1500), a.Totals(1500); got[1] != 999 || got[2] != 500 || tot.P50 != 100 || tot.Unknown != 0 {
		t.Errorf("got %v, %+v", got, tot)
	}
}

// TestAccountClockSetBack checks that a clock which is set back starts a new window and keeps
// the time of the processes.
func TestAccountClockSetBack(t *testing.T) {
	a := NewAccount(int64(time.Hour))
	a.Add([]Switch{{PID: 1, On: true, At: int64(time.Hour) + 10, Seq: 4}})
	a.Usage(int64(time.Hour) + 110)
	a.Add([]Switch{{PID: 1, On: true, At: 50, Seq: 0}})
	if got := resident(a, 40)[1]; got != 100 {
		t.Errorf("resident: got %v, want 100ns", got)
	}
	if got, tot := resident(a, 150)[1], a.Totals(150); got != 200 || tot.Window != 220 || tot.Lost != 0 {
		t.Errorf("got %v, %+v", got, tot)
	}
	for _, now := range []int64{-1, math.MinInt64, math.MaxInt64} {
		if tot := a.Totals(now); tot.Window != 220 {
			t.Errorf("at %d: got %+v", now, tot)
		}
	}
}

func TestAccountLimits(t *testing.T) {
	a := NewAccount(0)
	for i := range 2 * maxPIDs {
		a.Add([]Switch{{PID: uint32(i + 1), On: true, At: int64(i + 1), Seq: uint16(i)}})
	}
	now := int64(3 * maxPIDs)
	got := a.Usage(now)
	if len(got) != maxPIDs+1 || got[0].PID != PIDHidden || !got[0].On || got[0].Resident != 2*maxPIDs-1 {
		t.Errorf("got %d processes, the first %+v", len(got), got[0])
	}
	a.Add(make([]Switch, maxPending+5))
	a.Add(make([]Switch, 5))
	if len(a.pending) != maxPending {
		t.Errorf("pending: got %d, want %d", len(a.pending), maxPending)
	}
}

func TestZeroAccount(t *testing.T) {
	const day = int64(24 * time.Hour)
	var a Account
	a.Add(script([2]int64{day - 30, -1}, [2]int64{day - 20, 2}, [2]int64{day + 10, -2}, [2]int64{day + 15, 1}))
	if got, tot := resident(&a, day), a.Totals(day); got[1] != 0 || got[2] != 0 || tot.Window != 0 || tot.P50 != 10 {
		t.Errorf("at its start: got %v, %+v", got, tot)
	}
	if got, tot := resident(&a, day+20), a.Totals(day+20); got[1] != 5 || got[2] != 10 || tot.Window != 20 || tot.Switching != 5 {
		t.Errorf("later: got %v, %+v", got, tot)
	}
}

func TestAccountSwitchTimes(t *testing.T) {
	a := NewAccount(0)
	var now int64
	seq := uint16(0)
	add := func(took int64) { // a switch that takes so long
		a.Add([]Switch{{PID: 1, At: now + 1, Seq: seq}, {PID: 1, On: true, At: now + 1 + took, Seq: seq + 1}})
		seq += 2
		now += 1 + took
	}
	if tot := a.Totals(now); tot.Switches != 0 || tot.P50 != 0 || tot.P99 != 0 {
		t.Errorf("without switches: got %+v", tot)
	}
	for range 5 * maxRecent {
		add(500 * us)
	}
	for i := range int64(maxRecent) {
		add(i + 1)
	}
	if tot := a.Totals(now); tot.Switches != 6*maxRecent || tot.P50 != maxRecent/2 || tot.P99 != 1014 {
		t.Errorf("got %d switches, P50 %v, P99 %v; want %d, 512ns, 1.014us", tot.Switches, tot.P50, tot.P99, 6*maxRecent)
	}
}

// TestAccountVisits checks which visits are full, and which follow an absence.
func TestAccountVisits(t *testing.T) {
	a := NewAccount(0)
	a.MinAbsence = 5 * time.Millisecond
	a.IsFull = func(visit time.Duration) bool { return visit == 2*time.Millisecond }
	a.Add(script(
		[2]int64{1000 * us, 1}, [2]int64{3000 * us, -1}, // full
		[2]int64{3100 * us, 2}, [2]int64{3600 * us, -2}, // the first visit is no arrival
		[2]int64{3700 * us, 1}, [2]int64{5700 * us, -1}, // full, after a short absence
		[2]int64{8600 * us, 2}, [2]int64{9000 * us, -2}, // after exactly MinAbsence
		[2]int64{9100 * us, 1},
	))
	want := []Usage{
		{PID: 1, Resident: time.Duration(4900 * us), SwitchIns: 3, Full: 2, On: true},
		{PID: 2, Resident: time.Duration(900 * us), SwitchIns: 2, Arrived: 8600 * us},
	}
	if got := a.Usage(10_000 * us); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
