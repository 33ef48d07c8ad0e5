package replay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/sim"
	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// mistaken is a policy that grants nothing half of the time, and so is overruled.
type mistaken struct{ Plans, Mistakes int }

func (p *mistaken) Plan(v *sched.View) (plan sched.Plan) {
	p.Plans++
	if v.Now/sched.Time(400*ms)%2 == 1 {
		p.Mistakes++
		plan.Invalid = p.Mistakes%3 == 0
		return plan
	}
	for i := range v.Queues {
		plan.Grants = append(plan.Grants, sched.Grant{Queue: v.Queues[i].ID})
	}
	return plan
}

// withMistaken adds the policy "mistaken" to those that can be replayed.
func withMistaken(t testing.TB) {
	before := choose
	t.Cleanup(func() { choose = before })
	choose = func(name string, params map[string]string) (sched.PolicyChoice, error) {
		if name == "mistaken" {
			return sched.PolicyChoice{Name: name, Make: func() sched.Policy { return &mistaken{} }}, nil
		}
		return policy.Choose(name, params)
	}
}

// camera records the steps of a simulated daemon from a time on. A daemon that starts again
// has another scheduler: what was recorded until then is complete.
type camera struct {
	t          testing.TB
	from       sched.Time
	sched      *sched.Scheduler
	recording  *Recording
	recordings [][]byte
	steps      int
	overruled  bool
	outcomes   map[sched.Outcome]int
	closed     int
}

func (c *camera) started(s *sched.Scheduler) {
	c.end()
	c.sched = s
}

func (c *camera) end() {
	if c.recording != nil && c.steps > 0 {
		c.recordings = append(c.recordings, c.recording.Take())
	}
	c.recording, c.steps = nil, 0
}

