package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// sharedGPU is a device whose trace is read, with the slices of an H200.
var sharedGPU = sched.Device{ID: "shared", Slice: 2 * ms, MinSharedSlice: 200 * time.Microsecond, SwitchTime: 165 * time.Microsecond, StopTime: 500 * time.Microsecond}

const (
	lightBurst = 300 * time.Microsecond
	ownShared  = 500 * time.Microsecond // the default of the parameter shared
)

// newShared returns a node with batch jobs of these bursts; zero is a heavy job.
func newShared(t *testing.T, params map[string]string, bursts ...time.Duration) (*testNode, []*job) {
	t.Helper()
	l := newNode(t, "giveway", params, sharedGPU)
	l.measureEvery, l.visits, l.actionTime = 10*ms, true, 500*time.Microsecond
	var jobs []*job
	for _, b := range bursts {
		jobs = append(jobs, l.openJob(batch(1), saturating, b))
	}
	return l, jobs
}

// openJob opens a job without counters.
func (l *testNode) openJob(q sched.Queue, load func(*job, sched.Time), burst time.Duration) *job {
	j := l.open(q, nil)
	j.load, j.noCounters, j.burst = load, true, burst
	return j
}

// runningShare runs the node for d and returns for which part of it each job may run, and the
// largest number at a time.
func (l *testNode) runningShare(d time.Duration, jobs []*job) (share []float64, most int) {
	share = make([]float64, len(jobs))
	l.run(d, func() {
		n := 0
		for i, j := range jobs {
			if j.running {
				share[i] += float64(tick) / float64(d)
				n++
			}
		}
		most = max(most, n)
	})
	return share, most
}

// atRandom submits work at intervals that no rhythm fits.
func atRandom(work time.Duration) func(*job, sched.Time) {
	next, n := sched.Time(0), 0
	return func(j *job, now sched.Time) {
		for ; now >= next; n++ {
			j.submit(now, work)
			next = next.Add([]time.Duration{13, 31, 17, 43, 11, 23, 37}[n%7] * ms)
		}
	}
}

func TestGivewayRunsLightQueuesSideBySide(t *testing.T) {
	l, jobs := newShared(t, nil, lightBurst, lightBurst, lightBurst, lightBurst)
	l.run(200 * ms)
	before := len(l.actions)
	share, _ := l.runningShare(5*time.Second, jobs)
	for i, s := range share {
		if s < 0.999 || jobs[i].slice != 0 {
			t.Errorf("job %d: ran for %.3f of the time with slice %v, want always with the default", i, s, jobs[i].slice)
		}
	}
	if n := len(l.actions) - before; n > 0 {
		t.Errorf("got %d actions in 5 s, want none: %v", n, l.actions[before:])
	}
}

func TestGivewayLightQueuesHaveASharedSliceBesideOnlineWork(t *testing.T) {
	for _, c := range []struct {
		value string
		want  time.Duration
	}{{"500us", ownShared}, {"100us", sharedGPU.MinSharedSlice}, {"default", 0}} {
		l, jobs := newShared(t, map[string]string{"shared": c.value}, lightBurst, lightBurst, lightBurst)
		l.openJob(class(sched.Online), atRandom(ms), 0)
		l.run(4 * time.Second)
		before := len(l.actions)
		share, _ := l.runningShare(3*time.Second, jobs)
		for i, s := range share {
			if s < 0.999 || jobs[i].slice != c.want {
				t.Errorf("shared=%s: job %d ran for %.3f of the time with slice %v, want always with %v", c.value, i, s, jobs[i].slice, c.want)
			}
		}
		if n := len(l.actions) - before; n > 6 {
			t.Errorf("shared=%s: got %d actions in 3 s, want at most 6", c.value, n)
		}
	}
	l, jobs := newShared(t, map[string]string{"shared": "min"}, lightBurst, lightBurst, lightBurst)
	l.openJob(class(sched.Online), atRandom(ms), 0)
	l.run(time.Second)
	if _, most := l.runningShare(3*time.Second, jobs); most != 1 {
		t.Errorf("shared=min: %d jobs ran at a time, want turns", most)
	}
}

