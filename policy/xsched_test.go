package policy

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/sched"
)

// One test for each fault that was found in the policies of XSched. The comment of
// a test says what the fault was.

// forEveryPolicy runs f with a testNode for each policy.
func forEveryPolicy(t *testing.T, f func(*testing.T, string, *testNode), devices ...sched.Device) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) { f(t, name, newNode(t, name, nil, devices...)) })
	}
}

// A policy was listed and documented but did not exist; choosing it hung the server.
func TestXSchedEveryListedPolicyCanBeMadeAndPlans(t *testing.T) {
	for _, info := range List() {
		choice, err := Choose(info.Name, nil)
		if err != nil {
			t.Errorf("choose %s, which is listed: %v", info.Name, err)
			continue
		}
		r := rand.New(rand.NewPCG(1, 5))
		v := randomView(r, slicedGPU)
		if plan := choice.Make().Plan(v); plan.Invalid || len(v.Queues) > 0 && len(plan.Grants) == 0 {
			t.Errorf("%s: got no valid plan: %+v", info.Name, plan)
		}
		if info.Doc == "" || choice.AllDevices != info.AllDevices {
			t.Errorf("%s: doc %q, all devices %v, but chosen with %v", info.Name, info.Doc, info.AllDevices, choice.AllDevices)
		}
	}
	if _, err := Choose("spup", nil); err == nil || !strings.Contains(err.Error(), "giveway, native") {
		t.Errorf("unknown policy: got error %v, want one that lists the policies", err)
	}
}

// All attributes were lost when the policy was changed.
func TestXSchedAttributesSurviveAChangeOfPolicy(t *testing.T) {
	l := newNode(t, "hpf", nil)
	low, high := l.open(sched.Queue{}, saturating), l.open(sched.Queue{}, saturating)
	l.setAttr(high, func(a *sched.Attr) { a.Priority = 5 })
	l.run(ms)
	for _, name := range []string{"share", "hpf"} {
		choice, err := Choose(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		l.events = append(l.events, sched.Event{Kind: sched.PolicyChosen, Choice: choice})
		l.run(tick)
		before := low.served
		l.run(300 * ms)
		if got := low.served - before; (got > 0) != (name == "share") {
			t.Errorf("under %s: low got %v", name, got)
		}
	}
}

// State of closed queues was never freed.
func TestXSchedStateOfClosedQueuesIsDropped(t *testing.T) {
	for _, name := range Names() {
		l := newNode(t, name, nil)
		for id := sched.QueueID(1); id <= 10_000; id++ {
			l.events = append(l.events, sched.Event{
				Kind: sched.QueueOpened, Queue: id, Process: sched.ProcessID(id / 2), Device: "plain", Can: canAll,
				Attr: sched.Attr{Class: sched.Batch, Focus: true},
			})
			if id > 3 {
				l.events = append(l.events, sched.Event{Kind: sched.QueueClosed, Queue: id - 3})
			}
			l.now = l.now.Add(ms)
			l.step()
		}
		for id := sched.QueueID(9_998); id <= 10_000; id++ {
			l.events = append(l.events, sched.Event{Kind: sched.QueueClosed, Queue: id})
		}
		l.step()
		for _, p := range l.policies {
			sizes(reflect.ValueOf(p), name, func(path string, n, c int) {
				if n > 0 && !strings.HasSuffix(path, ".params") || c > 64 {
					t.Errorf("%s: got length %d, capacity %d, want 0 and at most 64", path, n, c)
				}
			})
		}
	}
}

// sizes reports the length and capacity of every slice and map in v.
func sizes(v reflect.Value, path string, report func(path string, n, c int)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			sizes(v.Elem(), path, report)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			sizes(v.Field(i), path+"."+v.Type().Field(i).Name, report)
		}
	case reflect.Slice:
		report(path, v.Len(), v.Cap())
	case reflect.Map:
		report(path, v.Len(), v.Len())
	}
}

// A queue without a share starved for ever, even after the queue with one closed.
func TestXSchedQueueWithoutAShareDoesNotStarve(t *testing.T) {
	for _, name := range []string{"share", "share-process"} {
		l := newNode(t, name, nil)
		greedy, plain := l.open(sched.Queue{Attr: sched.Attr{Share: 80}}, saturating), l.open(sched.Queue{}, saturating)
		l.run(time.Second)
		if !near(plain.served, 200*ms, 10*ms) {
			t.Errorf("%s: beside a share of 80 %%: got %v of 1 s, want 200ms", name, plain.served)
		}
		l.close(greedy)
		l.run(time.Second)
		if !near(plain.served, 1200*ms, 20*ms) {
			t.Errorf("%s: alone: got %v of 1 s, want 1s", name, plain.served-200*ms)
		}
	}
}

