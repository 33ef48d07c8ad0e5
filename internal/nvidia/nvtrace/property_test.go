package nvtrace

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/sched"
)

// stretch is a part of a schedule with one process on the GPU, or none.
type stretch struct {
	from, to int64
	pid      uint32 // zero: none
}

// schedule returns random stretches from start on, and their trace. In half of the
// schedules a process is on the GPU at the start.
func schedule(r *rand.Rand, start int64, n int) ([]stretch, []Switch) {
	var all []stretch
	var record []Switch
	at, seq := start, uint16(r.Uint32())
	add := func(length int64, pid uint32) {
		all = append(all, stretch{at, at + length, pid})
		at += length
	}
	mark := func(pid uint32, on bool) {
		record = append(record, Switch{PID: pid, On: on, At: at, Seq: seq, Context: r.Uint32()})
		seq++
	}
	head := r.IntN(2) == 0
	for i := range n {
		pid := uint32(1 + r.IntN(5))
		switch {
		case i == 0 && head:
		case i == 0 || r.IntN(4) == 0:
			add(int64(MaxSwitch)-1+r.Int64N(1+int64(10*time.Millisecond)), 0)
			mark(pid, true)
		default:
			add(1+r.Int64N(200*us), 0)
			mark(pid, true)
		}
		add(1+r.Int64N(int64(8*time.Millisecond)), pid)
		mark(pid, false)
	}
	return all, record
}

// count is a simple version of Account that looks at every stretch each time.
func count(all []stretch, now int64) (by map[uint32]time.Duration, tot Totals, unknown time.Duration) {
	by = map[uint32]time.Duration{}
	for i, s := range all {
		part := time.Duration(min(s.to, now) - s.from)
		whole, seen := time.Duration(s.to-s.from), s.to <= now
		switch {
		case part <= 0:
		case i == 0 && !seen: // unknown until the first record
			unknown += part
		case s.pid != 0:
			by[s.pid] += part
			tot.Resident += part
		case i == 0 || part > MaxSwitch:
			tot.Idle += part
		case seen && whole <= MaxSwitch:
			tot.Switching += part
			tot.Switches++
		default:
			unknown += part
		}
	}
	last := all[len(all)-1].to
	if after := time.Duration(now - last); after > MaxSwitch {
		tot.Idle += after
	} else if after > 0 {
		unknown += after
	}
	return by, tot, unknown
}

// tape collects the spans of an Account.
type tape struct {
	t     *testing.T
	spans []Span
	by    map[uint32]time.Duration // held, by process
}

// newTape returns a tape of a. It checks that each span begins where the last one ended.
func newTape(t *testing.T, a *Account, start int64) *tape {
	p := &tape{t: t, by: map[uint32]time.Duration{}}
	end := start
	a.Spent = func(s Span) {
		if s.Begin != end || s.End < s.Begin {
			t.Errorf("span %+v after %d", s, end)
		}
		end = s.End
		p.spans = append(p.spans, s)
		if s.Kind == hal.SpanHeld {
			p.by[s.PID] += time.Duration(s.End - s.Begin)
		}
	}
	return p
}

// within returns the sum of the parts of the spans that are between two times.
func (p *tape) within(from, to int64) (l hal.Ledger) {
	for _, s := range p.spans {
		if begin, end := max(s.Begin, from), min(s.End, to); begin < end || s.Begin == s.End && begin == end {
			l.Add(hal.Span{Begin: sched.Time(begin), End: sched.Time(end), Kind: s.Kind, Left: s.Left})
		}
	}
	return l
}

