package sched_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// FuzzStep turns bytes into a run of events, many of them wrong, under policies
// that often make mistakes, and checks after every Step what the package promises.
func FuzzStep(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(tapeOf(seed))
	}
	f.Fuzz(runTwice)
}

// TestRandomRuns does the same with some thousands of seeds.
func TestRandomRuns(t *testing.T) {
	first, n := rand.Uint64()>>16, 3000
	if testing.Short() {
		n = 300
	}
	for seed := first; seed < first+uint64(n) && !t.Failed(); seed++ {
		t.Run(fmt.Sprint("seed-", seed), func(t *testing.T) { runTwice(t, tapeOf(seed)) })
	}
}

func tapeOf(seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, 100+r.IntN(1500))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// runTwice makes one run twice: the same events give the same actions.
func runTwice(t *testing.T, bytes []byte) {
	first := newRun(t, bytes)
	first.run()
	if second := newRun(t, bytes); !t.Failed() {
		second.run()
		same := func(a, b entry) bool { return a.wake == b.wake && slices.Equal(a.actions, b.actions) }
		if !slices.EqualFunc(first.log, second.log, same) {
			t.Errorf("the same events gave different actions:\n%s\nand:\n%s", first.log, second.log)
		}
	}
}

// runLog records a run, to be printed when a check fails.
type runLog []entry

type entry struct {
	at, wake sched.Time
	events   []sched.Event
	actions  []sched.Action
}

func (l runLog) String() string {
	var b strings.Builder
	for _, e := range l {
		for _, ev := range e.events {
			fmt.Fprintf(&b, "  %v queue=%d device=%s", ev.Kind, ev.Queue, ev.Device)
			switch ev.Kind {
			case sched.QueueOpened, sched.AttrsChanged:
				fmt.Fprintf(&b, " can=%v %+v", ev.Can, ev.Attr)
			case sched.Progressed:
				fmt.Fprintf(&b, " %+v", ev.Counters)
			case sched.ActionDone:
				fmt.Fprintf(&b, " #%d %v", ev.Action, ev.Outcome)
			case sched.DeviceOpened:
				fmt.Fprintf(&b, " %+v", ev.About)
			case sched.PolicyChosen:
				fmt.Fprintf(&b, " %s all-devices=%v", ev.Choice.Name, ev.Choice.AllDevices)
			}
			fmt.Fprintln(&b)
		}
		fmt.Fprintf(&b, "%v: %v wake %v\n", time.Duration(e.at), e.actions, time.Duration(e.wake))
	}
	return b.String()
}

// randomRun is a scheduler and an independent model of its queues.
type randomRun struct {
	t       *testing.T
	tape    []byte
	s       *sched.Scheduler
	now     sched.Time // never goes back, even if Step gets an earlier time
	devices map[sched.DeviceID]*modelDevice
	queues  map[sched.QueueID]*modelQueue
	plans   map[sched.DeviceID]*recorder // the policy that planned last
	events  []sched.Event
	ending  bool // ShutdownStarted was sent
	calm    bool // policies repeat their last plan
	noFloor bool
	buf     []sched.Queue
	log     runLog
}

type modelDevice struct {
	minShared time.Duration
	excused   bool // minShared was changed while queues ran
}

// modelQueue is what the actions and outcomes say about a queue.
type modelQueue struct {
	device  sched.DeviceID
	can     sched.Ability
	paused  bool
	stopped sched.Level     // zero if it is not stopped
	again   bool            // its stop had no effect: it is started, to be stopped in another way
	slices  []time.Duration // one of these is in force
	bounds  []uint32        // one of these is in force
	pending sched.Action    // ID 0 if none is pending
}

// recorder is a policy that records its last plan. It asks inner for plans, or
// makes random ones from the tape if inner is nil.
type recorder struct {
	*randomRun
	name  string
	inner sched.Policy
	plan  sched.Plan
}

var fuzzDevices = []sched.DeviceID{"a", "b", "c"}

func newRun(t *testing.T, bytes []byte) *randomRun {
	x := &randomRun{
		t: t, tape: bytes, devices: map[sched.DeviceID]*modelDevice{}, queues: map[sched.QueueID]*modelQueue{},
		plans: map[sched.DeviceID]*recorder{},
	}
	x.noFloor = x.byte()%2 == 0
	cfg := sched.Config{StallLimit: time.Duration(1+x.byte()) * 10 * time.Millisecond}
	if x.noFloor {
		cfg.Floor = -1
	}
	x.s = sched.New(cfg, x.choice())
	return x
}