// TestGivewayLightQueuesGetTheDefaultSliceWhenOnlineWorkIsAway checks that an online queue
// without work for a while is no reason for short slices.
func TestGivewayLightQueuesGetTheDefaultSliceWhenOnlineWorkIsAway(t *testing.T) {
	l, jobs := newShared(t, nil, lightBurst, lightBurst)
	arrive := atRandom(ms)
	l.openJob(class(sched.Online), func(j *job, now sched.Time) {
		if now < sched.Time(2*time.Second) || now > sched.Time(6*time.Second) {
			arrive(j, now)
		}
	}, 0)
	for _, c := range []struct {
		at   time.Duration
		want time.Duration
	}{{1900 * ms, ownShared}, {5 * time.Second, 0}, {6500 * ms, ownShared}} {
		l.run(c.at - time.Duration(l.now))
		if jobs[0].slice != c.want || jobs[1].slice != c.want {
			t.Errorf("at %v: got slices %v and %v, want %v", c.at, jobs[0].slice, jobs[1].slice, c.want)
		}
	}
}

func TestGivewayHeavyQueuesTakeTurns(t *testing.T) {
	for _, online := range []bool{false, true} {
		l, jobs := newShared(t, nil, 0, 0, 0)
		if online {
			l.openJob(class(sched.Online), atRandom(ms), 0)
		}
		l.run(500 * ms)
		overlaps := 0
		l.run(10*time.Second, func() {
			n := 0
			for _, j := range jobs {
				if j.running {
					n++
				}
			}
			if n > 1 {
				overlaps++
			}
		})
		part := float64(overlaps) * float64(tick) / float64(10*time.Second)
		most := 0.05
		if online {
			most = 0.01
		}
		if part == 0 || part > most {
			t.Errorf("online %v: two queues ran beside each other for %.4f of the time, want a little, at most %v", online, part, most)
		}
	}
}

// TestGivewayManyHeavyQueues checks that heavy queues are found to be heavy, and take turns,
// however many there are. Beside each other all at once, each would make few visits.
func TestGivewayManyHeavyQueues(t *testing.T) {
	for _, online := range []bool{false, true} {
		l, jobs := newShared(t, nil, make([]time.Duration, 64)...)
		if online {
			l.openJob(class(sched.Online), atRandom(ms), 0)
		}
		l.run(500 * ms) // until those that were opened together are stopped
		_, most := l.runningShare(8*time.Second, jobs)
		want := 12 + 1 // newcomers, and the one whose turn it is
		if online {
			want = 3 + 1
		}
		if most > want {
			t.Errorf("online %v: %d queues ran at a time, want at most %d", online, most, want)
		}
		sum := 0.0
		share, _ := l.runningShare(3*time.Second, jobs)
		for _, s := range share {
			sum += s
		}
		if sum > 1.2 {
			t.Errorf("online %v: %.2f queues ran on average, want them to take turns", online, sum)
		}
		if slices.Min(share) == 0 {
			t.Errorf("online %v: a queue did not run for 3 s, want a round to take about 2 s", online)
		}
	}
}

// TestGivewayManyLightQueues checks that a few of many light queues run at a time beside online
// work, that each comes and goes as often as the others, and that all run when there is none.
func TestGivewayManyLightQueues(t *testing.T) {
	for _, heavy := range []int{0, 2} {
		l, jobs := newShared(t, map[string]string{"beside": "3"}, slices.Repeat([]time.Duration{lightBurst}, 12)...)
		for range heavy {
			l.openJob(batch(1), saturating, 0)
		}
		online := l.openJob(class(sched.Online), atRandom(ms), 0)
		l.run(4 * time.Second)
		before := len(l.actions)
		share, most := l.runningShare(6*time.Second, jobs)
		want := 3.0 / 12
		if heavy > 0 {
			want = 2.0 / 12 // the third is the heavy queue whose turn it is
		}
		for i, s := range share {
			if s < want*0.7 || s > want*1.3 {
				t.Errorf("%d heavy queues: light queue %d ran for %.3f of the time, want %.3f as the others", heavy, i, s, want)
			}
		}
		if most > 4 {
			t.Errorf("%d heavy queues: %d light queues ran at a time, want 3", heavy, most)
		}
		if n := len(l.actions) - before; n > 6*20*5 {
			t.Errorf("%d heavy queues: %d actions in 6 s, want about four for each turn of 50 ms", heavy, n)
		}
		online.load = nil
		l.run(activeFor + time.Second)
		if share, _ := l.runningShare(time.Second, jobs); slices.Min(share) < 0.99 {
			t.Errorf("%d heavy queues: without online work a light queue ran for %.3f of the time, want all of it", heavy, slices.Min(share))
		}
	}
}

