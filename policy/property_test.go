package policy

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// checkedPolicy passes every plan of a policy to check.
type checkedPolicy struct {
	sched.Policy
	check func(*sched.View, sched.Plan)
	buf   []sched.Grant
}

func (w *checkedPolicy) Plan(v *sched.View) sched.Plan {
	first := w.Policy.Plan(v)
	w.buf = append(w.buf[:0], first.Grants...)
	again := w.Policy.Plan(v)
	if !slices.Equal(w.buf, again.Grants) || first.Wake != again.Wake {
		panic("a second call of Plan returned another plan")
	}
	w.check(v, again)
	return again
}

// checkPlans returns p with its plans checked. It implements Observer if p does.
func checkPlans(p sched.Policy, check func(*sched.View, sched.Plan)) sched.Policy {
	w := &checkedPolicy{Policy: p, check: check}
	if o, ok := p.(sched.Observer); ok {
		return &struct {
			*checkedPolicy
			sched.Observer
		}{w, o}
	}
	return w
}

// randomActions drives the scheduler with random events and returns all actions.
// Check, if given, sees every plan. Edit, if given, changes the attributes of
// every event before the scheduler gets it.
func randomActions(t *testing.T, name string, seed uint64, check func(*sched.View, sched.Plan), edit func(now sched.Time, a *sched.Attr)) []sched.Action {
	choice, err := Choose(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	if check != nil {
		build := choice.Make
		choice.Make = func() sched.Policy { return checkPlans(build(), check) }
	}
	r := rand.New(rand.NewPCG(seed, 4))
	s := sched.New(sched.Config{Floor: -1, StallLimit: time.Hour}, choice)
	devices := []sched.Device{plainGPU, slicedGPU}
	events := []sched.Event{
		{Kind: sched.DeviceOpened, Device: "plain", About: plainGPU},
		{Kind: sched.DeviceOpened, Device: "sliced", About: slicedGPU},
	}
	var all []sched.Action
	var pending []sched.Event // outcomes of actions
	opened, now := uint64(0), sched.Time(0)
	seen := map[sched.QueueID]sched.Counters{}
	for range 300 {
		actions, wake := s.Step(now, events)
		all = append(all, actions...)
		for _, d := range devices {
			if m, _, bad := s.Overruled(d.ID); bad {
				t.Fatalf("%s, seed %d: overruled on %s: %v", name, seed, d.ID, m)
			}
		}
		for _, a := range actions {
			pending = append(pending, sched.Event{
				Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID, Outcome: sched.Outcome(max(0, r.IntN(12)-10)),
			})
		}
		events = events[:0]
		for range r.IntN(len(pending) + 1) {
			events = append(events, pending[0])
			pending = pending[1:]
		}
		now = min(max(wake, now+1), now.Add(time.Duration(r.IntN(20))*ms+1))
		for range r.IntN(4) {
			id := sched.QueueID(1 + r.Uint64N(opened+1))
			ev := sched.Event{Queue: id, Attr: randomAttr(r)}
			if edit != nil {
				edit(now, &ev.Attr)
			}
			switch k := r.IntN(12); {
			case k < 2 && opened < 20 || opened == 0:
				opened++
				ev.Kind, ev.Queue, ev.Process = sched.QueueOpened, sched.QueueID(opened), sched.ProcessID(r.IntN(5))
				ev.Device = devices[r.IntN(2)].ID
				ev.Can = []sched.Ability{canAll, canAll, canStop, sched.CanSlice}[r.IntN(4)]
			case k == 2:
				ev.Kind = sched.QueueClosed
			case k == 3:
				ev.Kind = sched.AttrsChanged
			case k == 4:
				c := seen[id] // all work is finished
				c.Launched, c.Completed = c.Submitted, c.Submitted
				seen[id] = c
				ev.Kind, ev.Counters = sched.Progressed, c
			case k == 5:
				ev.Kind = []sched.Kind{sched.RequestStarted, sched.RequestFinished}[r.IntN(2)]
				ev.Duration = time.Duration(r.IntN(20)) * ms
			default:
				c := seen[id]
				c.Submitted += r.Uint64N(3)
				c.Launched = c.Submitted
				c.Completed += min(r.Uint64N(3), c.Submitted-c.Completed)
				seen[id] = c
				ev.Kind, ev.Counters = sched.Progressed, c
			}
			events = append(events, ev)
		}
	}
	return all
}

func randomAttr(r *rand.Rand) sched.Attr {
	return sched.Attr{
		Priority: int32(r.IntN(5) - 2), Weight: uint32(r.IntN(5)), Share: uint8(r.IntN(4) * 20), Nice: int8(r.IntN(40) - 20),
		RealTime: uint8(max(0, r.IntN(120)-90)), Class: sched.Class(r.IntN(4)), Focus: r.IntN(5) == 0, Paused: r.IntN(10) == 0,
		SLO:      time.Duration(r.IntN(3)) * 10 * ms,
		Deadline: time.Duration(r.IntN(4)) * 20 * ms, Work: time.Duration(r.IntN(3)) * 5 * ms, Laxity: time.Duration(max(0, r.IntN(30)-15)) * ms,
	}
}

func TestEveryPolicyInRandomRuns(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			for seed := range few(40) {
				first := randomActions(t, name, seed, func(v *sched.View, p sched.Plan) { checkPlan(t, name, seed, v, p) }, nil)
				if t.Failed() {
					return
				}
				if again := randomActions(t, name, seed, nil, nil); !slices.Equal(first, again) {
					t.Fatalf("seed %d: two runs gave different actions", seed)
				}
			}
		})
	}
}