// check compares the spans with the sums of the Account, over all of its time up to now and
// over a random part. What is not spent yet counts as unknown.
func (p *tape) check(r *rand.Rand, a *Account, start, now int64) {
	got, want := p.within(start, a.since), a.Totals()
	got.Unknown += time.Duration(now - a.since)
	if got.Wall() != time.Duration(now-start) || got.Wall() != want.Window {
		p.t.Errorf("spans of %v: got %+v, which is %v; window %v", time.Duration(now-start), got, got.Wall(), want.Window)
	}
	if got.Held != want.Resident || got.Switching != want.Switching || got.Idle != want.Idle || got.Unknown != want.Unknown || got.Switches != want.Switches {
		p.t.Errorf("spans: got %+v, want %+v", got, want)
	}
	if spent := a.since - start; spent > 0 {
		from := start + r.Int64N(spent)
		to := from + r.Int64N(a.since-from+1)
		if part := p.within(from, to); part.Wall() != time.Duration(to-from) {
			p.t.Errorf("from %d to %d: got %+v, which is %v, want %v", from, to, part, part.Wall(), to-from)
		}
	}
	for _, u := range a.tracked {
		if u.Resident != p.by[u.pid] {
			p.t.Errorf("process %d: got %v, its spans are %v", u.pid, u.Resident, p.by[u.pid])
		}
	}
}