func TestGivewayHeavyQueueTakesTurnsBesideLightOnes(t *testing.T) {
	for _, online := range []bool{false, true} {
		l, jobs := newShared(t, nil, 0, 0, lightBurst)
		want := time.Duration(0)
		if online {
			l.openJob(class(sched.Online), atRandom(ms), 0)
			want = ownShared
		}
		l.run(time.Second)
		share, most := l.runningShare(5*time.Second, jobs)
		for _, q := range l.sched.Queues(nil) {
			if light := q.ID == jobs[2].ID; q.SideBySide != light {
				t.Errorf("online %v: queue %d is shown as side by side: %v, want %v", online, q.ID, q.SideBySide, light)
			}
		}
		if share[0] < 0.4 || share[1] < 0.4 || share[0]+share[1] > 1.1 || share[2] < 0.999 || most > 3 || jobs[2].slice != want {
			t.Errorf("online %v: heavy jobs ran for %.3f and %.3f of the time, the light one for %.3f with slice %v", online, share[0], share[1], share[2], jobs[2].slice)
		}
	}
}

// TestGivewayNoticesAChangeOfLoad checks that a light queue that becomes heavy takes turns,
// and a heavy one that becomes light runs side by side, within a second, or three beside
// online work, and that nothing oscillates.
func TestGivewayNoticesAChangeOfLoad(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to []time.Duration
		online   bool
		within   time.Duration
		most     int // that run at a time in the end
	}{
		{"light to heavy", []time.Duration{lightBurst, lightBurst, lightBurst}, []time.Duration{0, 0, 0}, false, time.Second, 1},
		{"light to heavy, online", []time.Duration{lightBurst, lightBurst, lightBurst}, []time.Duration{0, 0, 0}, true, time.Second, 1},
		{"heavy to light", []time.Duration{0, 0, 0}, []time.Duration{lightBurst, lightBurst, lightBurst}, false, 2 * time.Second, 3},
		{"heavy to light, online", []time.Duration{0, 0, 0}, []time.Duration{lightBurst, lightBurst, lightBurst}, true, 5 * time.Second, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, jobs := newShared(t, nil, c.from...)
			if c.online {
				l.openJob(class(sched.Online), atRandom(ms), 0)
			}
			l.run(3 * time.Second)
			for i := range jobs {
				jobs[i].burst = c.to[i]
			}
			l.run(c.within)
			before := len(l.actions)
			share, _ := l.runningShare(900*ms, jobs)
			sum := 0.0
			for _, s := range share {
				sum += s
			}
			if want := float64(c.most); sum < want-0.1 || sum > want+0.1 {
				t.Errorf("%v after the change: %.2f jobs run on average, want %d", c.within, sum, c.most)
			}
			if n := len(l.actions) - before; n > 100 {
				t.Errorf("got %d actions in 0.9 s, want at most three for each turn of 50 ms", n)
			}
		})
	}
}

// TestGivewayShortPhasesChangeNothing checks that a light queue which is busy for a moment
// now and then keeps running side by side.
func TestGivewayShortPhasesChangeNothing(t *testing.T) {
	l, jobs := newShared(t, nil, lightBurst, lightBurst)
	l.run(500 * ms)
	before := len(l.actions)
	l.run(10*time.Second, func() {
		if jobs[0].burst = lightBurst; l.now%sched.Time(300*ms) < sched.Time(10*ms) {
			jobs[0].burst = 0
		}
	})
	if n := len(l.actions) - before; n > 0 {
		t.Errorf("got %d actions, want none", n)
	}
}

