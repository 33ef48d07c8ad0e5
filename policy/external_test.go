package policy_test

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

// externalTest drives the real scheduler with an external policy and takes the place of
// the connection: answer returns the line that comes back for a question.
type externalTest struct {
	t       *testing.T
	s       *sched.Scheduler
	ext     *policy.External
	now     sched.Time
	answer  func(*policy.Question) (line string, ok bool)
	running map[sched.QueueID]bool
}

func newExternalTest(t *testing.T, answer func(*policy.Question) (string, bool)) *externalTest {
	o := &externalTest{t: t, ext: newExternal(), answer: answer, running: map[sched.QueueID]bool{}}
	o.s = sched.New(sched.Config{StallLimit: time.Second}, sched.PolicyChoice{
		Name: "external", Make: func() sched.Policy { return o.ext },
	})
	return o
}

// newExternal returns an external policy whose fallback grants every queue.
func newExternal() *policy.External {
	native, _ := policy.Choose("native", nil)
	return newExternalWith(native.Make)
}

func newExternalWith(makeFallback func() sched.Policy) *policy.External {
	number := uint64(0)
	return policy.NewExternal(100*time.Millisecond, makeFallback, func() uint64 { number++; return number })
}

// step lets a millisecond pass. Actions succeed at once.
func (o *externalTest) step(evs ...sched.Event) {
	o.now += sched.Time(time.Millisecond)
	for {
		actions, _ := o.s.Step(o.now, evs)
		evs = nil
		for _, a := range actions {
			o.running[a.Queue] = a.Verb != sched.Stop
			evs = append(evs, sched.Event{Kind: sched.ActionDone, Queue: a.Queue, Action: a.ID})
		}
		if q, ok := o.ext.Ask(); ok {
			if line, ok := o.answer(q); ok {
				number, plan, err := policy.ParseAnswer([]byte(line))
				if err != nil {
					o.t.Logf("refused: %v", err)
				}
				evs = append(evs, sched.Event{Kind: sched.PlanOffered, Number: number, Plan: plan})
			}
		}
		if evs == nil {
			return
		}
	}
}

func (o *externalTest) open(id sched.QueueID, priority int32) {
	o.running[id] = true
	o.step(
		sched.Event{Kind: sched.QueueOpened, Queue: id, Device: "gpu0", Can: sched.CanInterrupt, Attr: sched.Attr{Priority: priority}},
		sched.Event{Kind: sched.Progressed, Queue: id, Counters: sched.Counters{Submitted: 1, Launched: 1}},
	)
}

func (o *externalTest) fallingBack() bool { _, yes := o.ext.FallingBack(o.now); return yes }

func (o *externalTest) overruled() bool { _, _, yes := o.s.Overruled("gpu0"); return yes }

// highestPriority grants the queue with the highest priority, as the example in Python does.
func highestPriority(q *policy.Question) (string, bool) {
	if len(q.Queues) == 0 {
		return `{"answer":` + num(q) + `}`, true
	}
	best := slices.MaxFunc(q.Queues, func(a, b policy.QuestionQueue) int { return int(a.Priority - b.Priority) })
	line, _ := json.Marshal(policy.Answer{Number: q.Number, Grants: []policy.AnswerGrant{{Queue: best.ID}}})
	return string(line), true
}

func TestExternalPolicyIsFollowed(t *testing.T) {
	o := newExternalTest(t, highestPriority)
	o.open(1, 0)
	o.open(2, 5)
	o.open(3, 1)
	if o.running[1] || !o.running[2] || o.running[3] || o.overruled() {
		t.Errorf("running %v, overruled %v", o.running, o.overruled())
	}
	o.step(sched.Event{Kind: sched.QueueClosed, Queue: 2})
	if o.running[1] || !o.running[3] || o.overruled() {
		t.Errorf("after the best queue closed: running %v, overruled %v", o.running, o.overruled())
	}
}

