package policy

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// ladderRun drives a ladder as slo does, without a scheduler: a setting is in force at
// once, and a request finishes every so often. docs/GIVEWAY-AND-SLO.md states the figures that
// are tested here.
type ladderRun struct {
	*ladder
	now     sched.Time
	every   time.Duration
	score   float64
	changes []ladderChange
}

// ladderChange is a change of the current rung.
type ladderChange struct {
	at       sched.Time
	n        int // requests until then
	from, to int
}

func newLadderRun(dev sched.Device, every time.Duration) *ladderRun {
	x := &ladderRun{ladder: &ladder{}, every: every, now: sched.Time(time.Hour)}
	x.build(dev)
	x.begin()
	return x
}

// begin puts the current setting in force, and resets the score if the ladder says so.
func (x *ladderRun) begin() {
	r := &x.rungs[x.current]
	x.confirm(&sched.View{Now: x.now, Queues: []sched.Queue{{ID: 2, Slice: r.slice, Bound: r.bound}}}, 2)
	if x.resetScores {
		x.resetScores, x.score = false, 0
	}
}

// finish finishes a request.
func (x *ladderRun) finish(took time.Duration) {
	x.now = x.now.Add(x.every)
	was := x.current
	x.addRequest(x.now.Add(-took), took, testSLO, &x.score)
	x.addDuration(took)
	x.decide(x.now)
	if x.current != was {
		x.changes = append(x.changes, ladderChange{x.now, x.total, was, x.current})
	}
	x.begin()
}

// gets makes batch work get a share of the device in the time of one request.
func (x *ladderRun) gets(share float64) {
	x.measured = true
	r := &x.rungs[x.current]
	r.wall += x.every
	r.batch += time.Duration(share * float64(x.every))
	r.requests++
}

// choose makes a rung the chosen one.
func (x *ladderRun) choose(i int) {
	x.chosen = i
	x.setCurrent(i, x.now)
	x.changes, x.score = nil, 0
	x.begin()
}

// never makes a rung not be tried.
func (x *ladderRun) never(rungs ...int) {
	for _, i := range rungs {
		x.rungs[i].retry = sched.Never
	}
}

func TestLadderHasTheDocumentedRungs(t *testing.T) {
	us := time.Microsecond
	atOnce := setting{slice: 1, bound: 4, stopWhenBusy: true}
	stopped := setting{slice: 1, bound: 4, stopWhenBusy: true, stopDuringRequests: true}
	for _, c := range []struct {
		name  string
		dev   sched.Device
		want  []setting
		start int
	}{
		{"H200", h200, []setting{{}, {}, {slice: 1024 * us, bound: 16}, {slice: 512 * us, bound: 16}, {slice: 256 * us, bound: 4}, atOnce, stopped}, 5},
		{"any slice is safe", sched.Device{Slice: 2 * ms}, []setting{{}, {}, {slice: ms, bound: 16}, {slice: 500 * us, bound: 16}, {slice: 250 * us, bound: 16}, {slice: 125 * us, bound: 4}, atOnce, stopped}, 6},
		{"half can be shared", sched.Device{Slice: 2 * ms, MinSharedSlice: ms}, []setting{{}, {}, {slice: ms, bound: 4}, atOnce, stopped}, 3},
		{"only the default can", sched.Device{Slice: 2 * ms, MinSharedSlice: 2 * ms}, []setting{{}, {}, atOnce, stopped}, 2},
		{"no slices", sched.Device{}, []setting{{}, {bound: 16}, {bound: 4}, {bound: 4, stopWhenBusy: true}, atOnce}, 4},
	} {
		var l ladder
		l.build(c.dev)
		var got []setting
		for _, r := range l.rungs[:l.last+1] {
			got = append(got, r.setting)
		}
		if !slices.Equal(got, c.want) || l.start != c.start || l.current != l.start || l.chosen != l.start {
			t.Errorf("%s: got %+v, start %d, want %+v, %d", c.name, got, l.start, c.want, c.start)
		}
	}
}