// TestGivewayNewcomersAreKnownSoon checks that a heavy newcomer beside a heavy queue runs
// side by side with it only for a moment, also beside online work.
func TestGivewayNewcomersAreKnownSoon(t *testing.T) {
	for _, online := range []bool{false, true} {
		l, jobs := newShared(t, nil, 0, 0)
		if online {
			l.openJob(class(sched.Online), atRandom(ms), 0)
		}
		l.run(900 * ms)
		jobs = append(jobs, l.openJob(batch(1), saturating, 0))
		l.run(200 * ms)
		if _, most := l.runningShare(300*ms, jobs); most > 2 {
			t.Errorf("online %v: %d jobs ran at a time, want turns", online, most)
		}
	}
}

// TestGivewayBorderlineNewcomersAreKnown checks that the loads of queues whose visits are partly full,
// and of more of them than a trial takes, are all known after a while.
func TestGivewayBorderlineNewcomersAreKnown(t *testing.T) {
	l, _ := newShared(t, nil)
	for range 2 * trialQueues {
		l.openJob(batch(1), func(j *job, now sched.Time) {
			saturating(j, now)
			if j.burst = 0; j.visited.Count%2 == 0 {
				j.burst = lightBurst
			}
		}, 0)
	}
	l.run(10 * time.Second)
	states, unknown := l.policies[0].(*giveway).states.values, 0
	for i := range states {
		if states[i].load.verdict == unknownLoad {
			unknown++
		}
	}
	if unknown > 0 {
		t.Errorf("of %d queues the loads of %d are not known after 10 s", len(states), unknown)
	}
}

// TestGivewayIdleNewcomerLeavesTheTurnToOthers checks that a process without work does not
// take the minimum slice from the queue that works.
func TestGivewayIdleNewcomerLeavesTheTurnToOthers(t *testing.T) {
	l, jobs := newShared(t, nil, 0)
	l.openJob(batch(1), idle, 0)
	l.openJob(class(sched.Online), atRandom(ms), 0)
	l.run(time.Second)
	before := len(l.actions)
	l.run(3*time.Second, func() {
		if !jobs[0].running || jobs[0].slice != sched.MinSlice {
			t.Fatalf("at %v: running %v with slice %v, want the minimum slice", time.Duration(l.now), jobs[0].running, jobs[0].slice)
		}
	})
	if n := len(l.actions) - before; n > 0 {
		t.Errorf("got %d actions in 3 s, want none", n)
	}
}

// TestGivewayClearsTheDeviceForRegularRequests checks that a request which comes every 20 ms
// finds one batch queue, with the minimum slice, and that all light queues run for most of
// the time in between. Calls that take longer than the device's stop time are made earlier. The
// light queues take turns in staying on the device.
func TestGivewayClearsTheDeviceForRegularRequests(t *testing.T) {
	for _, c := range []struct {
		counters bool
		calls    time.Duration
	}{{false, 500 * time.Microsecond}, {true, 500 * time.Microsecond}, {true, 2500 * time.Microsecond}} {
		counters := c.counters
		l, jobs := newShared(t, nil, lightBurst, lightBurst, lightBurst, lightBurst)
		l.actionTime = c.calls
		var online *job
		if load := periodic(20*ms, ms); counters {
			online = l.open(class(sched.Online), load)
		} else {
			online = l.openJob(class(sched.Online), load, 0)
		}
		l.run(2 * time.Second)
		arrivals, clear := 0, 0
		share := 0.0
		done := len(online.finished)
		stays := make([]int, len(jobs))
		l.run(4*time.Second, func() {
			n, short, last := 0, 0, 0
			for i, j := range jobs {
				if j.running {
					n++
					share += float64(tick) / float64(16*time.Second)
				}
				if j.running && j.slice == sched.MinSlice {
					short++
					last = i
				}
			}
			if l.now%sched.Time(20*ms) == sched.Time(tick) {
				if arrivals++; n == 1 && short == 1 {
					clear++
					stays[last]++
				}
			}
		})
		if least := slices.Min(stays); least < arrivals/8 {
			t.Errorf("%+v: each light queue stayed for %v of %d requests, want an eighth or more", c, stays, arrivals)
		}
		if clear < arrivals*95/100 {
			t.Errorf("%+v: %d of %d requests found one batch queue with the minimum slice, want 95 %%", c, clear, arrivals)
		}
		if share < 0.75 {
			t.Errorf("%+v: batch queues ran for %.2f of the time, want 0.75", c, share)
		}
		for _, c := range online.finished[done:] {
			if took := c.done.Sub(c.arrived); took > 2*ms {
				t.Fatalf("counters %v: a request of 1 ms took %v", counters, took)
			}
		}
	}
}