// TestExternalPolicyFallsBack: without a valid answer the fallback policy decides; the
// external policy decides again with its next valid answer. A policy that grants nothing
// is overruled by the scheduler.
func TestExternalPolicyFallsBack(t *testing.T) {
	for _, tt := range []struct {
		name      string
		bad       func(*policy.Question) (string, bool)
		overruled bool // by the scheduler, rather than falling back
	}{
		{"no answer", func(*policy.Question) (string, bool) { return "", false }, false},
		{"not JSON", func(*policy.Question) (string, bool) { return "eh?", true }, false},
		{"unknown queue", func(q *policy.Question) (string, bool) {
			return `{"answer":` + num(q) + `,"grants":[{"queue":99}]}`, true
		}, false},
		{"two short slices", func(q *policy.Question) (string, bool) {
			return `{"answer":` + num(q) + `,"grants":[{"queue":1,"slice_ns":1},{"queue":2,"slice_ns":1}]}`, true
		}, false},
		{"nothing granted", func(q *policy.Question) (string, bool) { return `{"answer":` + num(q) + `}`, true }, true},
		{"wrong number", func(q *policy.Question) (string, bool) { return `{"answer":777,"grants":[]}`, true }, false},
		{"unknown field", func(q *policy.Question) (string, bool) { return `{"answer":` + num(q) + `,"please":1}`, true }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := newExternalTest(t, highestPriority)
			o.step(sched.Event{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{ID: "gpu0", Slice: 2 * time.Millisecond, MinSharedSlice: time.Millisecond}})
			o.open(1, 0)
			o.open(2, 5)
			o.answer = tt.bad
			o.open(3, 7)
			for range 1200 {
				o.step(sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: time.Duration(o.now)})
			}
			if o.fallingBack() == tt.overruled || o.overruled() != tt.overruled || !o.running[1] || !o.running[2] || !o.running[3] {
				t.Fatalf("falling back %v, overruled %v, running %v; want all running", o.fallingBack(), o.overruled(), o.running)
			}
			o.answer = highestPriority
			o.step(sched.Event{Kind: sched.PlanOffered, Device: "gpu0"}) // the process exited, and another was started
			for range 1200 {
				o.step(sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: time.Duration(o.now)})
			}
			if o.fallingBack() || o.overruled() || o.running[1] || o.running[2] || !o.running[3] {
				t.Errorf("with valid answers again: falling back %v, overruled %v, running %v; want only 3", o.fallingBack(), o.overruled(), o.running)
			}
		})
	}
}

func num(q *policy.Question) string { b, _ := json.Marshal(q.Number); return string(b) }