// checkPlan checks what must hold for every plan.
func checkPlan(t *testing.T, name string, seed uint64, v *sched.View, p sched.Plan) {
	fail := func(why string) {
		t.Helper()
		t.Errorf("seed %d at %v: %s\nqueues:\n%s%+v", seed, time.Duration(v.Now), why, describeView(v), p)
	}
	if p.Wake != 0 && p.Wake <= v.Now {
		fail("Wake is not later than now")
	}
	if !slices.IsSortedFunc(p.Grants, func(a, b sched.Grant) int { return int(a.Queue) - int(b.Queue) }) {
		fail("grants are not in order of ID")
	}
	for _, dev := range v.Devices {
		waiting, served := 0, 0
		for i := range v.Queues {
			q := &v.Queues[i]
			if q.Device != dev.ID {
				continue
			}
			got := slices.ContainsFunc(p.Grants, func(g sched.Grant) bool { return g.Queue == q.ID })
			switch {
			case q.Runnable() && got:
				served++
			case q.Runnable():
				waiting++
			case !q.Ready() && !got && !rested(name, &dev, q):
				fail("an idle queue is not granted")
			}
		}
		lingers := (name == "giveway" || name == "slo") && p.Wake != 0 // for online work that may continue
		if waiting > 0 && served == 0 && len(v.Devices) == 1 && !lingers {
			fail("no runnable queue is granted")
		}
		if waiting+served < 2 && p.Wake != 0 && len(v.Devices) == 1 && !lingers {
			fail("Wake is set though no queue waits")
		}
	}
}

// rested reports whether q may count as having work for a moment: see shortRest.
func rested(name string, dev *sched.Device, q *sched.Queue) bool {
	return (name == "giveway" || name == "slo") && givesWay(q) && yieldsBySlice(dev, q)
}

func TestNoPolicyIsOverruledUnderTheDefaults(t *testing.T) {
	for _, name := range Names() {
		l := newNodeWith(t, sched.Config{}, name, nil, plainGPU, slicedGPU)
		for _, dev := range []sched.DeviceID{"plain", "sliced"} {
			for i, c := range []sched.Class{sched.Standard, sched.Online, sched.Batch, sched.Idle, sched.Batch} {
				load := []func(*job, sched.Time){periodic(5*ms, ms), saturating, idleFrom(time.Second, 2*time.Second)}[i%3]
				l.open(sched.Queue{Device: dev, Attr: sched.Attr{Class: c, Priority: int32(i), Deadline: ms}}, load)
			}
			l.open(sched.Queue{Device: dev, Attr: sched.Attr{Class: sched.Online, Priority: 9, Expect: sched.Time(time.Second)}}, idle)
		}
		l.run(4*time.Second, func() {
			for id := range l.devices {
				if m, _, bad := l.sched.Overruled(id); bad {
					t.Fatalf("%s on %s at %v: %v", name, id, time.Duration(l.now), m)
				}
			}
		})
	}
}

func TestNoPolicyAllocatesWhileItsQueuesStayTheSame(t *testing.T) {
	for _, name := range Names() {
		for _, dev := range []sched.Device{plainGPU, slicedGPU} {
			r := rand.New(rand.NewPCG(7, 7))
			v := &sched.View{Devices: []sched.Device{dev}}
			for i := range 32 {
				v.Queues = append(v.Queues, sched.Queue{
					ID: sched.QueueID(i + 1), Process: sched.ProcessID(r.IntN(8)), Device: dev.ID, Can: canAll, Attr: randomAttr(r),
					Counters: sched.Counters{Known: true, Submitted: 1},
				})
			}
			p := fresh(t, name)
			p.Plan(v)
			if n := testing.AllocsPerRun(500, func() {
				v.Now = v.Now.Add(3 * ms)
				for i := range v.Queues {
					q := &v.Queues[i]
					q.Counters.Completed = r.Uint64N(2)
					q.Served += time.Duration(r.IntN(2)) * ms
				}
				p.Plan(v)
			}); n != 0 {
				t.Errorf("%s on %s: got %v allocations a plan, want 0", name, dev.ID, n)
			}
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	for _, name := range Names() {
		b.Run(name, func(b *testing.B) {
			v := &sched.View{Devices: []sched.Device{plainGPU}}
			for i := range 32 {
				v.Queues = append(v.Queues, sched.Queue{
					ID: sched.QueueID(i + 1), Process: sched.ProcessID(i / 4), Device: "plain", Can: canAll,
					Attr: sched.Attr{Class: sched.Batch, Deadline: time.Duration(i%5) * ms},
				})
			}
			p := fresh(b, name)
			for b.Loop() {
				v.Now = v.Now.Add(ms)
				p.Plan(v)
			}
		})
	}
}