// A process whose priority could not be read went ahead of every normal one, and
// real-time priorities were in reverse order.
func TestXSchedUnreadablePriorityCountsAsNice0(t *testing.T) {
	rank := func(a sched.Attr) int32 { return cpuRank(&sched.Queue{Attr: a}) }
	plain := rank(sched.Attr{})
	for _, unreadable := range []sched.Attr{{Nice: -128}, {Nice: 127}, {RealTime: 255}, {RealTime: 100}, {Nice: -21}} {
		if got := rank(unreadable); got != plain {
			t.Errorf("%+v: got rank %d, want %d", unreadable, got, plain)
		}
	}
	if rank(sched.Attr{Nice: -1}) <= plain || rank(sched.Attr{RealTime: 2}) <= rank(sched.Attr{RealTime: 1}) {
		t.Error("got nice -1 or the higher real-time priority after the other, want before")
	}
}

// Setting one of several parameters was refused, or killed the application.
func TestXSchedSettingOneParameterKeepsTheOthers(t *testing.T) {
	for _, info := range List() {
		for _, param := range info.Params {
			p := fresh(t, info.Name)
			before := paramsOf(p).describe()
			for _, bad := range []string{"", "banana", "-1h", "100000h", "99999999999"} {
				if err := paramsOf(p).set(param.Name, bad); err == nil {
					t.Errorf("%s: %s=%q: got no error, want one", info.Name, param.Name, bad)
				} else if !strings.Contains(err.Error(), param.Name) {
					t.Errorf("%s: got error %q, want one that names %s", info.Name, err, param.Name)
				}
			}
			if after := paramsOf(p).describe(); !slices.Equal(before, after) {
				t.Errorf("%s: an invalid %s changed parameters: got %v, want %v", info.Name, param.Name, after, before)
			}
			// A value that every parameter of its type allows.
			value := "7ms"
			if !strings.Contains(param.Range, "duration") {
				value = "3"
			}
			if err := paramsOf(p).set(param.Name, value); err != nil {
				t.Errorf("%s: %v", info.Name, err)
			}
			for i, after := range paramsOf(p).describe() {
				if want := before[i].Value; after.Name == param.Name && after.Value != value || after.Name != param.Name && after.Value != want {
					t.Errorf("%s: after %s=%s, %s is %s", info.Name, param.Name, value, after.Name, after.Value)
				}
			}
		}
		if err := paramsOf(fresh(t, info.Name)).set("no-such", "1"); err == nil {
			t.Errorf("%s: unknown parameter: got no error, want one", info.Name)
		}
	}
}

// About 1,100 queues of one process crashed server and client.
func TestXSchedElevenHundredQueuesOfOneProcess(t *testing.T) {
	forEveryPolicy(t, func(t *testing.T, name string, l *testNode) {
		for id := sched.QueueID(1); id <= 1100; id++ {
			l.open(sched.Queue{Process: 1, Attr: sched.Attr{Class: sched.Batch}}, saturating)
		}
		l.run(20 * ms)
		total := time.Duration(0)
		for _, j := range l.jobs {
			total += j.served
		}
		if !near(total, 20*ms, ms) {
			t.Errorf("got %v served of 20 ms", total)
		}
	})
}

// Every event was broadcast to every process, which used a CPU core.
func TestXSchedARequestLeadsToNoActionForOtherIdleQueues(t *testing.T) {
	for _, devs := range [][2]sched.DeviceID{{"plain", "sliced"}, {"sliced", "plain"}} {
		forEveryPolicy(t, func(t *testing.T, name string, l *testNode) {
			open := func(dev sched.DeviceID, c sched.Class, load func(*job, sched.Time)) *job {
				return l.open(sched.Queue{Device: dev, Attr: sched.Attr{Class: c}}, load)
			}
			for range 16 {
				open(devs[0], sched.Batch, idle)
				open(devs[1], sched.Batch, idle)
			}
			open(devs[1], sched.Batch, saturating)
			active := open(devs[0], sched.Online, idle)
			l.run(10 * ms)
			l.actions = nil
			active.load = periodic(2*ms, ms)
			l.run(100 * ms)
			for _, a := range l.actions {
				if a.Queue != active.ID {
					t.Fatalf("a request of queue %d led to %v, want no such action", active.ID, a)
				}
			}
		}, plainGPU, slicedGPU)
	}
}