func (x *randomRun) byte() (b byte) {
	if len(x.tape) > 0 {
		b, x.tape = x.tape[0], x.tape[1:]
	}
	return b
}

func (x *randomRun) number(below int) int { return int(x.byte()) % below }

func (x *randomRun) fail(format string, a ...any) {
	x.t.Helper()
	x.t.Fatalf("at %v: %s\n%s", time.Duration(x.now), fmt.Sprintf(format, a...), x.log)
}

func (x *randomRun) choice() sched.PolicyChoice {
	name := []string{"script", "script", "script", "giveway", "native", "slo"}[x.number(6)]
	return sched.PolicyChoice{Name: name, AllDevices: name == "script" && x.number(3) == 0, Make: func() sched.Policy {
		r := &recorder{randomRun: x, name: name}
		if c, err := policy.Choose(name, nil); err == nil {
			r.inner = c.Make()
		}
		return r
	}}
}

// Plan implements sched.Policy.
func (r *recorder) Plan(v *sched.View) sched.Plan {
	if !slices.IsSortedFunc(v.Queues, func(a, b sched.Queue) int { return int(a.ID) - int(b.ID) }) {
		r.fail("the view is not in order")
	}
	for i := range v.Devices {
		r.plans[v.Devices[i].ID] = r
	}
	switch {
	case r.inner != nil:
		r.plan = r.inner.Plan(v)
	case r.calm:
		r.plan.Wake = 0
		r.plan.Grants = slices.DeleteFunc(r.plan.Grants, func(g sched.Grant) bool {
			return !slices.ContainsFunc(v.Queues, func(q sched.Queue) bool { return q.ID == g.Queue })
		})
	case r.byte()%2 == 0:
		r.plan = r.anyPlan(v)
	}
	return r.plan
}

// Observe implements sched.Observer.
func (r *recorder) Observe(now sched.Time, ev *sched.Event) {
	if o, ok := r.inner.(sched.Observer); ok {
		o.Observe(now, ev)
	}
}

func (x *randomRun) anyPlan(v *sched.View) (p sched.Plan) {
	p.Invalid = x.number(32) == 31
	p.Wake = []sched.Time{0, -5, 1, v.Now, v.Now + 1000, v.Now.Add(time.Second), sched.Never}[x.number(7)]
	short := false
	for i := range v.Queues {
		g := sched.Grant{Queue: v.Queues[i].ID}
		how := x.byte()
		g.Slice = []time.Duration{0, 0, 300_000, math.MaxInt64, -1, 199_999, sched.MinSlice, sched.MinSlice}[how>>1%8]
		if g.Slice == sched.MinSlice && short && how>>6 != 3 {
			g.Slice = 0 // two are a mistake: rare, so that other plans are tested too
		}
		short = short || g.Slice == sched.MinSlice
		g.Bound = uint32(how >> 4 % 4)
		if how%2 == 0 {
			p.Grants = append(p.Grants, g)
		}
		if how%16 == 2 {
			p.Grants = append(p.Grants, sched.Grant{Queue: g.Queue, Slice: sched.MinSlice})
		}
	}
	switch x.number(64) {
	case 1:
		p.Grants = append(p.Grants, sched.Grant{Queue: 99})
	case 2:
		slices.Reverse(p.Grants)
	}
	return p
}

// run sends events until the tape ends. Then all actions succeed, and the plan
// must be in force. Then the scheduler shuts down, and must undo all changes.
func (x *randomRun) run() {
	for len(x.tape) > 0 {
		for range x.number(4) {
			x.randomEvent()
		}
		told := x.now.Add([]time.Duration{
			0, 1, 20_000, time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond, time.Second, -time.Second,
		}[x.number(8)])
		x.step(told)
	}
	x.calm = true
	x.settle()
	x.checkPlanInForce()
	before := x.s.Queues(nil)
	x.settle()
	x.checkFloor(before)
	x.tell(sched.Event{Kind: sched.ShutdownStarted, Device: fuzzDevices[len(x.queues)%3]})
	x.settle()
	if !x.s.Settled() {
		x.fail("not settled")
	}
	for id, q := range x.queues {
		if q.stopped != 0 || !slices.Equal(q.slices, []time.Duration{0}) || !slices.Equal(q.bounds, []uint32{0}) {
			x.fail("queue %d is not restored: %+v", id, *q)
		}
	}
}