func seeds(t *testing.T, n int, run func(*testing.T, *rand.Rand)) {
	for seed := range uint64(n) {
		if run(t, rand.New(rand.NewPCG(seed, 7))); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestCompleteTraceIsExact checks that without losses the time of each process is exact at
// every moment, and that all time is resident, switching, idle or unknown.
func TestCompleteTraceIsExact(t *testing.T) {
	seeds(t, 1000, func(t *testing.T, r *rand.Rand) {
		start := r.Int64N(1 << 60)
		all, record := schedule(r, start, 1+r.IntN(40))
		end := all[len(all)-1].to + r.Int64N(int64(3*time.Millisecond))
		a := newTracking(start)
		p := newTape(t, a, start)
		for now := start; now < end; {
			now = min(now+1+r.Int64N(int64(20*time.Millisecond)), end)
			given := 0 // everything up to now and perhaps more, as from a Read after a Clock
			for given < len(record) && record[given].At <= now+int64(r.IntN(2))*500*us {
				given++
			}
			a.Add(record[:given])
			record = record[given:]
			by, want, unknown := count(all, now)
			got := totals(a, now)
			p.check(r, a, start, now)
			if got.Window != time.Duration(now-start) || got.Resident+got.Switching+got.Idle+unknown != got.Window || got.Unknown != unknown {
				t.Errorf("%v after %v: %+v, want unknown %v", now, start, got, unknown)
			}
			if got.Resident != want.Resident || got.Switching != want.Switching || got.Idle != want.Idle || got.Switches != want.Switches {
				t.Errorf("%+v, want %+v", got, want)
			}
			if got.Lost != 0 || got.Bad != 0 || got.Unpaired != 0 {
				t.Errorf("complete trace with losses: got %+v", got)
			}
			for pid, d := range resident(a, now) {
				if by[pid] != d {
					t.Errorf("process %d: got %v, want %v", pid, d, by[pid])
				}
			}
		}
	})
}

// TestLostRecordsNeverAddTime checks that no process gets more time than it had when
// records are lost.
func TestLostRecordsNeverAddTime(t *testing.T) {
	seeds(t, 1000, func(t *testing.T, r *rand.Rand) {
		start := r.Int64N(1 << 60)
		all, record := schedule(r, start, 2+r.IntN(40))
		var kept []Switch
		for i, s := range record {
			if i == 0 || i == len(record)-1 || r.IntN(5) != 0 {
				kept = append(kept, s)
			}
		}
		now := all[len(all)-1].to
		by, want, _ := count(all, now)
		a := newTracking(start)
		p := newTape(t, a, start)
		a.Add(kept)
		got := totals(a, now)
		p.check(r, a, start, now)
		for i := 1; i < len(kept); i++ {
			from, to := kept[i-1], kept[i]
			if part := p.within(from.At, to.At); to.Seq != from.Seq+1 && part.Unknown != part.Wall() {
				t.Errorf("records between %+v and %+v were lost: got %+v, want unknown time only", from, to, part)
			}
		}
		if got.Lost != uint64(len(record)-len(kept)) || got.Resident > want.Resident || got.Switching > want.Switching || got.Idle > want.Idle {
			t.Errorf("got %+v, want at most %+v with %d lost", got, want, len(record)-len(kept))
		}
		for pid, d := range resident(a, now) {
			if d > by[pid] {
				t.Errorf("process %d: got %v, want at most %v", pid, d, by[pid])
			}
		}
	})
}

// TestHostileTraces checks that with any switches the sums stay within the window and never
// decrease.
func TestHostileTraces(t *testing.T) {
	seeds(t, 1000, func(t *testing.T, r *rand.Rand) {
		start := r.Int64N(1 << 60)
		all, record := schedule(r, start, 1+r.IntN(40))
		var bad []Switch
		for _, s := range record {
			switch r.IntN(12) {
			case 0: // lost
				continue
			case 1:
				bad = append(bad, s, s)
				continue
			case 2:
				s.At += r.Int64N(int64(4*time.Second)) - int64(2*time.Second)
			case 3:
				s.At = []int64{0, -1, math.MaxInt64, math.MinInt64, maxTime}[r.IntN(5)]
			case 4:
				s.Seq = uint16(r.Uint32())
			case 5:
				s.PID = r.Uint32()
			case 6:
				s.On = !s.On
			}
			bad = append(bad, s)
			if i := r.IntN(len(bad)); r.IntN(8) == 0 {
				bad[i], bad[len(bad)-1] = bad[len(bad)-1], bad[i]
			}
		}
		a := newTracking(start)
		a.Left = func(uint32, int64, int64) hal.Departure { return hal.Departure(r.IntN(4)) }
		p := newTape(t, a, start)
		var before Totals
		had := map[uint32]Usage{}
		for now := start; now < all[len(all)-1].to; {
			now += r.Int64N(int64(20 * time.Millisecond))
			n := r.IntN(len(bad) + 1)
			a.Add(bad[:n])
			bad = bad[n:]
			got := totals(a, now)
			p.check(r, a, start, now)
			if got.Window != time.Duration(now-start) || got.Unknown < 0 || got.Resident < before.Resident ||
				got.Switching < before.Switching || got.Idle < before.Idle || got.Switches < before.Switches {
				t.Errorf("%+v after %+v", got, before)
			}
			before = got
			for _, u := range a.tracked {
				if old := had[u.pid]; u.Resident < old.Resident || u.SwitchIns < old.SwitchIns || u.Visits.Full+u.Visits.Cut > u.Visits.Count || u.Visits.Count > u.SwitchIns {
					t.Errorf("%+v after %+v", u, old)
				}
				had[u.pid] = u
			}
		}
	})
}

// TestCutTraces checks that nothing is known from a switch after which others were lost to
// the next one, however often the account is brought up to date in between.
func TestCutTraces(t *testing.T) {
	seeds(t, 1000, func(t *testing.T, r *rand.Rand) {
		start := r.Int64N(1 << 60)
		all, record := schedule(r, start, 2+r.IntN(40))
		a := newTracking(start)
		p := newTape(t, a, start)
		now := start
		type loss struct{ from, to int64 }
		var losses []loss
		for len(record) > 0 {
			n := min(1+r.IntN(6), len(record))
			kept := record[:n]
			record = record[n:]
			now = kept[n-1].At
			lost := min(r.IntN(4), max(len(record)-1, 0))
			if lost > 0 {
				kept[n-1].Cut = true
				losses = append(losses, loss{now, record[lost].At})
			}
			a.Add(kept)
			for len(record) > 0 && now < record[lost].At-1 && r.IntN(3) > 0 {
				now += 1 + r.Int64N(record[lost].At-1-now)
				a.Advance(now)
			}
			a.Advance(now)
			p.check(r, a, start, now)
			record = record[lost:]
		}
		now = all[len(all)-1].to
		a.Advance(now)
		p.check(r, a, start, now)
		for _, l := range losses {
			if part := p.within(l.from, l.to); part.Unknown != part.Wall() || part.Wall() != time.Duration(l.to-l.from) {
				t.Errorf("from %d to %d: got %+v, want unknown time only", l.from, l.to, part)
			}
		}
	})
}
