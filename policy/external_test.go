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

// outside drives the real scheduler with an external policy, and plays the part
// of the daemon's socket: answer says what comes back for a question.
type outside struct {
	t       *testing.T
	s       *sched.Scheduler
	ext     *policy.External
	now     sched.Time
	answer  func(*policy.Question) (line string, ok bool)
	running map[sched.QueueID]bool
}

func newOutside(t *testing.T, answer func(*policy.Question) (string, bool)) *outside {
	o := &outside{t: t, ext: policy.NewExternal(), answer: answer, running: map[sched.QueueID]bool{}}
	o.s = sched.New(sched.Config{StallLimit: time.Second}, sched.PolicyChoice{
		Name: "external", Make: func() sched.Policy { return o.ext },
	})
	return o
}

// step lets a millisecond pass. Actions succeed at once.
func (o *outside) step(evs ...sched.Event) {
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

func (o *outside) open(id sched.QueueID, priority int32) {
	o.running[id] = true
	o.step(
		sched.Event{Kind: sched.QueueOpened, Queue: id, Device: "gpu0", Can: sched.CanInterrupt, Attr: sched.Attr{Priority: priority}},
		sched.Event{Kind: sched.Progressed, Queue: id, Counters: sched.Counters{Submitted: 1, Launched: 1}},
	)
}

func (o *outside) overruled() bool { _, _, yes := o.s.Overruled("gpu0"); return yes }

// echo grants the queue with the highest priority, as the example in Python does.
func echo(q *policy.Question) (string, bool) {
	best := slices.MaxFunc(q.Queues, func(a, b policy.QuestionQueue) int { return int(a.Priority - b.Priority) })
	line, _ := json.Marshal(policy.Answer{Number: q.Number, Grants: []policy.AnswerGrant{{Queue: best.ID}}})
	return string(line), true
}

func TestExternalPolicyIsFollowed(t *testing.T) {
	o := newOutside(t, echo)
	o.open(1, 0)
	o.open(2, 5)
	o.open(3, 1)
	if o.running[1] || !o.running[2] || o.running[3] || o.overruled() {
		t.Errorf("running %v, overruled %v", o.running, o.overruled())
	}
	o.step(sched.Event{Kind: sched.QueueClosed, Queue: 2})
	if o.running[1] || !o.running[3] || o.overruled() {
		t.Errorf("after the best has gone: running %v, overruled %v", o.running, o.overruled())
	}
}

// TestExternalPolicyThatMisbehavesIsOverruled: whatever comes back instead of a
// plan, the device runs freely, and the policy is followed again when it behaves.
func TestExternalPolicyThatMisbehavesIsOverruled(t *testing.T) {
	for name, bad := range map[string]func(*policy.Question) (string, bool){
		"silence":  func(*policy.Question) (string, bool) { return "", false },
		"nonsense": func(*policy.Question) (string, bool) { return "eh?", true },
		"unknown queue": func(q *policy.Question) (string, bool) {
			return `{"answer":` + num(q) + `,"grants":[{"queue":99}]}`, true
		},
		"nobody":        func(q *policy.Question) (string, bool) { return `{"answer":` + num(q) + `}`, true },
		"wrong number":  func(q *policy.Question) (string, bool) { return `{"answer":777,"grants":[]}`, true },
		"unknown field": func(q *policy.Question) (string, bool) { return `{"answer":` + num(q) + `,"please":1}`, true },
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutside(t, echo)
			o.open(1, 0)
			o.open(2, 5)
			o.answer = bad
			o.open(3, 7)
			for range 1200 {
				o.step(sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: time.Duration(o.now)})
			}
			if !o.overruled() || !o.running[1] || !o.running[2] || !o.running[3] {
				t.Fatalf("running %v, overruled %v", o.running, o.overruled())
			}
			o.answer = echo
			o.step(sched.Event{Kind: sched.PlanOffered, Number: 0, Plan: nil}) // it died, and another has come
			o.ext = reconnect(o)
			for range 1200 {
				o.step(sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: time.Duration(o.now)})
			}
			if o.overruled() || o.running[1] || o.running[2] || !o.running[3] {
				t.Errorf("behaving again: running %v, overruled %v", o.running, o.overruled())
			}
		})
	}
}

// TestExternalPolicyRecovers: nonsense once, and then sense from the same process.
func TestExternalPolicyRecovers(t *testing.T) {
	o := newOutside(t, echo)
	o.open(1, 0)
	o.open(2, 5)
	o.answer = func(*policy.Question) (string, bool) { return "eh?", true }
	o.open(3, 7)
	if !o.overruled() || !o.running[1] {
		t.Fatalf("running %v, overruled %v", o.running, o.overruled())
	}
	o.answer = echo
	for range 1200 {
		o.step(sched.Event{Kind: sched.DeviceTimeMeasured, Queue: 1, Duration: time.Duration(o.now)})
	}
	if o.overruled() || o.running[1] || o.running[2] || !o.running[3] {
		t.Errorf("running %v, overruled %v", o.running, o.overruled())
	}
}

// reconnect puts a fresh external policy in charge, as a new connection does.
func reconnect(o *outside) *policy.External {
	ext := policy.NewExternal()
	o.s.Step(o.now, []sched.Event{{Kind: sched.PolicyChosen, Choice: sched.PolicyChoice{
		Name: "external", Make: func() sched.Policy { return ext },
	}}})
	return ext
}

func num(q *policy.Question) string { b, _ := json.Marshal(q.Number); return string(b) }

// TestExternalPolicyInPython runs the example in another language.
func TestExternalPolicyInPython(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3 here to run the example with")
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
	o := newOutside(t, nil)
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
	f.Add(`{"answer":1,"grants":[{"queue":1,"slice_ns":1,"window":4}],"wake_ns":5}`)
	f.Add(`{"answer":1,"grants":[{"queue":-1}]}`)
	f.Add(strings.Repeat("[", 100))
	f.Fuzz(func(t *testing.T, line string) {
		number, plan, err := policy.ParseAnswer([]byte(line))
		if (err == nil) != (plan != nil && number != 0) {
			t.Errorf("number %d, plan %v, error %v", number, plan, err)
		}
	})
}