// settle lets all actions succeed until well after the longest retry pause.
func (x *randomRun) settle() {
	end := x.now.Add(10 * time.Second)
	for at := x.now; at < end || len(x.events) > 0; at = at.Add(time.Millisecond) {
		_, wake := x.step(at)
		for _, id := range x.ids() {
			if q := x.queues[id]; q.pending.ID != 0 {
				x.tell(sched.Event{Kind: sched.ActionDone, Queue: id, Action: q.pending.ID})
			}
		}
		if at > end.Add(time.Second) {
			x.fail("actions do not end")
		}
		if len(x.events) == 0 {
			at = max(at, min(wake, at.Add(time.Second))-sched.Time(time.Millisecond))
		}
	}
}

func (x *randomRun) ids() []sched.QueueID {
	var ids []sched.QueueID
	for id := range x.queues {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// anyPending reports whether an action is pending, on one device or on any.
func (x *randomRun) anyPending(on sched.DeviceID) bool {
	for _, q := range x.queues {
		if q.pending.ID != 0 && (on == "" || q.device == on) {
			return true
		}
	}
	return false
}

// randomEvent sends one random event, true or not.
func (x *randomRun) randomEvent() {
	id := sched.QueueID(x.number(12)) // zero is no valid ID
	dev := fuzzDevices[x.number(3)]
	ev := sched.Event{Queue: id, Device: dev}
	switch x.number(24) {
	case 0, 1, 2:
		ev.Kind, ev.Can, ev.Attr = sched.QueueOpened, sched.Ability(x.number(32)), x.attr()
	case 3:
		ev.Kind = sched.QueueClosed
	case 4, 5:
		ev.Kind = sched.Progressed
		ev.Counters = sched.Counters{Submitted: uint64(x.byte()), Launched: uint64(x.byte()), Completed: uint64(x.byte())}
	case 6, 7: // idle
		ev.Kind, ev.Counters = sched.Progressed, sched.Counters{Submitted: 255, Launched: 255, Completed: 255}
	case 8:
		ev.Kind, ev.Duration = sched.DeviceTimeMeasured, time.Duration(x.byte())*10*time.Millisecond
		if ev.Duration%(80*time.Millisecond) == 70*time.Millisecond {
			ev.Kind = sched.MeasurementLost
		}
	case 9:
		ev.Kind, ev.Attr = sched.AttrsChanged, x.attr()
	case 10: // an outcome of an action that may not be pending
		ev.Kind, ev.Action, ev.Outcome = sched.ActionDone, sched.ActionID(x.byte()), sched.Outcome(x.number(6))
	case 11:
		switch x.number(8) {
		case 0:
			ev.Kind = sched.DeviceClosed
		case 1:
			ev.Kind, ev.Choice = sched.PolicyChosen, x.choice()
			ev.Choice.Update = func(sched.Policy) {}
		case 2:
			ev.Kind, ev.Choice = sched.PolicyChosen, x.choice()
			if x.number(2) == 0 {
				ev.Device = ""
			}
		case 3:
			ev.Kind = sched.Kind(200)
		default:
			ev.Kind, ev.About.MinSharedSlice = sched.DeviceOpened, []time.Duration{0, 200_000, 200_000, 200_000}[x.number(4)]
			ev.About.Slice = 10 * ev.About.MinSharedSlice
		}
	case 12:
		ev.Kind = sched.PlanOffered
	case 13:
		ev.Kind, ev.Duration = []sched.Kind{sched.RequestStarted, sched.RequestFinished}[x.number(2)], time.Duration(int8(x.byte()))*time.Millisecond
	default: // most events are outcomes of pending actions
		ids := slices.DeleteFunc(x.ids(), func(id sched.QueueID) bool { return x.queues[id].pending.ID == 0 })
		if len(ids) == 0 {
			return
		}
		ev.Kind, ev.Queue = sched.ActionDone, ids[x.number(len(ids))]
		ev.Action = x.queues[ev.Queue].pending.ID
		if how := x.number(16); how < 6 {
			ev.Outcome = []sched.Outcome{sched.Refused, sched.Refused, sched.Refused, sched.Unsupported, sched.Gone, sched.Partial}[how]
		}
	}
	x.tell(ev)
}

func (x *randomRun) attr() (a sched.Attr) {
	b := x.byte()
	a.Class, a.Paused = sched.Class(b%5), b>>3%8 == 7
	if b>>6 == 3 {
		a.Expect, a.Weight, a.Share = []sched.Time{-1, 1, x.now + 5000, sched.Never}[x.number(4)], math.MaxUint32, 255
		a.Deadline, a.Laxity, a.Work, a.Nice = math.MinInt64, math.MaxInt64, -1, -128
		a.SLO = []time.Duration{0, math.MinInt64, math.MaxInt64, 10 * time.Millisecond}[x.number(4)]
	}
	return a
}

// tell adds an event for the next Step and applies it to the model.
func (x *randomRun) tell(ev sched.Event) {
	x.events = append(x.events, ev)
	q := x.queues[ev.Queue]
	switch ev.Kind {
	case sched.DeviceOpened:
		d := x.device(ev.Device)
		d.excused = d.excused || d.minShared != ev.About.MinSharedSlice
		d.minShared = ev.About.MinSharedSlice
	case sched.DeviceClosed:
		delete(x.devices, ev.Device)
		for id, q := range x.queues {
			if q.device == ev.Device {
				delete(x.queues, id)
			}
		}
	case sched.QueueOpened:
		if q == nil && ev.Queue != 0 {
			x.device(ev.Device)
			q = &modelQueue{device: ev.Device, slices: []time.Duration{0}, bounds: []uint32{0}, paused: ev.Attr.Paused}
			x.queues[ev.Queue] = q
		}
		if q != nil {
			q.can = ev.Can
		}
	case sched.QueueClosed:
		delete(x.queues, ev.Queue)
	case sched.AttrsChanged:
		if q != nil {
			q.paused = ev.Attr.Paused
		}
	case sched.ActionDone:
		if q != nil && q.pending.ID != 0 && q.pending.ID == ev.Action {
			if ev.Outcome == sched.Gone {
				delete(x.queues, ev.Queue)
			}
			q.outcome(ev.Outcome)
		}
	case sched.ShutdownStarted:
		x.ending = true
	}
}

func (x *randomRun) device(id sched.DeviceID) *modelDevice {
	if x.devices[id] == nil {
		x.devices[id] = &modelDevice{}
	}
	return x.devices[id]
}

func (q *modelQueue) outcome(o sched.Outcome) {
	act := q.pending
	q.pending = sched.Action{}
	switch act.Verb {
	case sched.Stop:
		if o == sched.Done || o == sched.Partial {
			q.stopped, q.again = act.Level, o == sched.Partial
		} else if o == sched.Unsupported {
			q.can &^= 1 << (act.Level - 1)
		}
	case sched.Start:
		if o == sched.Done {
			q.stopped, q.again = 0, false
		}
	case sched.SetSlice:
		q.slices, q.can = after(q.slices, act.Slice, o, q.can, sched.CanSlice)
	case sched.SetBound:
		q.bounds, q.can = after(q.bounds, act.Bound, o, q.can, sched.CanBound)
	}
}

// after returns the values that may be in force after an outcome: the new one if
// it was done, the old ones if it is unsupported, and all if it was refused.
func after[T comparable](old []T, new T, o sched.Outcome, can, needs sched.Ability) ([]T, sched.Ability) {
	switch o {
	case sched.Done:
		return []T{new}, can
	case sched.Unsupported:
		return old, can &^ needs
	}
	if !slices.Contains(old, new) {
		old = append(old, new)
	}
	return old, can
}

// step sends the events to the scheduler and checks the result.
func (x *randomRun) step(at sched.Time) ([]sched.Action, sched.Time) {
	x.now = max(x.now, at)
	actions, wake := x.s.Step(at, x.events)
	x.log = append(x.log, entry{at, wake, x.events, slices.Clone(actions)})
	x.events = nil
	if wake <= x.now {
		x.fail("wake %v is not later than now", wake)
	}
	for _, found := range x.s.Inversions() {
		if q := x.queues[found.Holder]; q != nil && found.Remedy == sched.StopAgain {
			q.again = true
		}
	}
	for _, act := range actions {
		x.checkAction(act)
		q := x.queues[act.Queue]
		q.pending = act
		if run := x.shouldRun(act.Queue, q); x.noFloor && (run && act.Verb == sched.Stop || !run && act.Verb == sched.Start && !q.again) {
			x.fail("%v contradicts the plan", act)
		}
	}
	x.checkShort()
	x.checkStartsAreTried(wake)
	x.buf = x.s.Queues(x.buf[:0])
	for _, q := range x.buf {
		if m := x.queues[q.ID]; m == nil || m.can != q.Can || (m.pending.ID == 0 && (m.stopped != 0) != (q.State == sched.Stopped)) {
			x.fail("queue %d: got %+v, want %+v", q.ID, q, m)
		}
	}
	return actions, wake
}

func (x *randomRun) checkAction(act sched.Action) {
	q := x.queues[act.Queue]
	fits := false
	switch {
	case q == nil || q.pending.ID != 0:
	case act.Verb == sched.Stop:
		fits = q.stopped == 0 && act.Level != 0 && q.can&(1<<(act.Level-1)) != 0
	case act.Verb == sched.Start:
		fits = q.stopped == act.Level && act.Level != 0
	case act.Verb == sched.SetSlice:
		fits = (q.can&sched.CanSlice != 0 || act.Slice == 0) && !slices.Equal(q.slices, []time.Duration{act.Slice})
	case act.Verb == sched.SetBound:
		fits = (q.can&sched.CanBound != 0 || act.Bound == 0) && !slices.Equal(q.bounds, []uint32{act.Bound})
	}
	if !fits {
		x.fail("%v does not fit %+v", act, q)
	}
}

// checkShort checks that no two queues that may be running may have slices below
// MinSharedSlice, whenever between issue and outcome an action takes effect.
func (x *randomRun) checkShort() {
	for id, d := range x.devices {
		n := 0
		for _, q := range x.queues {
			short := func(s time.Duration) bool { return s > 0 && s < d.minShared }
			mayBeShort := slices.ContainsFunc(q.slices, short) || q.pending.Verb == sched.SetSlice && short(q.pending.Slice)
			mayRun := q.stopped != sched.LevelInterrupt || q.pending.Verb == sched.Start // commands that have begun run on
			if q.device == id && mayBeShort && mayRun {
				n++
			}
		}
		if n <= 1 {
			d.excused = false
		} else if !d.excused {
			x.fail("%d queues of %s may run with short slices", n, id)
		}
	}
}

// checkStartsAreTried checks that a stopped queue that should run is being
// started, or waits for an outcome on its device, or for a retry.
func (x *randomRun) checkStartsAreTried(wake sched.Time) {
	for id, q := range x.queues {
		if q.stopped == 0 || q.pending.ID != 0 || !x.shouldRun(id, q) {
			continue
		}
		if !x.anyPending(q.device) && wake > x.now.Add(time.Second) {
			x.fail("queue %d should run, but no action is pending and no retry is due", id)
		}
	}
}

// shouldRun reports whether q is granted, or all queues run because the policy
// is overruled or the scheduler shuts down.
func (x *randomRun) shouldRun(id sched.QueueID, q *modelQueue) bool {
	if x.ending {
		return true
	}
	mistake, _, overruled := x.s.Overruled(q.device)
	r := x.plans[q.device]
	if r.inner != nil && overruled && mistake <= sched.NoPlan {
		x.fail("%s %v", r.name, mistake)
	}
	granted := slices.ContainsFunc(r.plan.Grants, func(g sched.Grant) bool { return g.Queue == id })
	return !q.paused && (overruled || granted)
}

// checkFloor checks that every queue with a floor has had some device time since
// before, which was ten seconds ago.
func (x *randomRun) checkFloor(before []sched.Queue) {
	for _, q := range before {
		after := queueOf(x.s, q.ID)
		hasFloor := q.Ready() && !q.Attr.Paused && q.Attr.Class != sched.Idle
		if hasFloor && !q.Measured && !x.noFloor && after.Served == q.Served {
			x.fail("queue %d starved", q.ID)
		}
	}
}

// checkPlanInForce checks that every queue is as the plan says. It holds when no
// action has failed for a while.
func (x *randomRun) checkPlanInForce() {
	for id, q := range x.queues {
		_, _, overruled := x.s.Overruled(q.device)
		run, g := x.shouldRun(id, q), sched.Grant{}
		if i := slices.IndexFunc(x.plans[q.device].plan.Grants, func(g sched.Grant) bool { return g.Queue == id }); run && !overruled {
			g = x.plans[q.device].plan.Grants[i]
		}
		if q.can&sched.CanSlice == 0 {
			g.Slice = 0
		}
		stoppable := q.can&(sched.CanHold|sched.CanDeactivate|sched.CanInterrupt) != 0
		switch {
		case run && q.stopped != 0:
			x.fail("queue %d is stopped, want running", id)
		case run && x.noFloor && !slices.Equal(q.slices, []time.Duration{max(g.Slice, 0)}):
			x.fail("queue %d: got slice %v, want %v", id, q.slices, g.Slice)
		case !run && stoppable && q.stopped == 0 && (x.noFloor || q.paused):
			x.fail("queue %d is running, want stopped", id)
		}
	}
}
