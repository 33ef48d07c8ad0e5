package policy

import (
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

const (
	ms   = time.Millisecond
	tick = 100 * time.Microsecond // of the lab's clock; all work is a multiple of it

	canAll  = sched.CanInterrupt | sched.CanSlice | sched.CanBound
	canStop = sched.CanInterrupt
)

// lab is a node on a virtual clock: the real scheduler over devices that do at
// once what they are told.
type lab struct {
	t       testing.TB
	sched   *sched.Scheduler
	now     sched.Time
	wake    sched.Time
	jobs    []*job
	devices map[sched.DeviceID]sched.Device
	events  []sched.Event
	actions []sched.Action // every one since the beginning
	steps   int
	tell    time.Duration // how often devices tell what queues have used; zero is never
	delay   time.Duration // how long an action takes
	pending []order       // actions under way
	made    []sched.Policy
}

// job is a queue, the program behind it and what the device makes of it.
type job struct {
	sched.Queue
	load   func(*job, sched.Time) // submits what is due
	closed bool
	blind  bool // nobody counts its commands

	todo     []command
	served   time.Duration
	finished []command
	running  bool
	slice    time.Duration
	said     sched.Counters
	loaded   sched.Time // when load was last called
}

type order struct {
	sched.Action
	done sched.Time
}

type command struct {
	work          time.Duration
	arrived, done sched.Time
}

var (
	plainGPU  = sched.Device{ID: "plain", StopTime: 500 * time.Microsecond}
	slicedGPU = sched.Device{ID: "sliced", Slice: 2 * ms, MinSharedSlice: ms, StopTime: 500 * time.Microsecond}
)

// newLab has neither a floor nor a stall limit, so that the policy is seen as it is.
func newLab(t testing.TB, name string, params map[string]string, devices ...sched.Device) *lab {
	t.Helper()
	return newLabWith(t, sched.Config{Floor: -1, StallLimit: time.Hour}, name, params, devices...)
}

func newLabWith(t testing.TB, cfg sched.Config, name string, params map[string]string, devices ...sched.Device) *lab {
	t.Helper()
	choice, err := Choose(name, params)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, wake: sched.Never, devices: map[sched.DeviceID]sched.Device{}}
	build := choice.Make
	choice.Make = func() sched.Policy {
		p := build()
		l.made = append(l.made, p)
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

// open adds a job, of a process of its own and on the only device unless q says
// otherwise, that can be stopped and sliced.
func (l *lab) open(q sched.Queue, load func(*job, sched.Time)) *job {
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
		l.say(j)
	}
	return j
}

func (l *lab) close(j *job) {
	j.closed = true
	l.events = append(l.events, sched.Event{Kind: sched.QueueClosed, Queue: j.ID})
}

func (l *lab) hint(j *job, change func(*sched.Attr)) {
	change(&j.Attr)
	l.events = append(l.events, sched.Event{Kind: sched.AttrsChanged, Queue: j.ID, Attr: j.Attr})
}

// say reports how far j has come.
func (l *lab) say(j *job) {
	if j.blind {
		return
	}
	done := uint64(len(j.finished))
	j.said = sched.Counters{Submitted: done + uint64(len(j.todo)), Launched: done + uint64(len(j.todo)), Completed: done}
	l.events = append(l.events, sched.Event{Kind: sched.Progressed, Queue: j.ID, Counters: j.said})
}

// run lets d go by. Each, if given, is called after every tick.
func (l *lab) run(d time.Duration, each ...func()) {
	for end := l.now.Add(d); l.now < end; {
		l.arrive()
		l.settle()
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

// arrive lets the programs submit, and reports what has changed.
func (l *lab) arrive() {
	for _, j := range l.jobs {
		if j.closed || j.load == nil {
			continue
		}
		if j.loaded != l.now {
			j.loaded = l.now
			j.load(j, l.now)
		}
		done := uint64(len(j.finished))
		if j.said.Completed != done || j.said.Submitted != done+uint64(len(j.todo)) {
			l.say(j)
		}
		if l.tell > 0 && l.now%sched.Time(l.tell) == 0 {
			l.events = append(l.events, sched.Event{Kind: sched.DeviceTimeMeasured, Queue: j.ID, Duration: j.served})
		}
	}
}

// step asks the scheduler if there is reason to, until it has nothing to do.
func (l *lab) step() {
	for round := 0; len(l.events) > 0 || l.wake <= l.now; round++ {
		if round == 50 {
			l.t.Fatalf("at %v: no end of actions: %v", time.Duration(l.now), l.actions[len(l.actions)-5:])
		}
		l.steps++
		var actions []sched.Action
		actions, l.wake = l.sched.Step(l.now, l.events)
		if l.wake <= l.now {
			l.t.Fatalf("woken at %v for %v", time.Duration(l.now), time.Duration(l.wake))
		}
		l.events = l.events[:0]
		for _, a := range actions {
			l.pending = append(l.pending, order{a, l.now.Add(l.delay)})
		}
		l.actions = append(l.actions, actions...)
		l.settle()
	}
}

// settle carries out the actions whose time has come.
func (l *lab) settle() {
	for len(l.pending) > 0 && l.pending[0].done <= l.now {
		a := l.pending[0].Action
		l.pending = l.pending[1:]
		l.obey(a)
		l.events = append(l.events, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
	}
}

func (l *lab) obey(a sched.Action) {
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

// serve spends one tick of a device: in equal parts, or by slices. A queue with
// the least slice gets what others leave.
func (l *lab) serve(id sched.DeviceID) {
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
	total := time.Duration(0)
	for _, j := range l.jobs {
		total += part(j)
	}
	for _, j := range l.jobs {
		if p := part(j); p > 0 {
			j.use(tick*p/total, l.now)
		}
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

// late is how much too late its worst command was.
func (j *job) late() time.Duration {
	worst := time.Duration(-1 << 62)
	for _, c := range j.finished {
		worst = max(worst, c.done.Sub(c.arrived)-j.Attr.Deadline)
	}
	return worst
}

// Programs.

// saturating always has another command ready.
func saturating(j *job, now sched.Time) {
	for len(j.todo) < 2 {
		j.submit(now, ms)
	}
}

// asleep has nothing to do from one time to another, and always at other times.
func asleep(from, to time.Duration) func(*job, sched.Time) {
	return func(j *job, now sched.Time) {
		if now < sched.Time(from) || now >= sched.Time(to) {
			saturating(j, now)
		}
	}
}

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

// idle submits nothing; tests do it for it.
func idle(*job, sched.Time) {}

// near reports whether got is within tolerance of want.
func near(got, want, tolerance time.Duration) bool {
	return got >= want-tolerance && got <= want+tolerance
}

func weight(w uint32) sched.Queue { return sched.Queue{Attr: sched.Attr{Weight: w}} }