// TestExternalPolicyInPython runs the example in another language.
func TestExternalPolicyInPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	cmd := exec.Command(python, "../examples/policy/priority.py")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	o := newExternalTest(t, nil)
	o.answer = func(q *policy.Question) (string, bool) {
		if err := json.NewEncoder(in).Encode(q); err != nil {
			t.Fatal(err)
		}
		ok := lines.Scan()
		return lines.Text(), ok
	}
	o.open(1, 0)
	o.open(2, 5)
	o.open(3, 5)
	if o.running[1] || !o.running[2] || !o.running[3] || o.overruled() {
		t.Errorf("running %v, overruled %v", o.running, o.overruled())
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func FuzzParseAnswer(f *testing.F) {
	f.Add(`{"answer":1,"grants":[{"queue":1,"slice_ns":1,"bound":4}],"wake_ns":5}`)
	f.Add(`{"answer":1,"grants":[{"queue":-1}]}`)
	f.Add(strings.Repeat("[", 100))
	f.Fuzz(func(t *testing.T, line string) {
		number, plan, err := policy.ParseAnswer([]byte(line))
		if (err == nil) != (plan != nil && number != 0) {
			t.Errorf("number %d, plan %v, error %v", number, plan, err)
		}
	})
}

// TestExternalAnswerMayGrantDefaultSlices checks that any number of grants with the device's
// default slice, and one with a short slice, is a valid answer, and two short ones are not.
func TestExternalAnswerMayGrantDefaultSlices(t *testing.T) {
	for grants, want := range map[string]bool{
		`{"queue":1},{"queue":2},{"queue":3}`:                                                  true,
		`{"queue":1,"slice_ns":1},{"queue":2},{"queue":3,"slice_ns":200000}`:                   true,
		`{"queue":1,"slice_ns":1},{"queue":2,"slice_ns":199999},{"queue":3}`:                   false,
		`{"queue":1,"slice_ns":200000},{"queue":2,"slice_ns":200000},{"queue":3,"slice_ns":1}`: true,
	} {
		o := newExternalTest(t, func(q *policy.Question) (string, bool) {
			if len(q.Queues) < 3 {
				return highestPriority(q)
			}
			return `{"answer":` + num(q) + `,"grants":[` + grants + `]}`, true
		})
		o.step(sched.Event{Kind: sched.DeviceOpened, Device: "gpu0", About: sched.Device{Slice: 2 * time.Millisecond, MinSharedSlice: 200 * time.Microsecond}})
		for id := sched.QueueID(1); id <= 3; id++ {
			o.open(id, 0)
		}
		for range 300 {
			o.step()
		}
		if got := !o.fallingBack(); got != want {
			t.Errorf("grants %s: the answer is used: %v, want %v", grants, got, want)
		}
	}
}

// watcher is a policy that keeps the kinds of the events it is shown.
type watcher []sched.Kind

func (w *watcher) Plan(*sched.View) sched.Plan           { return sched.Plan{} }
func (w *watcher) Observe(_ sched.Time, ev *sched.Event) { *w = append(*w, ev.Kind) }

// TestStartingIsSaid checks that the reason of the fallback tells a process that starts from one
// that is late.
func TestStartingIsSaid(t *testing.T) {
	o := newExternalTest(t, func(*policy.Question) (string, bool) { return "", false })
	want := func(text string) {
		t.Helper()
		if why, yes := o.ext.FallingBack(o.now); !yes || why != text {
			t.Errorf("got %q, %v; want %q", why, yes, text)
		}
	}
	want("its process is starting")
	o.step(sched.Event{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanInterrupt})
	o.now = o.now.Add(time.Minute)
	want("it has not answered within 100ms, and may still be starting")
	o.step(sched.Event{Kind: sched.PlanOffered, Device: "gpu0"}) // the process exited
	o.now = o.now.Add(time.Minute)
	want("it has not answered within 100ms")
}

// TestFallbackSeesEventsWhileItDecides checks that the fallback policy is shown the events while
// there is no valid answer, and a new one each time that it begins to decide.
func TestFallbackSeesEventsWhileItDecides(t *testing.T) {
	var made []*watcher
	ext := newExternalWith(func() sched.Policy { made = append(made, &watcher{}); return made[len(made)-1] })
	view := sched.View{Now: 1, Devices: []sched.Device{{ID: "gpu0"}}, Queues: []sched.Queue{{ID: 1}}}
	offer := func(number uint64, p *sched.Plan) {
		ext.Observe(view.Now, &sched.Event{Kind: sched.PlanOffered, Number: number, Plan: p})
		ext.Plan(&view)
	}
	ext.Observe(1, &sched.Event{Kind: sched.QueueOpened, Queue: 1})
	ext.Plan(&view)
	ext.Observe(2, &sched.Event{Kind: sched.RequestFinished, Queue: 1})
	offer(1, &sched.Plan{Grants: []sched.Grant{{Queue: 1}}})
	ext.Observe(3, &sched.Event{Kind: sched.RequestStarted, Queue: 1})
	offer(0, nil) // the process exited
	ext.Observe(4, &sched.Event{Kind: sched.RequestFinished, Queue: 1})
	ext.Plan(&view)
	want := []watcher{{sched.QueueOpened, sched.RequestFinished, sched.PlanOffered}, {sched.RequestFinished}}
	if len(made) != len(want) || !slices.Equal(*made[0], want[0]) || !slices.Equal(*made[1], want[1]) {
		t.Errorf("%d fallbacks saw %v, want %v", len(made), made, want)
	}
}

// TestFallbackDoesNotChargeForTheTimeBefore checks that the fallback policy shares the device fairly
// from when it begins to decide, although it decided before as well and the other process has let
// one queue run alone since then.
func TestFallbackDoesNotChargeForTheTimeBefore(t *testing.T) {
	for _, name := range []string{"slo", "giveway", "cfs", "wfq", "share"} {
		fallback, err := policy.Choose(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		o := newExternalTest(t, highestPriority)
		o.ext = newExternalWith(fallback.Make)
		var events []sched.Event
		for id := sched.QueueID(1); id <= 2; id++ {
			o.running[id] = true
			events = append(events,
				sched.Event{Kind: sched.QueueOpened, Queue: id, Device: "gpu0", Can: sched.CanInterrupt, Attr: sched.Attr{Class: sched.Batch, Priority: -int32(id)}},
				sched.Event{Kind: sched.Progressed, Queue: id, Counters: sched.Counters{Submitted: 1, Launched: 1}},
			)
		}
		o.step(events...) // the fallback decides until the first answer
		run := func(d time.Duration) (ran [3]time.Duration) {
			for range d / time.Millisecond {
				o.step()
				for id := range ran {
					if o.running[sched.QueueID(id)] {
						ran[id] += time.Millisecond
					}
				}
			}
			return ran
		}
		if ran := run(10 * time.Second); ran[1] < 9*time.Second || o.fallingBack() {
			t.Fatalf("%s: under the other process the queues ran for %v", name, ran[1:])
		}
		o.answer = func(*policy.Question) (string, bool) { return "", false }
		o.step(sched.Event{Kind: sched.PlanOffered, Device: "gpu0"}) // the process exited
		if ran := run(2 * time.Second); ran[1] < 800*time.Millisecond || ran[2] < 800*time.Millisecond {
			t.Errorf("%s: of 2 s after the process exited the queues ran for %v, want half each", name, ran[1:])
		}
	}
}
