package daemon

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/config"
	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/pool"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/sched"
)

// poolBed is a daemon with the queue of an MPS server, and processes with the shim.
type poolBed struct {
	*testing.T
	d       *Daemon
	socket  string
	backend *fakeBackend
	server  proc.Process
	queue   hal.QueueHandle
}

func newPoolBed(t *testing.T) *poolBed {
	t.Helper()
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(newShim(), b)
	socket, _ := serve(t, d)
	server, _ := sleeper(t)
	return &poolBed{t, d, socket, b, server, b.mustOffer(t, server)}
}

// job starts a batch process that has a gate.
func (b *poolBed) job(attrs string) *shimProcess {
	b.Helper()
	p := startShim(b.T, b.socket, "cuda")
	p.set(b.T, b.d, attrs)
	return p
}

// pool makes processes the members of the server.
func (b *poolBed) pool(label string, members ...*shimProcess) {
	b.Helper()
	detail := hal.Detail{SharedBy: "mps", Pool: label}
	for _, m := range members {
		p, err := proc.Look(m.Process.Pid)
		if err != nil {
			b.Fatal(err)
		}
		detail.Members = append(detail.Members, p)
	}
	b.queue.SetDetail(detail)
}

func (b *poolBed) described(pid int) (out api.Process) {
	for _, p := range b.d.Processes() {
		if p.PID == pid {
			out = p
		}
	}
	return out
}

// scheduled returns how many queues the scheduler has, and the attributes of the pool's.
func (b *poolBed) scheduled() (queues int, pool sched.Attr) {
	b.d.events.inLoop(func() {
		for _, q := range b.d.sched.Queues(nil) {
			if queues++; q.ID == b.queue.ID() {
				pool = q.Attr
			}
		}
	})
	return queues, pool
}

// TestPoolIsOneQueue checks that the scheduler has one queue for the pool, of class batch
// and with the weights of all members, and that a member that leaves is a queue again.
func TestPoolIsOneQueue(t *testing.T) {
	b := newPoolBed(t)
	one, two := b.job("class=batch weight=3"), b.job("class=batch")
	if n, _ := b.scheduled(); n != 3 {
		t.Fatalf("before: got %d queues, want 3", n)
	}
	b.pool("night", one, two)
	if n, a := b.scheduled(); n != 1 || a.Class != sched.Batch || a.Weight != 4 {
		t.Errorf("got %d queues, the pool with %+v; want 1 of class batch and weight 4", n, a)
	}
	two.set(t, b.d, "weight=5")
	if _, a := b.scheduled(); a.Weight != 8 {
		t.Errorf("weight of a member changed: got %d for the pool, want 8", a.Weight)
	}
	if m := b.described(one.Process.Pid).Member; m == nil || m.Server != b.server.PID || m.Pool != "night" || m.Lost {
		t.Errorf("a member: got %+v", m)
	}
	if q := b.described(b.server.PID).Queues; len(q) != 1 || q[0].Pool != "night" || q[0].Shared != "mps" {
		t.Errorf("the server: got %+v", q)
	}
	b.pool("night", one)
	if n, a := b.scheduled(); n != 2 || a.Weight != 3 {
		t.Errorf("after one left: got %d queues, weight %d; want 2 and 3", n, a.Weight)
	}
}

// TestEmptyPoolIsIdle checks that a pool without members has no turns once it had members.
func TestEmptyPoolIsIdle(t *testing.T) {
	b := newPoolBed(t)
	ready := func() (is bool) {
		b.d.events.inLoop(func() {
			for _, q := range b.d.sched.Queues(nil) {
				is = is || q.ID == b.queue.ID() && q.Ready()
			}
		})
		return is
	}
	one := b.job("class=batch")
	b.pool("night")
	if !ready() {
		t.Error("before its first member, when members may be unknown: it is idle")
	}
	for range 2 {
		b.pool("night", one)
		if !ready() {
			t.Error("with a member: it is idle")
		}
		b.pool("night")
		if ready() {
			t.Error("after its last member: it is ready")
		}
	}
}

