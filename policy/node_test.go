package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

const (
	us   = time.Microsecond
	ms   = time.Millisecond
	tick = 100 * time.Microsecond // of testNode's clock; all work is a multiple of it

	canAll  = sched.CanInterrupt | sched.CanSlice | sched.CanBound
	canStop = sched.CanInterrupt
)

// testNode is a node on a virtual clock: the real scheduler with devices that carry
// out actions after actionTime.
type testNode struct {
	t            testing.TB
	sched        *sched.Scheduler
	now          sched.Time
	wake         sched.Time
	jobs         []*job
	devices      map[sched.DeviceID]sched.Device
	events       []sched.Event
	actions      []sched.Action // all since the start
	steps        int
	measureEvery time.Duration // how often device time is reported; zero is never
	visits       bool          // and visits, on a device with slices
	actionTime   time.Duration // how long an action takes
	pending      []pendingAction
	policies     []sched.Policy
}

// job is a queue with its process and its state on the device.
type job struct {
	sched.Queue
	load       func(*job, sched.Time) // submits the commands that are due
	closed     bool
	noCounters bool // its counters are not reported

	todo     []command
	served   time.Duration
	finished []command
	running  bool
	slice    time.Duration
	reported sched.Counters
	loaded   sched.Time // when load was last called

	burst   time.Duration // how long it stays on the device beside other queues if its slice is longer; zero: it fills any slice
	visited sched.Visits
	visit   time.Duration // length of the present visit so far
	usedAt  sched.Time    // when it was last served
}

type pendingAction struct {
	sched.Action
	done sched.Time
}

type command struct {
	work          time.Duration
	arrived, done sched.Time
}

var (
	plainGPU  = sched.Device{ID: "plain", StopTime: 500 * time.Microsecond}
	slicedGPU = sched.Device{ID: "sliced", Slice: 2 * ms, MinSharedSlice: ms, SwitchTime: 165 * time.Microsecond, StopTime: 500 * time.Microsecond}
)

// newNode returns a node without a floor and with a very long stall limit, so that
// only the policy decides.
func newNode(t testing.TB, name string, params map[string]string, devices ...sched.Device) *testNode {
	t.Helper()
	return newNodeWith(t, sched.Config{Floor: -1, StallLimit: time.Hour}, name, params, devices...)
}

func newNodeWith(t testing.TB, cfg sched.Config, name string, params map[string]string, devices ...sched.Device) *testNode {
	t.Helper()
	choice, err := Choose(name, params)
	if err != nil {
		t.Fatal(err)
	}
	return newNodeOf(t, cfg, choice, devices...)
}

func newNodeOf(t testing.TB, cfg sched.Config, choice sched.PolicyChoice, devices ...sched.Device) *testNode {
	l := &testNode{t: t, wake: sched.Never, devices: map[sched.DeviceID]sched.Device{}}
	build := choice.Make
	choice.Make = func() sched.Policy {
		p := build()
		l.policies = append(l.policies, p)
		return p
	}
	l.sched = sched.New(cfg, choice)
	if len(devices) == 0 {
		devices = []sched.Device{plainGPU}
	}
	for _, d := range devices {
		l.devices[d.ID] = d
		l.events = append(l.events, sched.Event{Kind: sched.DeviceOpened, Device: d.ID, About: d})
	}
	l.step()
	return l
}

// open adds a job that can be stopped and sliced. Unless q says otherwise it is
// the only queue of its process, on the only device.
func (l *testNode) open(q sched.Queue, load func(*job, sched.Time)) *job {
	if q.ID == 0 {
		q.ID = sched.QueueID(len(l.jobs) + 1)
	}
	if q.Process == 0 {
		q.Process = sched.ProcessID(q.ID)
	}
	if q.Device == "" {
		for id := range l.devices {
			q.Device = id
		}
	}
	if q.Can == 0 {
		q.Can = canAll
	}
	j := &job{Queue: q, load: load, running: true, loaded: -1}
	l.jobs = append(l.jobs, j)
	l.events = append(l.events, sched.Event{
		Kind: sched.QueueOpened, Queue: q.ID, Process: q.Process, Device: q.Device, Can: q.Can, Attr: q.Attr,
	})
	if load != nil {
		l.reportProgress(j)
	}
	return j
}

func (l *testNode) close(j *job) {
	j.closed = true
	l.events = append(l.events, sched.Event{Kind: sched.QueueClosed, Queue: j.ID})
}

func (l *testNode) setAttr(j *job, change func(*sched.Attr)) {
	change(&j.Attr)
	l.events = append(l.events, sched.Event{Kind: sched.AttrsChanged, Queue: j.ID, Attr: j.Attr})
}

// reportProgress reports the counters of j.
func (l *testNode) reportProgress(j *job) {
	if j.noCounters {
		return
	}
	done := uint64(len(j.finished))
	j.reported = sched.Counters{Submitted: done + uint64(len(j.todo)), Launched: done + uint64(len(j.todo)), Completed: done}
	l.events = append(l.events, sched.Event{Kind: sched.Progressed, Queue: j.ID, Counters: j.reported})
}

// run advances the clock by d. Each, if given, is called after every tick.
func (l *testNode) run(d time.Duration, each ...func()) {
	for end := l.now.Add(d); l.now < end; {
		l.arrive()
		l.finishActions()
		l.step()
		l.now = l.now.Add(tick)
		for id := range l.devices {
			l.serve(id)
		}
		for _, f := range each {
			f()
		}
	}
	l.arrive()
	l.step()
}