// TestQuantileOfARing compares with a sorted slice.
func TestQuantileOfARing(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 6))
	for range 2000 {
		ring := make([]time.Duration, keptRequests/2)
		n := random.IntN(2 * len(ring))
		var all []time.Duration
		for i := range n {
			ring[i%len(ring)] = time.Duration(random.IntN(1000))
		}
		all = append(all, ring[:min(n, len(ring))]...)
		slices.Sort(all)
		for _, q := range [][2]int{{0, 1}, {1, 10}, {1, 4}, {1, 2}, {9, 10}} {
			want := time.Duration(0)
			if len(all) > 0 {
				want = all[len(all)*q[0]/q[1]]
			}
			if got := quantileOf(ring, n, q[0], q[1]); got != want {
				t.Fatalf("%d values: quantile %d/%d is %v, want %v", n, q[0], q[1], got, want)
			}
		}
	}
}

// TestLadderForgets checks how fast what is known fades: of a rung, all counts are halved beyond
// 256 requests; of all requests, about the last 2,000 count.
func TestLadderForgets(t *testing.T) {
	x := newLadderRun(h200, 20*ms)
	x.never(0, 1, 2, 3, 4, 5, 6)
	x.choose(x.start)
	r := &x.rungs[x.start]
	for i := range 257 {
		took := 9 * ms
		if i%64 == 0 {
			took = testSLO + 200*time.Microsecond
		}
		if x.finish(took); i == 255 && (r.tried != 256 || r.late != 4) {
			t.Errorf("after 256 requests: %.1f, %.1f late, want 256 and 4", r.tried, r.late)
		}
	}
	if r.tried != 128.5 || r.late != 2+1 {
		t.Errorf("after 257 requests: %.1f, %.1f late, want 128.5 and 3", r.tried, r.late)
	}

	x = newLadderRun(h200, 20*ms)
	x.never(0, 1, 2, 3, 4, 5, 6)
	x.recentStalls, x.recentLate = 10, 20
	for range 4000 {
		x.finish(5 * ms)
	}
	left := math.Exp(-2)
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"requests", x.recentRequests, 2000 * (1 - left)},
		{"stalls", x.recentStalls, 10 * left},
		{"late requests", x.recentLate, 20 * left},
	} {
		if math.Abs(c.got-c.want) > c.want/100 {
			t.Errorf("after 4000 requests %.2f %s count, want %.2f", c.got, c.name, c.want)
		}
	}
}

// TestLadderRestarts checks that the ladder begins anew at the start rung, from which it has to
// try the others again, with late requests of before forgotten.
func TestLadderRestarts(t *testing.T) {
	x := newLadderRun(h200, 20*ms)
	x.choose(1)
	x.finish(testSLO + ms)
	x.pause(2, x.now, time.Minute)
	x.restart(x.now)
	if x.current != x.start || x.chosen != x.start || !x.resetScores || x.late != 0 || x.rungs[2].retry != 0 {
		t.Errorf("on rung %d, chosen %d, %d late, scores reset %v; want rung %d, nothing known", x.current, x.chosen, x.late, x.resetScores, x.start)
	}
}

// TestLadderSlices checks that with each setting batch queues side by side have the slice of the one
// whose turn it is, and that with all but the mildest one online queues have theirs.
func TestLadderSlices(t *testing.T) {
	var l ladder
	l.build(h200)
	for i := range l.last + 1 {
		set := l.setting(i, 20*ms)
		if set.sharedSlice != l.rungs[i].slice || set.slice != l.rungs[i].slice {
			t.Errorf("rung %d: got a slice of %v, and %v side by side, want %v", i, set.slice, set.sharedSlice, l.rungs[i].slice)
		}
		if long := set.onlineSlice == 20*ms; long != (i > 0) {
			t.Errorf("rung %d: online queues have a slice of %v", i, set.onlineSlice)
		}
	}
}