// TestPauseOfMember checks that one member is paused by its gate, for longer than the
// lease, and the other goes on; and that a member without a gate is not paused.
func TestPauseOfMember(t *testing.T) {
	b := newPoolBed(t)
	one, two := b.job("class=batch"), b.job("class=batch")
	b.pool("night", one, two)
	one.set(t, b.d, "paused=true")
	one.send("launch")
	two.send("launch")
	two.expect(t, "launched false")
	time.Sleep(time.Second)
	one.expectNothing(t)
	one.set(t, b.d, "paused=false")
	one.expect(t, "launched true")
	for attrs, want := range map[string]string{"class=online": "MPS server", "slo=5ms": "MPS server", "class=batch weight=2": "", "bound=4": ""} {
		_, err := b.d.Change(ourselves, one.Process.Pid, given(attrs))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", attrs, err, want)
		}
	}
	plain, _ := sleeper(t)
	b.queue.SetDetail(hal.Detail{SharedBy: "mps", Pool: "night", Members: []proc.Process{plain}})
	if _, err := b.d.Change(ourselves, plain.PID, given("paused=true")); err == nil || !strings.Contains(err.Error(), "no shim") {
		t.Errorf("pause without a gate: got %v", err)
	}
}

// TestOwnMPSServer checks that the class of a server that giveway does not own is not
// changed, and that its clients refuse attributes with an error that names it.
func TestOwnMPSServer(t *testing.T) {
	b := newPoolBed(t)
	one := b.job("class=batch weight=3")
	b.pool("", one)
	if _, a := b.scheduled(); a.Class != sched.Standard || a.Weight != 1 {
		t.Errorf("got %+v, want that it is left alone", a)
	}
	if _, err := b.d.Change(ourselves, one.Process.Pid, given("weight=2")); err == nil || !strings.Contains(err.Error(), "MPS server") {
		t.Errorf("set on a client: got %v", err)
	}
}

// TestServerOfPoolExits checks that members of a server that has exited are shown as such.
func TestServerOfPoolExits(t *testing.T) {
	b := newPoolBed(t)
	one := b.job("class=batch")
	b.pool("night", one)
	<-b.queue.Withdraw(true)
	p := b.described(one.Process.Pid)
	marked := slices.ContainsFunc(p.Ignored, func(i api.Ignored) bool { return i.Mark == "server exited" })
	if p.Member == nil || !p.Member.Lost || !marked {
		t.Errorf("got %+v, ignored %+v", p.Member, p.Ignored)
	}
	_ = one.Process.Kill()
	_ = one.Wait()
	eventually(t, "it is forgotten", func() bool { return b.described(one.Process.Pid).PID == 0 })
}

// TestPriorityInPool checks that the priority of a program in a pool is reported as ignored only
// where neither MPS nor the policy has it.
func TestPriorityInPool(t *testing.T) {
	b := newPoolBed(t)
	one := startShim(t, b.socket, "cuda")
	ignored := func(all []api.Ignored) bool {
		return slices.ContainsFunc(all, func(i api.Ignored) bool { return i.Name == "priority" })
	}
	for _, c := range []struct {
		run  string
		want bool // it is ignored
	}{
		{"class=batch pool=on priority=-1", false},
		{"class=batch pool=on priority=1", true},
		{"class=batch priority=-1", true},
	} {
		started, end, err := b.d.BeginRun(caller(os.Getpid()), api.Run{Values: attr.Must(c.run)})
		if err != nil {
			t.Fatal(err)
		}
		if got := ignored(started.Ignored); got != c.want {
			t.Errorf("%s: answer to the run: got ignored %v, want %v", c.run, got, c.want)
		}
		if strings.Contains(c.run, "pool") {
			b.pool("night", one)
			if got := ignored(b.described(one.Process.Pid).Ignored); got != c.want {
				t.Errorf("%s: description of the member: got ignored %v, want %v", c.run, got, c.want)
			}
			b.pool("night")
		}
		end()
	}
}