// UP, PUP, KEDF and LAX treated all devices as one.
func TestXSchedPoliciesArePerDevice(t *testing.T) {
	other := plainGPU
	other.ID = "other"
	forEveryPolicy(t, func(t *testing.T, name string, l *testNode) {
		best := sched.Attr{Class: sched.Online, Priority: 9, RealTime: 9, Weight: 9, Share: 90, Focus: true, Deadline: ms}
		l.open(sched.Queue{Device: "plain", Attr: best}, saturating)
		lone := l.open(sched.Queue{Device: "other", Attr: sched.Attr{Class: sched.Batch}}, saturating)
		l.run(100 * ms)
		if want := name != "hpf-global"; lone.running != want || want && lone.served != 100*ms {
			t.Errorf("the only queue of a device: got %v of 100 ms", lone.served)
		}
	}, plainGPU, other)
}

// NO_EXECUTE was clamped to an ordinary low priority.
func TestXSchedPausedQueueNeverRuns(t *testing.T) {
	for _, dev := range []sched.Device{plainGPU, slicedGPU} {
		forEveryPolicy(t, func(t *testing.T, name string, l *testNode) {
			best := sched.Attr{Class: sched.Online, Priority: 9, RealTime: 9, Weight: 9, Share: 90, Focus: true, Deadline: ms, Paused: true}
			paused := l.open(sched.Queue{Attr: best}, saturating)
			other := l.open(sched.Queue{Attr: sched.Attr{Class: sched.Batch}}, saturating)
			l.run(200 * ms)
			if paused.served != 0 || other.served != 200*ms {
				t.Errorf("of 200 ms: got paused queue %v, other %v, want 0 and 200ms", paused.served, other.served)
			}
			l.setAttr(paused, func(a *sched.Attr) { a.Paused = false })
			l.run(200 * ms)
			if paused.served == 0 {
				t.Error("got nothing after it was resumed")
			}
		}, dev)
	}
}

// KEDF stopped idle queues, so that their next command had to wait for a start.
func TestXSchedIdleQueuesAreNotStopped(t *testing.T) {
	forEveryPolicy(t, func(t *testing.T, name string, l *testNode) {
		lazy := l.open(sched.Queue{Attr: sched.Attr{Class: sched.Batch}}, idle)
		for range 3 {
			l.open(sched.Queue{Attr: sched.Attr{Deadline: ms, Priority: 1, RealTime: 1, Focus: true}}, saturating)
		}
		l.run(100 * ms)
		for _, a := range l.actions {
			if a.Queue == lazy.ID && a.Verb == sched.Stop {
				t.Fatalf("got %v, want no stop of an idle queue", a)
			}
		}
	})
}

// CFS and MLFQ started a timer for every event, and each timer ran the policy again.
func TestXSchedThereIsOneWakeNotOneForEachEvent(t *testing.T) {
	for _, name := range []string{"cfs", "mlfq", "rr", "wfq", "share", "llf", "giveway"} {
		l := newNode(t, name, nil)
		for range 4 {
			l.open(sched.Queue{Attr: sched.Attr{Class: sched.Batch, Deadline: time.Second}}, saturating)
		}
		l.run(10 * ms)
		wakes, steps, events := 0, l.steps, 0
		l.run(time.Second, func() {
			if l.wake <= l.now {
				wakes++
			}
			for _, j := range l.jobs {
				if int(j.reported.Completed) != len(j.finished) {
					events++
				}
			}
		})
		limit := 210 // the shortest turn of these policies is 5 ms
		if name == "llf" {
			limit = 2010 // looks every 500 us whether the running queue has finished its work
		}
		if wakes > limit {
			t.Errorf("%s: got %d wakes in 1 s for %d events (%d steps), want at most %d", name, wakes, events, l.steps-steps, limit)
		}
	}
}

// Under CFS a new queue, and one that had been idle, had the device alone until its
// service was as much as that of the others.
func TestXSchedNewQueuesDoNotTakeTheDevice(t *testing.T) {
	for _, name := range []string{"cfs", "wfq", "share", "share-process", "rr", "giveway"} {
		l := newNode(t, name, nil)
		old := l.open(batch(1), saturating)
		late := l.open(batch(1), idle) // idle at first
		l.run(9 * time.Second)
		young := l.open(batch(1), saturating)
		late.load = saturating
		before := old.served
		l.run(3 * time.Second)
		for queue, got := range map[string]time.Duration{"old queue": old.served - before, "idle queue": late.served, "new queue": young.served} {
			if !near(got, time.Second, 60*ms) {
				t.Errorf("%s: the %s got %v of 3 s, want 1s", name, queue, got)
			}
		}
	}
}
