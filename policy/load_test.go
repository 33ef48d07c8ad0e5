package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// loadTest is the load state of a queue that runs beside others on an H200, and what the
// hardware has counted of the queue.
type loadTest struct {
	loadState
	q      sched.Queue
	now    sched.Time
	beside bool
	alone  time.Duration // of other queues
}

func newLoadTest(slice time.Duration) *loadTest {
	l := &loadTest{now: sched.Time(time.Second), beside: true}
	l.q = sched.Queue{ID: 1, Slice: slice, Measured: true, Visits: sched.Visits{Known: true}}
	l.measure(0, 0, 0)
	return l
}

// measure reports what the queue did in the next 10 ms.
func (l *loadTest) measure(visits, full uint64, served time.Duration) {
	l.now = l.now.Add(10 * ms)
	l.q.Visits.Count += visits
	l.q.Visits.Full += full
	l.q.Served += served
	l.q.MeasuredAt = l.now
	l.watch(&l.q, l.now, l.beside, false, l.alone)
}

// measureBeside is measure for when other queues were alone for some of the time.
func (l *loadTest) measureBeside(visits, full uint64, served, alone time.Duration) {
	l.alone += alone
	l.measure(visits, full, served)
}

// window reports ten visits, of which full were full.
func (l *loadTest) window(full uint64) { l.measure(10, full, 5*ms) }

// windows reports such visits for a time.
func (l *loadTest) windows(full uint64, d time.Duration) {
	for end := l.now.Add(d); l.now < end; {
		l.window(full)
	}
}

// visitsOf reports six visits of the same length.
func (l *loadTest) visitsOf(length time.Duration) { l.measure(6, 0, 6*length) }

// TestLoadOfAStoppedQueue checks that the time in which a queue was stopped does not count: it
// would seem to use little of it.
func TestLoadOfAStoppedQueue(t *testing.T) {
	l := newLoadTest(0)
	l.measure(2, 1, 4*ms)
	l.q.State = sched.Stopped
	l.watch(&l.q, l.now, true, false, 0)
	l.now = l.now.Add(time.Second)
	l.q.State = sched.Running
	l.measure(0, 0, ms)
	if l.verdict != unknownLoad {
		t.Errorf("after a second in which it was stopped: got load %d, want none", l.verdict)
	}
	if l.measure(4, 4, 8*ms); l.verdict != heavyLoad {
		t.Errorf("after six visits in all: got load %d, want heavy", l.verdict)
	}
}

// TestLoadOfAQueueThatIsStoppedOften checks that a visit which a stop cut short does not count, but
// that full ones do.
func TestLoadOfAQueueThatIsStoppedOften(t *testing.T) {
	for _, tt := range []struct {
		name              string
		visits, full, cut uint64
		want              load
	}{
		{"one of two is cut", 2, 1, 1, heavyLoad},
		{"two of three are cut", 3, 1, 2, heavyLoad},
		{"all are cut", 3, 0, 3, unknownLoad},
		{"light, and cut once", 3, 0, 1, lightLoad},
		{"cut, and its end is known before its begin", 1, 1, 3, heavyLoad},
	} {
		l := newLoadTest(0)
		for range 8 {
			l.q.Visits.Cut += tt.cut
			l.measure(tt.visits, tt.full, 4*ms)
		}
		if l.verdict != tt.want {
			t.Errorf("%s: got load %d, want %d", tt.name, l.verdict, tt.want)
		}
	}
	l := newLoadTest(200 * time.Microsecond) // with a short slice their mean length counts
	l.setVerdict(heavyLoad)
	l.q.Visits.Cut += 4
	if l.measure(10, 0, 6*200*time.Microsecond); l.verdict != heavyLoad {
		t.Errorf("six visits that fill the slice, and four that were cut: got load %d, want heavy", l.verdict)
	}
}