func TestRhythm(t *testing.T) {
	const period = 20 * ms
	regular := func(r *rhythm, from sched.Time, n int, late func(i int) time.Duration) sched.Time {
		at := from
		for i := range n {
			at = from.Add(time.Duration(i) * period)
			r.arrived(at.Add(late(i)))
		}
		return at
	}
	none := func(int) time.Duration { return 0 }
	t.Run("regular", func(t *testing.T) {
		var r rhythm
		last := regular(&r, 1, 9, none)
		if got := r.expected(last + 1); got != last.Add(period) {
			t.Errorf("got %v, want %v", got, last.Add(period))
		}
		if got := r.expected(last.Add(period + 10*ms)); got != last.Add(2*period) {
			t.Errorf("after one that did not come: got %v, want %v", got, last.Add(2*period))
		}
		if got := r.expected(last.Add(6 * period)); got != 0 {
			t.Errorf("long after the last one: got %v, want none", got)
		}
	})
	t.Run("late reports", func(t *testing.T) {
		var r rhythm
		last := regular(&r, 1, 200, func(i int) time.Duration { return time.Duration(i*7%5) * 400 * time.Microsecond })
		if off := r.expected(last + sched.Time(5*ms)).Sub(last.Add(period)); off < -ms || off > ms {
			t.Errorf("the expected arrival is off by %v, want at most 1 ms", off)
		}
	})
	t.Run("one in ten missing", func(t *testing.T) {
		var r rhythm
		for i := range 100 {
			if i%10 != 3 {
				r.arrived(sched.Time(1 + time.Duration(i)*period))
			}
		}
		if want := sched.Time(1 + 100*period); r.expected(want-1) != want {
			t.Errorf("got %v, want %v", r.expected(want-1), want)
		}
	})
	t.Run("ends", func(t *testing.T) {
		var r rhythm
		last := regular(&r, 1, 30, none)
		for i := range 8 {
			r.arrived(last.Add(time.Duration(i+1)*period + []time.Duration{7, 11, 9, 5}[i%4]*ms))
		}
		if got := r.expected(last.Add(9 * period)); r.score > 0 && got != 0 {
			t.Errorf("after irregular arrivals: got %v with score %d, want none", got, r.score)
		}
	})
	t.Run("irregular", func(t *testing.T) {
		var r rhythm
		at := sched.Time(1)
		for i := range 500 {
			at = at.Add([]time.Duration{13, 31, 17, 43, 11, 23, 37}[i%7] * ms)
			r.arrived(at)
			if r.period != 0 {
				t.Fatalf("arrival %d: got period %v, want none", i, r.period)
			}
		}
	})
}