// TestOutsideThePool checks that a process which was to be in a pool and has a hardware
// queue of its own is marked. MPS does not report a wrong pipe folder.
func TestOutsideThePool(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	serve(t, d)
	p, _ := sleeper(t)
	b.mustOffer(t, p)
	me := caller(os.Getpid())
	marked := func() bool {
		for _, q := range d.Processes() {
			if q.PID == p.PID {
				return slices.ContainsFunc(q.Ignored, func(i api.Ignored) bool { return i.Name == "pool" && i.Mark == "outside the pool" })
			}
		}
		return false
	}
	if marked() {
		t.Error("without a run: it is marked")
	}
	_, end, err := d.BeginRun(me, api.Run{Values: attr.Must("class=batch pool=on")})
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	if !marked() {
		t.Error("it is not marked")
	}
	eventually(t, "a line of the log", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.processes[p.PID].pool.warned
	})
}

// TestOutsideThePoolByAuto checks that a process with pool=auto is marked if 'giveway run' started
// it in a pool and it is outside, and not if it could not be started there.
func TestOutsideThePoolByAuto(t *testing.T) {
	b := newFakeBackend(t.TempDir())
	d := newTestDaemon(b)
	d.cfg.StartedInPool = pool.Started
	serve(t, d)
	joined := []string{"GIVEWAY_POOL=night:/p/pipe", "CUDA_MPS_PIPE_DIRECTORY=/p/pipe"}
	pids := make(map[string]int)
	for name, env := range map[string][]string{
		"it could not be started there":   nil,
		"it changed the folder itself":    joined,
		"a shell started it with another": {"GIVEWAY_POOL=night:/p/pipe", "CUDA_MPS_PIPE_DIRECTORY=/misspelt"},
		"a shell started it without any":  {"GIVEWAY_POOL=night:/p/pipe"},
		"it is a client of the pool":      joined,
		"it is of another class":          joined,
	} {
		cmd := exec.Command("sleep", "600")
		cmd.Env = append(os.Environ(), env...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		p, err := proc.Look(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		pids[name] = p.PID
		if name == "it is a client of the pool" {
			server, _ := sleeper(t)
			b.mustOffer(t, server).SetDetail(hal.Detail{SharedBy: "mps", Pool: "night", Members: []proc.Process{p}})
		}
		b.mustOffer(t, p)
	}
	_, end, err := d.BeginRun(caller(os.Getpid()), api.Run{Values: attr.Must("class=batch pool=auto")})
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	if _, err := d.Change(ourselves, pids["it is of another class"], given("class=standard")); err != nil {
		t.Fatal(err)
	}
	outside := func(pid int) (marked, logged bool) {
		for _, q := range d.Processes() {
			if q.PID == pid {
				marked = slices.ContainsFunc(q.Ignored, func(i api.Ignored) bool { return i.Name == "pool" && i.Mark == "outside the pool" })
			}
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		return marked, d.processes[pid].pool.warned
	}
	for _, name := range []string{"it changed the folder itself", "a shell started it with another", "a shell started it without any"} {
		eventually(t, name+": a mark and a line of the log", func() bool {
			marked, logged := outside(pids[name])
			return marked && logged
		})
		delete(pids, name)
	}
	time.Sleep(2 * sweepInterval)
	for name, pid := range pids {
		if marked, logged := outside(pid); marked || logged {
			t.Errorf("%s: got marked %v, logged %v", name, marked, logged)
		}
	}
}

// complete makes the shim of a process report so many completed commands, and none in
// flight. Daemon.mu is held.
func complete(p *process, n uint64) {
	p.counters = sched.Counters{Known: true, Launched: n, Submitted: n, Completed: n}
}

// TestDeviceTimeOfMembers checks that the time of a pool is divided among the members that
// completed something.
func TestDeviceTimeOfMembers(t *testing.T) {
	b := newPoolBed(t)
	one, two := b.job("class=batch"), b.job("class=batch")
	b.pool("night", one, two)
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	q := b.queue.(*queue)
	first, second := b.d.processes[one.Process.Pid], b.d.processes[two.Process.Pid]
	start := q.servedAtEstimate
	divide := func(served time.Duration) {
		now := time.Now()
		b.d.divide(q, start+served, now, b.d.noteMembers([]*queue{q}, now))
	}
	was := [2]time.Duration{first.pool.served, second.pool.served}
	complete(first, 1)
	complete(second, 2)
	divide(8 * time.Second)
	complete(first, 3)
	divide(10 * time.Second)
	divide(12 * time.Second) // none completed anything
	if a, b := first.pool.served-was[0], second.pool.served-was[1]; a != 7*time.Second || b != 5*time.Second {
		t.Errorf("got %v and %v, want 7s and 5s", a, b)
	}
}

// TestDeviceTimeBetweenEstimates checks that what is shown of a member grows between two
// estimates as it did before, by which 'giveway ps' measures shares in 0.4 s, and never falls.
func TestDeviceTimeBetweenEstimates(t *testing.T) {
	b := newPoolBed(t)
	one, two := b.job("class=batch"), b.job("class=batch")
	b.pool("night", one, two)
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	q := b.queue.(*queue)
	m := &b.d.processes[one.Process.Pid].pool
	now := time.Now()
	estimate := func(after, served time.Duration) {
		now = now.Add(after)
		b.d.divide(q, q.servedAtEstimate+served, now, b.d.noteMembers([]*queue{q}, now))
	}
	complete(b.d.processes[one.Process.Pid], 0)
	complete(b.d.processes[two.Process.Pid], 0)
	estimate(0, 0)
	start := m.servedAt(now)
	for _, tt := range []struct {
		name            string
		estimate, later time.Duration // of the device time that the pool had; then the member is shown
		want            time.Duration
	}{
		{"nothing is known of before", 0, 400 * time.Millisecond, 0},
		{"an estimate", time.Second, 0, 500 * time.Millisecond},
		{"between two", 0, 400 * time.Millisecond, 700 * time.Millisecond},
		{"no estimate for long", 0, time.Minute, time.Second},
		{"it had less", 200 * time.Millisecond, 0, time.Second},
		{"it has more again", time.Second, 0, 1100 * time.Millisecond},
	} {
		if tt.estimate > 0 {
			estimate(time.Second, tt.estimate)
		}
		if got := m.servedAt(now.Add(tt.later)) - start; got < tt.want-time.Microsecond || got > tt.want+time.Microsecond {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
	b.d.processes[one.Process.Pid].leave(q)
	if got := m.servedAt(now.Add(time.Second)) - start; got != 1100*time.Millisecond {
		t.Errorf("after it left: got %v", got)
	}
}

// TestDeviceTimeOnTwoGPUs checks that a member which works on two GPUs gets the time of
// both, and the idle one none of either.
func TestDeviceTimeOnTwoGPUs(t *testing.T) {
	b := newPoolBed(t)
	other := b.backend.mustOffer(t, b.server)
	one, two := b.job("class=batch"), b.job("class=batch")
	b.pool("night", one, two)
	other.SetDetail(b.queue.(*queue).detail)
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	pools := []*queue{b.queue.(*queue), other.(*queue)}
	first, second := b.d.processes[one.Process.Pid], b.d.processes[two.Process.Pid]
	complete(first, 0)
	complete(second, 0)
	b.d.noteMembers(pools, time.Now())
	was := [2]time.Duration{first.pool.served, second.pool.served}
	complete(first, 1)
	worked := b.d.noteMembers(pools, time.Now())
	for _, q := range pools {
		b.d.divide(q, q.servedAtEstimate+2*time.Second, time.Now(), worked)
	}
	if a, b := first.pool.served-was[0], second.pool.served-was[1]; a != 4*time.Second || b != 0 {
		t.Errorf("got %v and %v, want 4s and 0s", a, b)
	}
}

// TestWeightOfIdleMembers checks that members without work do not raise the weight of the
// pool for those with work, and that the weight stays within the limit of the user.
func TestWeightOfIdleMembers(t *testing.T) {
	b := newPoolBed(t)
	one, two := b.job("class=batch weight=4"), b.job("class=batch weight=4")
	b.pool("night", one, two)
	q := b.queue.(*queue)
	expect := func(when string, want uint32, f func(first, second *process)) {
		t.Helper()
		b.d.mu.Lock()
		first, second := b.d.processes[one.Process.Pid], b.d.processes[two.Process.Pid]
		complete(first, 0) // so that the daemon knows that they have no work
		complete(second, 0)
		f(first, second)
		b.d.updatePoolWeight(q)
		b.d.mu.Unlock()
		if _, a := b.scheduled(); a.Weight != want {
			t.Errorf("%s: got weight %d, want %d", when, a.Weight, want)
		}
	}
	longAgo, ahead := time.Now().Add(-time.Hour), time.Now().Add(time.Hour) // of this test
	expect("both are busy", 8, func(first, second *process) { first.pool.busyAt, second.pool.busyAt = ahead, ahead })
	expect("one is idle", 4, func(_, second *process) { second.pool.busyAt = longAgo })
	expect("both are idle", 8, func(first, _ *process) { first.pool.busyAt = longAgo })
	expect("a limit", 5, func(first, second *process) {
		first.pool.busyAt, second.pool.busyAt = ahead, ahead
		q.process.limits.Ceiling = attr.Must("weight=5")
	})
	expect("a member above the limit by its rule", 4, func(*process, *process) { q.process.limits.Ceiling = attr.Must("weight=2") })
	b.d.mu.Lock()
	q.process.limits.Ceiling = attr.Values{}
	b.d.mu.Unlock()
	two.set(t, b.d, "paused=true")
	if _, a := b.scheduled(); a.Weight != 4 {
		t.Errorf("one is paused: got weight %d, want 4", a.Weight)
	}
}

// TestBusyMember checks when a member counts as busy.
func TestBusyMember(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		was, is sched.Counters
		busy    bool
	}{
		"no shim":   {busy: true},
		"idle":      {sched.Counters{Known: true, Completed: 3}, sched.Counters{Known: true, Launched: 3, Submitted: 3, Completed: 3}, false},
		"completed": {sched.Counters{Known: true, Completed: 3}, sched.Counters{Known: true, Launched: 4, Submitted: 4, Completed: 4}, true},
		"in flight": {sched.Counters{Known: true, Completed: 3}, sched.Counters{Known: true, Launched: 4, Submitted: 4, Completed: 3}, true},
	} {
		m := membership{done: tt.was.Completed}
		if m.note(tt.is, now); m.busyAt.Equal(now) != tt.busy {
			t.Errorf("%s: got busy at %v", name, m.busyAt)
		}
	}
}

// TestPoolByRule checks that the rule for the program decides with the run, also on the
// weight, and that a pool is for class batch.
func TestPoolByRule(t *testing.T) {
	conf, err := config.Parse("x.yaml", []byte("rules:\n- match: {command: \"python* train*\"}\n  class: batch\n  weight: 4\n  priority: -2\n  pool: auto\n- match: {command: other}\n  pool: on\n"))
	if err != nil {
		t.Fatal(err)
	}
	d := newShimDaemon()
	for _, tt := range []struct {
		command, run string
		want         attr.Mode
		weight       int64
		priority     int64
	}{
		{"giveway run --weight 2 -- python3 train.py", "weight=2", attr.ModeAuto, 2, -2},
		{"giveway run --priority 1 -- python3 train.py", "priority=1", attr.ModeAuto, 4, 1},
		{"giveway run --class online -- python3 train.py", "class=online", attr.ModeOff, 0, 0},
		{"giveway run --pool=off -- python3 train.py", "pool=off", attr.ModeOff, 0, 0},
		{"giveway run --pool -- python3 serve.py", "class=batch pool=on", attr.ModeOn, 1, 0},
		{"giveway run --class batch -- python3 serve.py", "class=batch", attr.ModeOff, 0, 0},
		{"giveway run --class idle -- other", "class=idle", attr.ModeOff, 0, 0},
	} {
		program, _ := d.attrsOf(&proc.Process{PID: 1, UID: uint32(os.Getuid()), Command: tt.command}, attr.Must(tt.run), &conf)
		got, weight, priority := poolOf(program)
		if got != tt.want || weight != tt.weight || priority != tt.priority {
			t.Errorf("%s: got %v with weight %d and priority %d, want %v with %d and %d", tt.command, got, weight, priority, tt.want, tt.weight, tt.priority)
		}
	}
}