// TestLoadOfANewcomer checks which part of the visits must be full for a newcomer to be
// heavy, and which for it to be light. In between nothing is known.
func TestLoadOfANewcomer(t *testing.T) {
	for _, tt := range []struct {
		full uint64
		want load
	}{{0, lightLoad}, {4, lightLoad}, {5, unknownLoad}, {6, unknownLoad}, {7, heavyLoad}, {10, heavyLoad}} {
		l := newLoadTest(0)
		if l.window(tt.full); l.verdict != tt.want {
			t.Errorf("%d of 10 visits full: got load %d, want %d", tt.full, l.verdict, tt.want)
		}
		if l.judgedAt != l.now {
			t.Errorf("%d of 10 visits full: the queue was judged at %v, want now: an overlap waits for that", tt.full, l.judgedAt)
		}
		if held := l.heldUntil > l.now; held != (tt.want != unknownLoad) {
			t.Errorf("%d of 10 visits full: a verdict holds: %v", tt.full, held)
		}
	}
}

// TestLoadOfABorderlineNewcomer checks that a newcomer that is neither light nor heavy by four windows
// is taken for heavy, and that the windows count anew for one that was heavy. A fourth window in which
// it is light is enough.
func TestLoadOfABorderlineNewcomer(t *testing.T) {
	l := newLoadTest(0)
	for range 3 {
		l.window(5)
	}
	if l.window(4); l.verdict != lightLoad {
		t.Errorf("4 of 10 visits full in the fourth window: got load %d, want light", l.verdict)
	}
	if l.windows(5, time.Second); l.verdict != lightLoad {
		t.Errorf("5 of 10 visits of a light queue full for a second: got load %d, want light", l.verdict)
	}
	for _, full := range []uint64{5, 6} {
		l := newLoadTest(0)
		for n := 1; n <= 4; n++ {
			want := unknownLoad
			if n == 4 {
				want = heavyLoad
			}
			if l.window(full); l.verdict != want {
				t.Errorf("%d of 10 visits full in %d windows: got load %d, want %d", full, n, l.verdict, want)
			}
		}
		if l.heldUntil != l.now.Add(holdTime) {
			t.Errorf("%d of 10 visits full: the verdict holds for %v, want %v", full, l.heldUntil.Sub(l.now), holdTime)
		}
		l.windows(full, time.Second)
		if l.verdict != heavyLoad {
			t.Errorf("%d of 10 visits full for another second: got load %d, want heavy", full, l.verdict)
		}
		l.window(0)
		for n := 1; n <= 3; n++ {
			if l.window(full); l.verdict != unknownLoad {
				t.Errorf("%d of 10 visits full in %d windows after it was heavy: got load %d, want unknown", full, n, l.verdict)
			}
		}
		if l.window(full); l.verdict != heavyLoad {
			t.Errorf("%d of 10 visits full, four windows after it was heavy: got load %d, want heavy", full, l.verdict)
		}
	}
}

// TestLoadNeedsSixVisits checks that a verdict needs six visits in one window, of at most a
// quarter of a second.
func TestLoadNeedsSixVisits(t *testing.T) {
	l := newLoadTest(0)
	if l.measure(5, 5, 10*ms); l.verdict != unknownLoad {
		t.Errorf("after 5 visits: got load %d, want none", l.verdict)
	}
	if l.measure(1, 1, 2*ms); l.verdict != heavyLoad {
		t.Errorf("after 6 visits: got load %d, want heavy", l.verdict)
	}
	// A visit every 60 ms is no sign of anything: the others were mostly idle.
	l = newLoadTest(0)
	for i := range 300 {
		visit := uint64(0)
		if i%6 == 0 {
			visit = 1
		}
		if l.measure(visit, visit, 4*ms); l.verdict != unknownLoad {
			t.Fatalf("after %d visits, 60 ms apart: got load %d, want none", i/6, l.verdict)
		}
	}
}