// TestGivewaySliceOfSeveralOnlineQueues checks that of several active online queues only one
// that goes before all others has the long slice.
func TestGivewaySliceOfSeveralOnlineQueues(t *testing.T) {
	const long = 20 * ms
	online := func(priority int32, slo time.Duration) sched.Attr {
		return sched.Attr{Class: sched.Online, Priority: priority, SLO: slo}
	}
	for _, c := range []struct {
		attrs []sched.Attr
		want  []time.Duration
	}{
		{[]sched.Attr{online(0, 0)}, []time.Duration{long}},
		{[]sched.Attr{online(0, 0), online(0, 0)}, []time.Duration{0, 0}},
		{[]sched.Attr{online(0, 0), online(1, 0), online(0, ms)}, []time.Duration{0, long, 0}},
		{[]sched.Attr{online(0, 5*ms), online(0, 2*ms)}, []time.Duration{0, long}},
		{[]sched.Attr{online(0, 5*ms), online(0, 0)}, []time.Duration{0, 0}},
		{[]sched.Attr{online(0, 0), online(0, 5*ms)}, []time.Duration{0, 0}},
		{[]sched.Attr{online(0, 5*ms), online(0, 0), online(0, 2*ms)}, []time.Duration{0, 0, 0}},
		{[]sched.Attr{online(0, 5*ms), online(0, 5*ms), online(0, 2*ms)}, []time.Duration{0, 0, long}},
		{[]sched.Attr{online(0, 5*ms), online(0, 5*ms)}, []time.Duration{0, 0}},
		{[]sched.Attr{online(0, 2*ms), online(0, 2*ms), online(0, 5*ms)}, []time.Duration{0, 0, 0}},
		{[]sched.Attr{online(0, 2*ms), online(0, 5*ms)}, []time.Duration{long, 0}},
		{[]sched.Attr{online(1, 0), online(1, 0), online(2, 0), online(2, 0)}, []time.Duration{0, 0, 0, 0}},
	} {
		l, _ := newShared(t, nil, 0)
		l.policies[0].(*giveway).readsSLO = true // as under slo
		var got []time.Duration
		var jobs []*job
		for _, a := range c.attrs {
			jobs = append(jobs, l.openJob(sched.Queue{Attr: a}, periodic(20*ms, ms), 0))
		}
		l.run(500 * ms)
		for _, j := range jobs {
			got = append(got, j.slice)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got slices %v, want %v", fmt.Sprint(c.attrs), got, c.want)
		}
	}
	// One that has had no work for a while does not count.
	l, _ := newShared(t, nil, 0)
	a := l.openJob(class(sched.Online), periodic(20*ms, ms), 0)
	away := l.openJob(class(sched.Online), func(j *job, now sched.Time) {
		if now == 0 {
			j.submit(now, ms)
		}
	}, 0)
	l.run(3 * time.Second)
	if a.slice != long {
		t.Errorf("beside an online queue without work: got slice %v, want %v", a.slice, long)
	}
	if away.slice != long { // its next request is not interrupted
		t.Errorf("an online queue without work has a slice of %v, want %v", away.slice, long)
	}
}

// TestNoStarvationBesideAQueueThatCannotBeStopped checks that a batch queue whose turn it is has
// a slice with which it makes progress beside a pool, which cannot be stopped for the turn.
func TestNoStarvationBesideAQueueThatCannotBeStopped(t *testing.T) {
	p := makeGiveway()
	v := &sched.View{Now: sched.Time(time.Second), Devices: []sched.Device{h200Device}, Queues: []sched.Queue{
		{ID: 1, Can: sched.CanSlice | sched.CanInterrupt, Attr: sched.Attr{Class: sched.Online}},
		{ID: 2, Can: sched.CanSlice | sched.CanInterrupt, Attr: sched.Attr{Class: sched.Batch}},
		{ID: 3, Can: sched.CanSlice, Attr: sched.Attr{Class: sched.Batch}},
	}}
	for range 500 {
		v.Now = v.Now.Add(ms)
		grants := p.Plan(v).Grants
		for _, g := range grants {
			if len(grants) == 3 && g.Slice > 0 && g.Slice < h200Device.MinSharedSlice {
				t.Fatalf("queue %d has a slice of %v beside another that is ready; want %v at least", g.Queue, g.Slice, h200Device.MinSharedSlice)
			}
		}
	}
	v.Queues = v.Queues[:2]
	v.Now = v.Now.Add(ms)
	for _, g := range p.Plan(v).Grants {
		if g.Queue == 2 && g.Slice != sched.MinSlice {
			t.Errorf("alone beside online work: got a slice of %v, want the minimum", g.Slice)
		}
	}
}

// TestArrivalsOfAnInexactClock checks that regular arrivals are recognized although each reading
// of the trace gives a slightly different time for the same one.
func TestArrivalsOfAnInexactClock(t *testing.T) {
	var o onlineState
	q := sched.Queue{Measured: true, Visits: sched.Visits{Known: true}}
	for now := sched.Time(time.Second); now < sched.Time(3*time.Second); now = now.Add(5 * ms) {
		last := now / sched.Time(20*ms) * sched.Time(20*ms)
		q.Visits.Arrived = max(q.Visits.Arrived, last.Add(time.Duration(now/sched.Time(5*ms)%7)*6*time.Microsecond))
		q.Served += ms / 4
		o.watch(&q, now)
	}
	if got := o.rhythm.period; got < 19900*time.Microsecond || got > 20100*time.Microsecond {
		t.Errorf("got a period of %v, want 20 ms", got)
	}
}