// Record implements loop.Recorder: it is called after each Step.
func (c *camera) Record(now sched.Time, events []sched.Event, actions []sched.Action) {
	if c.recording != nil {
		if err := c.recording.Step(now, events, actions); err != nil {
			c.t.Fatal(err)
		}
		c.steps++
		if c.steps%3 == 0 {
			c.sched.Queues(nil) // as a daemon does; it must change nothing
		}
		for i := range events {
			switch events[i].Kind {
			case sched.ActionDone:
				c.outcomes[events[i].Outcome]++
			case sched.QueueClosed:
				c.closed++
			}
		}
		for _, d := range c.sched.Decisions() {
			c.overruled = c.overruled || d.Reason == sched.PolicyOverruled
		}
		return
	}
	if now >= c.from {
		var err error
		if c.recording, err = Begin(c.sched, "test"); err != nil {
			c.t.Fatal(err)
		}
	}
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// film simulates the World of a seed, with faults, and records it from the middle.
func film(t testing.TB, seed uint64, name string, length time.Duration) *camera {
	r := rand.New(rand.NewPCG(seed, 17))
	choice, err := choose(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	cam := &camera{t: t, from: sched.Time(r.Int64N(int64(length / 2))), outcomes: map[sched.Outcome]int{}}
	cfg := sim.Config{
		Seed: seed, Policy: choice, Length: length, Drain: time.Hour, AllowLivelock: name == "mistaken", Recorder: cam, Started: cam.started,
		Sched: sched.Config{StallLimit: 100 * ms},
		Faults: sim.Faults{
			Fail: pick(r, 0.02, 0.3), FailApplied: pick(r, 0, 0.1), Permanent: pick(r, 0, 0.2), Late: pick(r, 0, 0.05), LateBy: 50 * ms,
			LostWake: pick(r, 0, 0.1, 0.5), Crash: pick(r, 0, time.Second), Kill: pick(r, 0, 300*ms), Trace: pick(r, 0, 200*ms),
		},
	}
	models := sim.ModelNames()
	for i := range 1 + r.IntN(2) {
		m, err := sim.NewModel(models[r.IntN(len(models))])
		if err != nil {
			t.Fatal(err)
		}
		cfg.Devices = append(cfg.Devices, sim.DeviceConfig{ID: sched.DeviceID(fmt.Sprint("gpu", i)), Model: m})
	}
	for i := range 2 + r.IntN(6) {
		cfg.Clients = append(cfg.Clients, client(r, i, len(cfg.Devices)))
	}
	sim.New(cfg).Run()
	cam.end()
	return cam
}

func client(r *rand.Rand, i, devices int) sim.ClientConfig {
	c := sim.ClientConfig{
		Name: fmt.Sprint("c", i), Device: r.IntN(devices), Shim: r.IntN(2) == 0,
		Attr: sched.Attr{
			Class: sched.Class(r.IntN(4)), Priority: int32(r.IntN(3)), Weight: uint32(r.IntN(4)), Share: uint8(r.IntN(50)),
			Deadline: pick(r, 0, 5*ms), Nice: int8(r.IntN(40) - 20), Focus: r.IntN(4) == 0, SLO: pick(r, 0, ms, 10*ms),
		},
		Arrival: sim.Arrival{Kind: sim.ArrivalKind(r.IntN(3)), Every: pick(r, ms, 5*ms, 20*ms)},
		Kernels: []sim.Kernels{{Count: 1 + r.IntN(4), Time: sim.Dist{Kind: sim.LogNormal, Mean: pick(r, 20*us, 200*us, 2*ms), Jitter: 1}, Gap: sim.Always(pick(r, 0, 30*us))}},
		Hint:    r.IntN(2) == 0, Start: pick(r, 0, 0, 300*ms), Lifetime: sim.Around(400*ms, 0.5), Downtime: sim.Around(100*ms, 0.5),
	}
	if c.Arrival.Kind == sim.Closed {
		c.Arrival.Every, c.Arrival.Depth = 0, 1+r.IntN(32)
	}
	return c
}

// TestReplay records 100 and more random simulated runs from the middle, with failing, late
// and lost calls, processes that are killed, daemons that crash, and policies that are
// overruled. Each replay gives the same actions and decisions, step by step.
func TestReplay(t *testing.T) {
	withMistaken(t)
	names := append(policy.Names(), "mistaken")
	length, runs, steps, actions, closed, overruled := time.Second, 0, 0, 0, 0, 0
	outcomes := map[sched.Outcome]int{}
	for seed := uint64(1); runs < 100; seed++ {
		cam := film(t, seed, names[int(seed)%len(names)], length)
		for _, recording := range cam.recordings {
			res, err := Run(recording)
			if err != nil || res.Difference != nil {
				t.Fatalf("seed %d, policy %s: got %v, %+v; want the same decisions", seed, names[int(seed)%len(names)], err, res.Difference)
			}
			runs++
			steps += res.Steps
			actions += res.Actions
		}
		closed += cam.closed
		if cam.overruled {
			overruled++
		}
		for o, n := range cam.outcomes {
			outcomes[o] += n
		}
	}
	t.Logf("%d recordings, %d steps, %d actions, outcomes %v, %d queues closed, %d runs with an overruled policy", runs, steps, actions, outcomes, closed, overruled)
	if steps < 10_000 || actions < 1000 || outcomes[sched.Refused] == 0 || outcomes[sched.Unsupported] == 0 || closed == 0 || overruled == 0 {
		t.Error("want recordings with more steps, actions and faults of each kind")
	}
}

// TestEveryPolicyKeepsItsState checks that the state of each policy that was written and
// read is written the same again: nothing of it was left out.
func TestEveryPolicyKeepsItsState(t *testing.T) {
	for i, name := range policy.Names() {
		cam := film(t, uint64(1000+i), name, 300*ms)
		s, _, _, err := begin(cam.recordings[0])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		again, err := Begin(s, "test")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := again.Take(); !bytes.HasPrefix(cam.recordings[0], got) {
			t.Errorf("%s: the state of %d bytes differs when it is read and written again", name, len(got))
		}
	}
}

// TestDifferenceIsFound changes an action of a recording: the replay must say where it
// decides differently.
func TestDifferenceIsFound(t *testing.T) {
	var recording []byte
	for seed := uint64(1); recording == nil; seed++ {
		for _, r := range film(t, seed, "rr", 500*ms).recordings {
			if res, err := Run(r); err == nil && res.Actions > 20 {
				recording = r
			}
		}
	}
	_, rest, _, err := begin(recording)
	if err != nil {
		t.Fatal(err)
	}
	changed := &Recording{out: bytes.Clone(recording[:len(recording)-len(rest)])}
	where := 0
	for n := 1; len(rest) > 0; n++ {
		var content []byte
		if content, rest, err = next(rest); err != nil {
			t.Fatal(err)
		}
		var st step
		d := decoder{rest: content}
		d.value(reflect.ValueOf(&st).Elem())
		if n > 3 && where == 0 && len(st.Actions) > 0 {
			where = n
			st.Actions[0].Level++
		}
		e := encoder{pointers: map[pointerKey]uint64{}}
		e.value(reflect.ValueOf(&st).Elem())
		changed.add(e.out)
	}
	res, err := Run(changed.out)
	if err != nil || res.Difference == nil || res.Difference.Step != where {
		t.Errorf("got %+v, %v; want a difference at step %d", res, err, where)
	}
}

// TestForeignRecordings checks recordings that are not complete, damaged, or of another
// program.
func TestForeignRecordings(t *testing.T) {
	recording := film(t, 7, "slo", 300*ms).recordings[0]
	if res, err := Run(recording); err != nil || res.Version != "test" {
		t.Fatalf("got %+v, %v", res, err)
	}
	for n := 0; n < len(recording); n += 1 + len(recording)/300 {
		if res, err := Run(recording[:n]); err == nil && res.Steps == 0 {
			t.Fatalf("the first %d bytes: got no error", n)
		}
		bad := bytes.Clone(recording)
		bad[n] ^= 0x10
		if _, err := Run(bad); err == nil {
			t.Fatalf("byte %d is wrong: got no error", n)
		}
	}
	var other Recording
	var head encoder
	head.text(magic)
	head.text("v9.9")
	head.text("0123456789abcdef")
	other.add(head.out)
	if _, err := Run(other.out); err == nil || !strings.Contains(err.Error(), `version "v9.9"`) {
		t.Errorf("got %v, want an error that names the version", err)
	}
}

// TestSmallFileForMuchMemory: a file of zeros, each of which stands for a struct, cannot take
// all memory.
func TestSmallFileForMuchMemory(t *testing.T) {
	const n = 9 << 20
	d := decoder{rest: append(binary.AppendUvarint(nil, n+1), make([]byte, n)...)}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var actions []sched.Action
	d.value(reflect.ValueOf(&actions).Elem())
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; !errors.Is(d.err, errDamaged) || took > maxDecoded {
		t.Errorf("%d bytes took %d MiB of memory, %v", n, took>>20, d.err)
	}
	small := decoder{rest: []byte{4, 0, 0, 0}}
	small.value(reflect.ValueOf(&actions).Elem())
	if small.err != nil || len(actions) != 3 {
		t.Errorf("got %d actions, %v", len(actions), small.err)
	}
}

// TestForeignPolicy checks that a policy that this program does not compute is refused when
// the recording begins, and not when it is replayed.
func TestForeignPolicy(t *testing.T) {
	s := sched.New(sched.Config{}, sched.PolicyChoice{Name: policy.ExternalName, Make: func() sched.Policy { return &mistaken{} }})
	if _, err := Begin(s, "test"); err == nil || !strings.Contains(err.Error(), "policy external cannot be replayed") {
		t.Errorf("got %v, want an error", err)
	}
}

// FuzzRun gives Run blocks with a right checksum and any content.
func FuzzRun(f *testing.F) {
	recording := film(f, 3, "giveway", 100*ms).recordings[0]
	head, rest, err := next(recording)
	if err != nil {
		f.Fatal(err)
	}
	state, rest, err := next(rest)
	if err != nil {
		f.Fatal(err)
	}
	first, _, err := next(rest)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(state, first, recording)
	f.Fuzz(func(t *testing.T, state, first, whole []byte) {
		var r Recording
		r.add(head)
		r.add(state)
		r.add(first)
		for _, b := range [][]byte{r.out, whole} {
			_, _ = Run(b) // it returns
		}
	})
}