// TestLoadWithoutVisits checks that a newcomer which makes few visits, and uses less than an
// eighth of the time, is light. A newcomer without any service may only be idle.
func TestLoadWithoutVisits(t *testing.T) {
	for _, tt := range []struct {
		name   string
		served time.Duration // of 10 ms
		want   load
	}{
		{"idle", 0, unknownLoad},
		{"little", ms, lightLoad},
		{"more than an eighth", 1300 * time.Microsecond, unknownLoad},
	} {
		l := newLoadTest(0)
		for range 25 {
			l.measure(0, 0, tt.served)
		}
		if l.verdict != unknownLoad {
			t.Errorf("%s: got load %d within 250 ms, want none yet", tt.name, l.verdict)
		}
		for range 60 {
			l.measure(0, 0, tt.served)
		}
		if l.verdict != tt.want {
			t.Errorf("%s: got load %d, want %d", tt.name, l.verdict, tt.want)
		}
	}
	// One visit of a whole slice in 60 ms is all that a heavy queue gets beside 30 others.
	few := newLoadTest(0)
	for i := range 300 {
		visit := uint64(0)
		if i%6 == 0 {
			visit = 1
		}
		few.measure(visit, visit, time.Duration(visit)*2*ms)
	}
	if few.verdict == lightLoad {
		t.Error("a queue that fills the few visits that it gets is light, want not")
	}
	l := newLoadTest(0)
	for range 25 {
		l.measure(0, 0, ms)
	}
	l.now, l.q.MeasuredAt = l.now+1, l.now+1
	if l.watch(&l.q, l.now, true, false, 0); l.verdict != lightLoad || l.heldUntil != l.now.Add(holdTime) {
		t.Errorf("little, just after 250 ms: got load %d for %v, want light for half a second", l.verdict, l.heldUntil.Sub(l.now))
	}
	l = newLoadTest(0)
	l.windows(10, 20*ms)
	for range 100 {
		l.measure(0, 0, ms)
	}
	if l.verdict != heavyLoad {
		t.Errorf("a heavy queue without visits: got load %d, want heavy as before", l.verdict)
	}
}

// TestLoadOfALightQueueChangesAfterTwoWindows checks that one window of full visits changes
// nothing, and that no number of them does before the verdict has held for half a second.
func TestLoadOfALightQueueChangesAfterTwoWindows(t *testing.T) {
	l := newLoadTest(0)
	l.window(0)
	l.windows(10, 490*ms)
	if l.verdict != lightLoad {
		t.Errorf("490 ms after the verdict: got load %d, want light", l.verdict)
	}
	if l.windows(10, 10*ms); l.verdict != heavyLoad {
		t.Errorf("500 ms after the verdict: got load %d, want heavy", l.verdict)
	}
	l = newLoadTest(0)
	l.windows(0, time.Second)
	for range 50 {
		l.window(10)
		if l.verdict != lightLoad {
			t.Fatal("one full window made the queue heavy")
		}
		l.window(5)
	}
	l.window(10)
	if l.window(7); l.verdict != heavyLoad {
		t.Errorf("after two full windows: got load %d, want heavy", l.verdict)
	}
}

// TestLoadOfAHeavyQueueBecomesUnknownFirst checks that a heavy queue whose visits end early is
// judged again, beside all others, before it is light.
func TestLoadOfAHeavyQueueBecomesUnknownFirst(t *testing.T) {
	l := newLoadTest(0)
	l.window(10)
	l.windows(0, 490*ms)
	if l.verdict != heavyLoad {
		t.Errorf("490 ms after the verdict: got load %d, want heavy", l.verdict)
	}
	if l.window(5); l.verdict != heavyLoad {
		t.Errorf("half of the visits full: got load %d, want heavy", l.verdict)
	}
	if l.window(4); l.verdict != unknownLoad {
		t.Errorf("visits that end early: got load %d, want none", l.verdict)
	}
	if trial, _ := l.updateRetrial(l.now); trial {
		t.Error("it has a trial of its own, want that of the newcomers")
	}
	if l.window(4); l.verdict != lightLoad {
		t.Errorf("in the trial: got load %d, want light", l.verdict)
	}
}