// TestClearLeadFitsSlowCalls gives calls of varying length. The device must be clear in time
// for nearly all requests, and the reserve must not exceed the time itself.
func TestClearLeadFitsSlowCalls(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var p giveway
	p.sharing = true
	p.clearing.add(time.Millisecond)
	late, longest := 0, time.Duration(0)
	const n = 2000
	for range n {
		took := time.Millisecond + time.Duration(random.ExpFloat64()*150e3)
		lead := p.clearLead(&sched.View{Devices: []sched.Device{{}}}, nil, 0)
		longest = max(longest, lead)
		if took > lead {
			late++
		}
		p.clearing.add(took)
	}
	if late > n/100 || longest > 2400*time.Microsecond {
		t.Errorf("got %d of %d clearings later than their lead, of up to %v; want at most 1 %%, up to 2.4 ms", late, n, longest)
	}
}

// TestOneSlowClearingChangesLittle checks that clearings that were held up, for example because the
// daemon had no CPU, do not keep the device from being cleared for the requests that follow, and that
// calls that always take longer do, until that is long ago.
func TestOneSlowClearingChangesLittle(t *testing.T) {
	p, v, states := clearNode()
	clear := func(took time.Duration) time.Duration {
		for i, wanted := range []bool{false, true, true} {
			v.Queues[0].Slice, v.Queues[1].State, v.Queues[2].State = 0, sched.Running, sched.Running
			if i == 2 {
				v.Now = v.Now.Add(took)
				v.Queues[0].Slice, v.Queues[1].State, v.Queues[2].State = sched.MinSlice, sched.Stopped, sched.Stopped
			}
			p.measureClear(v, states, &summary{onlineSummary: onlineSummary{wantClear: wanted}})
		}
		return p.clearLead(v, states, 0)
	}
	if first := clear(time.Second); first > 4*3*h200Device.StopTime {
		t.Errorf("the first clearing took a second: a lead of %v", first)
	}
	for range 50 {
		clear(1800 * time.Microsecond)
	}
	usual := clear(1800 * time.Microsecond)
	for range 20 {
		if got := clear(20 * time.Millisecond); got > usual*5/4 {
			t.Fatalf("a clearing took 20 ms: a lead of %v, before %v", got, usual)
		}
		for range 20 {
			clear(1800 * time.Microsecond)
		}
	}
	if got := clear(1800 * time.Microsecond); got > usual*5/4 {
		t.Errorf("one in twenty clearings took 20 ms: a lead of %v, before %v", got, usual)
	}
	for range 40 {
		clear(20 * time.Millisecond)
	}
	if got := p.clearLead(v, states, 0); got < 18*time.Millisecond {
		t.Errorf("clearings take 20 ms: a lead of %v", got)
	}
	v.Now = v.Now.Add(31 * time.Second)
	if got := p.clearLead(v, states, 0); got > 2*usual {
		t.Errorf("31 s after the last clearing: a lead of %v, want it learnt anew", got)
	}
}

// TestOverlapsSpareRegularRequests checks that a request that is expected meets one batch
// queue, also while heavy queues run beside each other to find out whether they still are.
func TestOverlapsSpareRegularRequests(t *testing.T) {
	l, jobs := newShared(t, nil, 0, 0, 0)
	online := l.openJob(class(sched.Online), periodic(20*ms, ms), 0)
	l.run(2 * time.Second)
	overlap, met := 0, 0
	l.run(20*time.Second, func() {
		n := 0
		for _, j := range jobs {
			if j.running {
				n++
			}
		}
		if n > 1 {
			overlap++
			if len(online.todo) > 0 {
				met++
			}
		}
	})
	if overlap == 0 || met*100 > overlap {
		t.Errorf("heavy queues ran beside each other in %d ticks, %d of them during a request; want some, and at most a hundredth", overlap, met)
	}
}

