package daemon

import (
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/replay"
	"github.com/giveway/giveway/sched"
)

// TestInputsReplay records the inputs of a daemon while classes and policies change,
// processes are paused and exit, and replays them. The daemon reads its queues and the
// record meanwhile, which must not change a decision.
func TestInputsReplay(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	defer runDaemon(t, d)()
	serve, _ := sleeper(t)
	train, _ := sleeper(t)
	serveQueue := b.mustOffer(t, serve)
	b.mustOffer(t, train)
	set := func(pid int, attrs string) {
		t.Helper()
		if _, err := d.Change(ourselves, pid, given(attrs)); err != nil {
			t.Fatal(err)
		}
		d.Processes()
	}
	set(train.PID, "class=batch")
	recording, err := d.BeginInputs()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.BeginInputs(); err == nil || !strings.Contains(err.Error(), "another recording is under way") {
		t.Errorf("a second recording: got %v, want a refusal", err)
	}
	next := func(end bool) {
		t.Helper()
		part, err := d.NextInputs(end)
		if err != nil {
			t.Fatal(err)
		}
		recording = append(recording, part...)
	}
	set(serve.PID, "class=online")
	eventually(t, "batch has the minimum slice", func() bool { return b.hardware(train.PID).slice == sched.MinSlice })
	for _, p := range []api.Policy{{Name: "wfq"}, {Name: "giveway", Params: map[string]string{"turn": "33ms"}}, {Name: "giveway", Params: map[string]string{"turn": "44ms"}}} {
		if _, err := d.SetPolicy(ourselves, p); err != nil {
			t.Fatal(err)
		}
		next(false)
	}
	set(train.PID, "paused=true")
	eventually(t, "it is paused", func() bool { return b.hardware(train.PID).stopped })
	<-serveQueue.Withdraw(true)
	set(train.PID, "paused=false")
	eventually(t, "it is resumed", func() bool { return !b.hardware(train.PID).stopped })
	next(true)
	if _, err := d.NextInputs(false); err == nil || !strings.Contains(err.Error(), "no recording was begun") {
		t.Errorf("after the end: got %v, want a refusal", err)
	}
	res, err := replay.Run(recording)
	if err != nil || res.Difference != nil {
		t.Fatalf("got %v, %+v; want the same decisions", err, res.Difference)
	}
	if res.Steps < 5 || res.Actions < 4 || res.Decisions < 4 {
		t.Errorf("got %+v, want more steps, actions and decisions", res)
	}
}

// TestInputsEnd checks that a recording that is not read, or only slowly, ends by itself, and
// that its reader is told.
func TestInputsEnd(t *testing.T) {
	begin := func() *inputs {
		s := sched.New(sched.Config{}, sched.PolicyChoice{})
		r, err := replay.Begin(s, "test")
		if err != nil {
			t.Fatal(err)
		}
		return &inputs{recording: r}
	}
	in := begin()
	if in.step(sched.Time(inputsPatience), nil, nil); in.recording == nil {
		t.Fatalf("after %v: the recording ended: %v", inputsPatience, in.ended)
	}
	if in.step(sched.Time(inputsPatience+time.Second), nil, nil); in.recording != nil || !strings.Contains(in.ended.Error(), "was not read for 10s") {
		t.Errorf("got %v, want an end", in.ended)
	}
	in = begin()
	events := make([]sched.Event, 5000)
	for n := 0; in.recording != nil; n++ {
		if in.step(1, events, nil); n > 10_000 {
			t.Fatal("the recording has no limit")
		}
	}
	if !strings.Contains(in.ended.Error(), "16 MB were not read") {
		t.Errorf("got %v, want an end", in.ended)
	}
}