// TestLoadHoldsLongerIfItChangesOften checks that a verdict holds for half a second, twice as
// long each time that it changes soon after the last change, up to about a minute, and for
// half a second again after a quiet time.
func TestLoadHoldsLongerIfItChangesOften(t *testing.T) {
	l := newLoadTest(0)
	l.window(0)
	want := 500 * ms
	for range 8 {
		if got := l.heldUntil.Sub(l.now); got != want {
			t.Fatalf("the verdict holds for %v, want %v", got, want)
		}
		from := l.verdict
		full := uint64(10)
		if from == heavyLoad {
			full = 0
		}
		began := l.now
		for l.verdict == from || l.verdict == unknownLoad {
			l.window(full)
		}
		if took := l.now.Sub(began); took < want || took > want+50*ms {
			t.Fatalf("the load changed after %v, want %v", took, want)
		}
		want = min(2*want, 64*time.Second)
	}
	if l.verdict == heavyLoad {
		t.Fatal("want a light queue at the end")
	}
	l.windows(0, 600*time.Second) // eight times what the verdict holds
	l.windows(10, 20*ms)
	if got := l.heldUntil.Sub(l.now); l.verdict != heavyLoad || got != 500*ms {
		t.Errorf("after a quiet time: got load %d, which holds for %v; want heavy for 500 ms", l.verdict, got)
	}
}

// TestLoadSuspicion checks which visits with a short slice raise the suspicion that a light
// queue has become heavy. A visit that is much longer than the slice ended only when another
// queue had work: it says nothing.
func TestLoadSuspicion(t *testing.T) {
	const slice = 500 * time.Microsecond
	for _, tt := range []struct {
		visit time.Duration
		want  bool
	}{
		{300 * time.Microsecond, false},
		{424 * time.Microsecond, false},
		{425 * time.Microsecond, true},
		{slice, true},
		{1000 * time.Microsecond, true},
		{1001 * time.Microsecond, false},
	} {
		l := newLoadTest(slice)
		l.verdict = lightLoad
		for range 10 {
			l.visitsOf(tt.visit)
		}
		if l.judgedAt != l.now {
			t.Errorf("visits of %v: the queue was judged at %v, want now", tt.visit, l.judgedAt)
		}
		if l.suspected != tt.want {
			t.Errorf("visits of %v: suspected %v, want %v", tt.visit, l.suspected, tt.want)
		}
	}
}

// TestSuspectAtItsLimits checks what one mean visit does to a verdict, with a short slice.
func TestSuspectAtItsLimits(t *testing.T) {
	const slice = 500 * time.Microsecond
	heavy, light := loadState{slice: slice, verdict: heavyLoad, filled: 1, fills: true}, loadState{slice: slice, verdict: lightLoad, filled: 1, fills: true}
	absent := light
	absent.presence = presence{beside: 200 * ms, absent: 100 * ms}
	for _, tt := range []struct {
		name    string
		before  loadState
		mean    time.Duration
		verdict load
		filled  float64
	}{
		{"a heavy queue with visits of 70 % of the slice", heavy, slice * 7 / 10, heavyLoad, 0.75},
		{"a heavy queue with shorter visits", heavy, slice*7/10 - 1, unknownLoad, 0},
		{"a light queue with visits of the slice", light, slice, lightLoad, 1},
		{"a light queue that has no work for half of the time", absent, slice, lightLoad, 0.75},
	} {
		r := tt.before
		if r.suspect(tt.mean, 1); r.verdict != tt.verdict || r.filled != tt.filled {
			t.Errorf("%s: got verdict %d and filled %v, want %d and %v", tt.name, r.verdict, r.filled, tt.verdict, tt.filled)
		}
	}
	if heavy.setVerdict(unknownLoad); heavy.fills {
		t.Error("a queue of another load still counts as one that fills the slice")
	}
}

// TestLoadSuspicionNeedsSeveralWindows checks that a suspicion arises after five windows and
// ends after four.
func TestLoadSuspicionNeedsSeveralWindows(t *testing.T) {
	const slice = 500 * time.Microsecond
	l := newLoadTest(slice)
	l.verdict = lightLoad
	count := func(visit time.Duration, want bool) (n int) {
		for ; l.suspected != want && n < 50; n++ {
			l.visitsOf(visit)
		}
		return n
	}
	if n := count(slice, true); n != 5 {
		t.Errorf("suspected after %d windows, want 5", n)
	}
	if n := count(slice/2, false); n != 4 {
		t.Errorf("suspected for %d windows, want 4", n)
	}
	if l.verdict != lightLoad {
		t.Errorf("got load %d, want light: a suspicion is no verdict", l.verdict)
	}
}