// arrive lets the jobs submit commands, and reports which became ready or idle. As with
// the shim, other progress wakes nothing and is read at the next step.
func (l *testNode) arrive() {
	for _, j := range l.jobs {
		if j.closed || j.load == nil {
			continue
		}
		if j.loaded != l.now {
			j.loaded = l.now
			j.load(j, l.now)
		}
		if was := j.reported.Submitted > j.reported.Completed; was != (len(j.todo) > 0) {
			l.reportProgress(j)
		}
		if l.measureEvery > 0 && l.now%sched.Time(l.measureEvery) == 0 {
			j.visited.Known = l.visits
			l.events = append(l.events, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: j.ID, Duration: j.served, Visits: j.visited})
		}
	}
}

// step calls the scheduler while there are events or it is time to.
func (l *testNode) step() {
	for round := 0; len(l.events) > 0 || l.wake <= l.now; round++ {
		if round == 50 {
			l.t.Fatalf("at %v: actions do not end: %v", time.Duration(l.now), l.actions[len(l.actions)-5:])
		}
		l.steps++
		for _, j := range l.jobs {
			if done := uint64(len(j.finished)); j.load != nil && !j.closed && (j.reported.Completed != done || j.reported.Submitted != done+uint64(len(j.todo))) {
				l.reportProgress(j)
			}
		}
		var actions []sched.Action
		actions, l.wake = l.sched.Step(l.now, l.events)
		if l.wake <= l.now {
			l.t.Fatalf("at %v: got wake %v, want a later time", time.Duration(l.now), time.Duration(l.wake))
		}
		l.events = l.events[:0]
		for _, a := range actions {
			l.pending = append(l.pending, pendingAction{a, l.now.Add(l.actionTime)})
		}
		l.actions = append(l.actions, actions...)
		l.finishActions()
	}
}

// finishActions carries out the actions that are due.
func (l *testNode) finishActions() {
	for len(l.pending) > 0 && l.pending[0].done <= l.now {
		a := l.pending[0].Action
		l.pending = l.pending[1:]
		l.carryOut(a)
		l.events = append(l.events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
	}
}

func (l *testNode) carryOut(a sched.Action) {
	for _, j := range l.jobs {
		if j.ID != a.Queue {
			continue
		}
		switch a.Verb {
		case sched.Stop:
			j.running = false
		case sched.Start:
			j.running = true
		case sched.SetSlice:
			j.slice = a.Slice
		}
	}
}

// serve divides one tick of a device among the running jobs: in equal parts, or by
// slices. A queue with the minimum slice gets what the others leave.
func (l *testNode) serve(id sched.DeviceID) {
	dev := l.devices[id]
	part := func(j *job) time.Duration {
		switch {
		case j.closed || !j.running || j.Device != id || len(j.todo) == 0:
			return 0
		case dev.Slice == 0:
			return 1
		case j.slice == 0:
			return dev.Slice
		}
		return j.slice
	}
	total, sharing := time.Duration(0), 0
	for _, j := range l.jobs {
		total += part(j)
		if part(j) > sched.MinSlice {
			sharing++
		}
	}
	for _, j := range l.jobs {
		if p := part(j); p > 0 {
			j.use(tick*p/total, l.now)
			j.countVisits(tick*p/total, p, dev.Slice, sharing > 1, l.now)
		}
	}
}

// countVisits counts the visits of j, which was served for d. Beside other queues a visit
// ends with its burst or its slice. A queue that is alone stays.
func (j *job) countVisits(d, slice, vendor time.Duration, beside bool, now sched.Time) {
	if now.Sub(j.usedAt) >= sched.MinAbsence {
		j.visited.Arrived = now.Add(-tick)
	}
	j.usedAt = now
	length := slice
	if j.burst > 0 {
		length = min(j.burst, slice)
	}
	if j.visit += d; !beside || slice == sched.MinSlice {
		return
	}
	for ; j.visit >= length; j.visit -= length {
		j.visited.Count++
		j.visited.End(length, vendor, false)
	}
}

func (j *job) use(d time.Duration, now sched.Time) {
	for d > 0 && len(j.todo) > 0 {
		c := &j.todo[0]
		spent := min(d, c.work)
		c.work -= spent
		j.served += spent
		d -= spent
		if c.work == 0 {
			c.done = now
			j.finished = append(j.finished, *c)
			j.todo = j.todo[1:]
		}
	}
}

func (j *job) submit(now sched.Time, work time.Duration) {
	j.todo = append(j.todo, command{work: work, arrived: now})
}

// worstLateness returns how much the latest command missed the deadline by.
func (j *job) worstLateness() time.Duration {
	worst := time.Duration(-1 << 62)
	for _, c := range j.finished {
		worst = max(worst, c.done.Sub(c.arrived)-j.Attr.Deadline)
	}
	return worst
}

// saturating always has a command ready.
func saturating(j *job, now sched.Time) {
	for len(j.todo) < 2 {
		j.submit(now, ms)
	}
}

// idleFrom is idle from one time to another, and saturating at other times.
func idleFrom(from, to time.Duration) func(*job, sched.Time) {
	return func(j *job, now sched.Time) {
		if now < sched.Time(from) || now >= sched.Time(to) {
			saturating(j, now)
		}
	}
}

// periodic submits a command every period.
func periodic(period, work time.Duration) func(*job, sched.Time) {
	next := sched.Time(-1)
	return func(j *job, now sched.Time) {
		if next < 0 {
			next = now
		}
		for ; now >= next; next = next.Add(period) {
			j.submit(next, work)
		}
	}
}

// idle submits nothing; tests may submit for it.
func idle(*job, sched.Time) {}

// near reports whether got is within tolerance of want.
func near(got, want, tolerance time.Duration) bool {
	return got >= want-tolerance && got <= want+tolerance
}

func weight(w uint32) sched.Queue { return sched.Queue{Attr: sched.Attr{Weight: w}} }