// TestGivewayTrialsAreRareBesideOnlineWork checks that newcomers, however often one comes, run
// beside others for little more of the time than an overlap does, if there is online work, and
// that their load is found out nevertheless when they stay.
func TestGivewayTrialsAreRareBesideOnlineWork(t *testing.T) {
	l, jobs := newShared(t, nil, 0)
	l.openJob(class(sched.Online), atRandom(ms), 0)
	l.run(time.Second)
	beside := time.Duration(0)
	for range 40 {
		young := l.openJob(batch(1), saturating, 0)
		l.run(700*ms, func() {
			if jobs[0].running && young.running {
				beside += tick
			}
		})
		l.close(young)
	}
	if part := beside.Seconds() / 28; part == 0 || part > 0.02 {
		t.Errorf("newcomers ran beside the old job for %.4f of the time, want a little, at most 0.02", part)
	}
	jobs = append(jobs, l.openJob(batch(1), saturating, lightBurst), l.openJob(batch(1), saturating, lightBurst))
	l.run(20 * time.Second)
	if share, _ := l.runningShare(3*time.Second, jobs); share[1] < 0.95 || share[2] < 0.95 {
		t.Errorf("light newcomers that stay run for %.2f and %.2f of the time, want side by side", share[1], share[2])
	}
}

// TestTimeToClearBesideAQueueThatCannotBeStopped checks that the time to clear the device ends when
// the queues that can be stopped are.
func TestTimeToClearBesideAQueueThatCannotBeStopped(t *testing.T) {
	p := makeGiveway()
	p.mayShare, p.sharing, p.current = true, true, 1
	v := &sched.View{Now: sched.Time(time.Second), Devices: []sched.Device{sharedGPU}, Queues: []sched.Queue{
		{ID: 1, Can: canAll, Slice: sched.MinSlice},
		{ID: 2, Can: canAll, State: sched.Stopping},
		{ID: 3, Can: sched.CanSlice},
	}}
	states := []queueState{{sideBySide: true}, {sideBySide: true}, {sideBySide: true}}
	for i, state := range []sched.State{sched.Running, sched.Stopping, sched.Stopped} {
		v.Now = v.Now.Add(ms)
		v.Queues[1].State = state
		p.measureClear(v, states, &summary{onlineSummary: onlineSummary{wantClear: true}})
		if want := i / 2; p.clearing.call.n != want {
			t.Errorf("while queue 2 is %v: measured %d times, want %d", state, p.clearing.call.n, want)
		}
	}
	if p.clearing.call.mean != ms { // one of two calls
		t.Errorf("got %v, want 1 ms", p.clearing.call.mean)
	}
}

// TestGivewayLimitsWhatALightQueueGets checks that a process which pauses in order to look light
// gets at most about twice its share beside heavy queues that take turns.
func TestGivewayLimitsWhatALightQueueGets(t *testing.T) {
	for _, c := range []struct {
		heavy  int
		weight uint32
		most   float64
	}{{2, 1, 0.55}, {4, 1, 0.42}, {8, 1, 0.24}, {4, 4, 0.13}} {
		for _, online := range []bool{false, true} {
			l, jobs := newShared(t, nil)
			for range c.heavy {
				jobs = append(jobs, l.openJob(batch(c.weight), saturating, 0))
			}
			sly := l.openJob(batch(1), saturating, 700*time.Microsecond)
			if online {
				l.openJob(class(sched.Online), atRandom(ms), 0)
			}
			l.run(2 * time.Second)
			before := sly.served
			rest := time.Duration(0)
			for _, j := range jobs {
				rest -= j.served
			}
			l.run(20 * time.Second)
			got := sly.served - before
			for _, j := range jobs {
				rest += j.served
			}
			fair := 1 / (1 + float64(c.heavy)*float64(c.weight))
			if part := got.Seconds() / (got + rest).Seconds(); part > c.most || part < fair*0.9 {
				t.Errorf("beside %d heavy queues of weight %d, online %v: got %.3f of the batch time, want %.3f to %.3f", c.heavy, c.weight, online, part, fair, c.most)
			}
		}
	}
}