// TestLoadTrialOfASuspectedQueue checks that a suspicion leads to a trial of 300 ms with the
// device's default slice: soon, if the last verdict was long ago, and again later if the
// trial gives no verdict.
func TestLoadTrialOfASuspectedQueue(t *testing.T) {
	const slice = 500 * time.Microsecond
	l := newLoadTest(0)
	l.window(0)
	verdict := l.now
	l.q.Slice = slice
	for range 12 {
		l.visitsOf(slice)
	}
	if !l.suspected {
		t.Fatal("not suspected")
	}
	begin := verdict.Add(500 * ms)
	for _, tt := range []struct {
		at     sched.Time
		want   bool
		change sched.Time
	}{
		{begin - 1, false, begin},
		{begin, true, begin.Add(300 * ms)},
		{begin.Add(300*ms) - 1, true, begin.Add(300 * ms)},
		{begin.Add(300 * ms), false, begin.Add(1300 * ms)}, // twice as long until the next
		{begin.Add(1300 * ms), true, begin.Add(1600 * ms)},
	} {
		if got, change := l.updateRetrial(tt.at); got != tt.want || change != tt.change {
			t.Errorf("%v after the verdict: in a trial %v until %v, want %v until %v", tt.at.Sub(verdict), got, change.Sub(verdict), tt.want, tt.change.Sub(verdict))
		}
	}
	// In the trial two windows of full visits are needed, as always; one of short ones
	// ends the suspicion.
	l.now, l.q.Slice = begin.Add(1310*ms), 0
	l.measure(0, 0, 0)
	l.measure(0, 0, 0)
	heavy := *l
	if l.window(0); l.suspected || l.verdict != lightLoad || l.heldUntil != l.now.Add(2*time.Second) {
		t.Errorf("after short visits: suspected %v, load %d for %v, want light for 2s", l.suspected, l.verdict, l.heldUntil.Sub(l.now))
	}
	if heavy.window(10); heavy.verdict != lightLoad || !heavy.suspected {
		t.Errorf("after one window of full visits: got load %d, want light and suspected", heavy.verdict)
	}
	if heavy.window(10); heavy.verdict != heavyLoad || heavy.suspected {
		t.Errorf("after two windows of full visits: got load %d, suspected %v, want heavy", heavy.verdict, heavy.suspected)
	}
	if trial, change := heavy.updateRetrial(heavy.now); trial || change != 0 {
		t.Errorf("a heavy queue: in a trial %v until %v, want none", trial, change)
	}
}

// TestLoadTrialClearsASuspicion checks which part of the visits may be full in a trial for a queue to
// be no longer suspected, the same as for a newcomer to be light.
func TestLoadTrialClearsASuspicion(t *testing.T) {
	for full, want := range map[uint64]bool{0: false, 4: false, 5: true, 6: true} {
		l := newLoadTest(0)
		l.verdict, l.suspected = lightLoad, true
		if l.window(full); l.suspected != want || l.verdict != lightLoad {
			t.Errorf("%d of 10 visits full: suspected %v, load %d; want %v, light", full, l.suspected, l.verdict, want)
		}
	}
}

// TestLoadSuspicionShortensALongVerdict checks that a verdict which holds for long, because
// the load changed often, does not delay the trial of a queue that is newly suspected.
func TestLoadSuspicionShortensALongVerdict(t *testing.T) {
	const slice = 500 * time.Microsecond
	l := newLoadTest(slice)
	l.verdict, l.hold, l.heldAt, l.heldUntil = lightLoad, 8*time.Second, l.now, l.now.Add(8*time.Second)
	from := l.now
	for range 20 {
		l.visitsOf(slice)
	}
	if trial, change := l.updateRetrial(l.now); trial || change != from.Add(500*ms) {
		t.Errorf("in a trial %v until %v after the verdict, want one to begin after 500 ms", trial, change.Sub(from))
	}
	// The verdict of a queue that was judged light long ago is tried at once.
	l = newLoadTest(slice)
	l.verdict, l.hold, l.heldAt, l.heldUntil = lightLoad, 64*time.Second, l.now, l.now.Add(64*time.Second)
	for l.now < l.heldAt.Add(3*time.Second) {
		l.visitsOf(slice / 2)
	}
	for !l.suspected {
		l.visitsOf(slice)
	}
	if trial, change := l.updateRetrial(l.now); !trial || change != l.now.Add(300*ms) {
		t.Errorf("in a trial %v until %v from now, want 300 ms from now", trial, change.Sub(l.now))
	}
}

// TestLoadOfAHeavyQueueWithAShortSlice checks that visits much shorter than a short slice show
// that a queue is no longer heavy, and that a newcomer is light. Visits that are a little shorter show
// it only in several windows.
func TestLoadOfAHeavyQueueWithAShortSlice(t *testing.T) {
	const slice = 500 * time.Microsecond
	l := newLoadTest(slice)
	l.setVerdict(heavyLoad)
	l.heldUntil = l.now.Add(100 * ms)
	for l.now < l.heldUntil.Add(-10*ms) {
		if l.visitsOf(slice / 2); l.verdict != heavyLoad {
			t.Fatalf("got load %d while the verdict holds, want heavy", l.verdict)
		}
	}
	if l.visitsOf(slice / 2); l.verdict != unknownLoad {
		t.Errorf("short visits: got load %d, want none", l.verdict)
	}
	if l.visitsOf(slice); l.verdict != unknownLoad {
		t.Errorf("unknown, visits that fill a short slice: got load %d, want none", l.verdict)
	}
	if l.visitsOf(slice / 2); l.verdict != lightLoad || l.heldUntil <= l.now {
		t.Errorf("unknown, short visits: got load %d until %v from now, want light", l.verdict, l.heldUntil.Sub(l.now))
	}
	l = newLoadTest(slice)
	l.setVerdict(heavyLoad)
	if l.visitsOf(slice*7/10 - 1); l.verdict != unknownLoad {
		t.Errorf("one window of visits of less than 70 %% of the slice: got load %d, want none", l.verdict)
	}
	l = newLoadTest(slice)
	l.setVerdict(heavyLoad)
	for i := range 5 {
		l.visitsOf(slice * 8 / 10)
		if want := []load{heavyLoad, heavyLoad, heavyLoad, heavyLoad, unknownLoad}[i]; l.verdict != want {
			t.Errorf("window %d of visits of 80 %% of the slice: got load %d, want %d", i+1, l.verdict, want)
		}
	}
	for range 20 {
		if l.visitsOf(slice * 3); l.verdict == lightLoad {
			t.Fatal("visits that are longer than the slice make a queue light, want not") // no other queue had work
		}
	}
	l.setVerdict(heavyLoad)
	for range 20 {
		if l.visitsOf(slice * 3); l.verdict != heavyLoad {
			t.Fatalf("visits that are longer than the slice: got load %d, want heavy as before", l.verdict)
		}
	}
}

// TestLoadCountsOnlyVisitsBesideOthers checks that visits which a queue made alone, or with
// another slice, or before it was stopped for a moment, do not count in the wrong window.
func TestLoadCountsOnlyVisitsBesideOthers(t *testing.T) {
	l := newLoadTest(0)
	l.beside = false
	l.windows(10, 100*ms)
	l.beside = true
	l.measure(0, 0, 0)
	if l.measure(0, 0, 0); l.verdict != unknownLoad {
		t.Errorf("visits alone: got load %d, want none", l.verdict)
	}
	l.measure(5, 5, 10*ms)
	l.q.Slice = 500 * time.Microsecond
	l.measure(3, 3, 6*ms)
	l.q.Slice = 0
	if l.measure(3, 3, 6*ms); l.verdict != unknownLoad {
		t.Errorf("few visits with each slice: got load %d, want none", l.verdict)
	}
	l.measure(0, 0, 0)
	l.measure(3, 3, 6*ms)
	l.q.State = sched.Stopped
	for range 10 {
		l.measure(0, 0, 0)
	}
	l.q.State = sched.Running
	if l.measure(3, 3, 6*ms); l.verdict != heavyLoad {
		t.Errorf("visits before and after a short stop: got load %d, want heavy", l.verdict)
	}
	l = newLoadTest(0)
	l.q.Visits.Known = false
	if l.windows(10, 100*ms); l.verdict != unknownLoad {
		t.Errorf("without a trace: got load %d, want none", l.verdict)
	}
}

// TestLostMeasurementIsNoSign checks that the device time which is estimated while the
// measurement is lost does not count for the visits before and after it.
func TestLostMeasurementIsNoSign(t *testing.T) {
	l := newLoadTest(500 * time.Microsecond)
	l.setVerdict(heavyLoad)
	l.measure(3, 0, 1500*time.Microsecond)
	l.q.Measured, l.q.Visits.Known = false, false
	l.now = l.now.Add(2 * time.Second)
	l.q.Served += time.Second // half of the time, by estimate
	l.watch(&l.q, l.now, true, false, 0)
	l.q.Measured, l.q.Visits.Known = true, true
	if l.visitsOf(500 * time.Microsecond); l.verdict != heavyLoad {
		t.Errorf("got load %d, want heavy as before", l.verdict)
	}
	l = newLoadTest(0)
	for range 20 {
		l.measureBeside(1, 1, 2*ms, 8*ms)
	}
	l.q.Visits.Known = false
	l.now = l.now.Add(2 * time.Second)
	l.watch(&l.q, l.now, true, false, l.alone)
	l.q.Visits.Known = true
	l.measureBeside(1, 1, 2*ms, 8*ms)
	if l.measureBeside(1, 1, 2*ms, 8*ms); l.presence.filled() != 0 {
		t.Errorf("a queue that rests counts as present for %.2f after the measurement was lost, want 0", l.presence.filled())
	}
}

// TestLoadIsJudgedByOneSlice checks that visits with another slice do not count: visits of the
// default slice are long for a short one, and visits of a short slice are not full.
func TestLoadIsJudgedByOneSlice(t *testing.T) {
	const short = 500 * time.Microsecond
	l := newLoadTest(0)
	l.setVerdict(heavyLoad)
	l.measure(5, 5, 10*ms)
	l.q.Slice = short
	l.measure(0, 0, 0) // the first measurement with this slice
	if l.visitsOf(short); l.verdict != heavyLoad {
		t.Errorf("a heavy queue that fills the short slice too: got load %d, want heavy", l.verdict)
	}
	l = newLoadTest(short)
	l.measure(5, 0, 5*short)
	l.q.Slice = 0
	l.measure(0, 0, 0)
	if l.measure(6, 6, 12*ms); l.verdict != heavyLoad {
		t.Errorf("a newcomer that fills the default slice after a short one: got load %d, want heavy", l.verdict)
	}
}

// TestLoadVerdictHoldsLongerSoonAfterAnother checks for how long a verdict holds: twice as long
// as the last if that is at most eight times its own time ago, and otherwise half a second.
func TestLoadVerdictHoldsLongerSoonAfterAnother(t *testing.T) {
	at := sched.Time(time.Hour)
	for after, want := range map[time.Duration]time.Duration{ms: 2 * time.Second, 8 * time.Second: 2 * time.Second, 8*time.Second + 1: 500 * ms, time.Minute: 500 * ms} {
		r := loadState{heldAt: at, hold: time.Second}
		now := at.Add(after)
		if r.holdVerdict(now); r.hold != want || r.heldAt != now || r.heldUntil != now.Add(want) {
			t.Errorf("%v after a verdict that held for 1 s: the next holds for %v, want %v", after, r.hold, want)
		}
	}
	r := loadState{heldAt: at, hold: 40 * time.Second}
	if r.holdVerdict(at.Add(time.Second)); r.hold != 64*time.Second {
		t.Errorf("the longest verdict holds for %v, want 64 s", r.hold)
	}
}
