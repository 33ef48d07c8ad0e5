package daemon

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/sched"
)

// TestGateHoldsBatchWork: two processes have only their gates. The batch process waits at
// its gate while the online process has work.
func TestGateHoldsBatchWork(t *testing.T) {
	d := newShimDaemon()
	socket, stop := serve(t, d)
	online, batch := startShim(t, socket, "opencl"), startShim(t, socket, "opencl")
	online.set(t, d, "class=online")
	batch.set(t, d, "class=batch")
	q := batch.described(d).Queues
	if len(q) != 1 || q[0].Device != "opencl" || strings.Join(q[0].Can, " ") != "hold bound" {
		t.Fatalf("got queues %+v, want one on opencl that can be held and bounded", q)
	}
	if devices := d.Status().Devices; len(devices) != 1 || devices[0].Backend != "shim" {
		t.Errorf("got devices %+v, want one of backend shim", devices)
	}
	batch.send("launch")
	batch.expect(t, "launched false")
	for range 3 {
		online.send("launch")
		online.expect(t, "launched false")
		eventually(t, "batch work is held", func() bool { return batch.described(d).Queues[0].State == "stopped" })
		batch.send("launch")
		batch.expectNothing(t)
		online.send("done")
		batch.expect(t, "launched true")
		eventually(t, "batch work runs", func() bool { return batch.described(d).Queues[0].State == "running" })
	}
	if s := batch.described(d).Shim; s == nil || s.Launched != 4 || s.Holds != 3 || s.Runtime != "opencl" {
		t.Errorf("got %+v, want 4 launches and 3 holds on opencl", s)
	}
	// A gate that is closed for longer than its lease stays closed: the loop renews it.
	batch.set(t, d, "paused=true")
	eventually(t, "it is paused", func() bool { return batch.described(d).Queues[0].State == "stopped" })
	batch.send("launch")
	time.Sleep(time.Second)
	batch.expectNothing(t)
	begin := time.Now()
	stop()
	batch.expect(t, "launched true")
	t.Logf("the launch passed %v after the daemon began to stop", time.Since(begin))
}

// TestHintsOnThePage: a process sets its own attributes by hints. Invalid hints change
// nothing and are counted, and what its owner set overrides them.
func TestHintsOnThePage(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	p := startShim(t, socket, "hint")
	if got := p.described(d); len(got.Queues) != 0 {
		t.Errorf("before it uses a runtime: got %+v, want no queues", got)
	}
	p.send("use 6")
	eventually(t, "it has a queue", func() bool { return len(p.described(d).Queues) == 1 })
	if got := p.described(d).Queues[0].Device; got != "hip" {
		t.Errorf("got device %s, want hip", got)
	}
	scheduled := func() (a sched.Attr) {
		d.events.inLoop(func() {
			for _, q := range d.sched.Queues(nil) {
				a = q.Attr
			}
		})
		return a
	}
	soon := shimpage.Monotonic(time.Now().Add(time.Minute))
	for _, h := range []struct {
		kind  shimpage.HintKind
		value int64
		want  func(sched.Attr) bool
	}{
		{shimpage.HintClass, 1, func(a sched.Attr) bool { return a.Class == sched.Online }},
		{shimpage.HintPriority, -7, func(a sched.Attr) bool { return a.Priority == -7 }},
		{shimpage.HintWeight, 12, func(a sched.Attr) bool { return a.Weight == 12 }},
		{shimpage.HintDeadline, 1e6, func(a sched.Attr) bool { return a.Deadline == time.Millisecond }},
		{shimpage.HintLaxity, 2e6, func(a sched.Attr) bool { return a.Laxity == 2*time.Millisecond }},
		{shimpage.HintWork, 3e6, func(a sched.Attr) bool { return a.Work == 3*time.Millisecond }},
		{shimpage.HintSLO, 4e6, func(a sched.Attr) bool { return a.SLO == 4*time.Millisecond }},
		{shimpage.HintExpect, int64(soon), func(a sched.Attr) bool {
			left := a.Expect.Sub(d.Now())
			return left > 30*time.Second && left <= time.Minute
		}},
	} {
		p.send("hint %d %d", h.kind, h.value)
		eventually(t, fmt.Sprintf("hint %d is applied", h.kind), func() bool { return h.want(scheduled()) })
	}
	if got := p.described(d); got.Attrs.Source(attr.Class) != attr.FromHint || got.Attrs.Duration(attr.SLO) != 4*time.Millisecond {
		t.Errorf("got %+v, want slo 4ms and a class from a hint", got)
	}
	was := scheduled()
	bad := [][2]int64{{1, 4}, {1, -1}, {2, 1 << 40}, {3, 0}, {3, 10001}, {4, -1}, {5, 1 << 62}, {6, -5}, {7, 5}, {7, -1 << 63}, {8, -1}, {99, 0}}
	for _, h := range bad {
		p.send("hint %d %d", h[0], h[1])
	}
	eventually(t, "invalid hints are counted", func() bool { return p.described(d).Shim.Ignored == uint64(len(bad)) })
	if got := scheduled(); got != was {
		t.Errorf("after invalid hints: got %+v, want %+v", got, was)
	}
	p.set(t, d, "class=idle")
	p.send("hint 1 1")
	p.send("hint 2 5")
	eventually(t, "the second hint is applied", func() bool { return scheduled().Priority == 5 })
	if got := scheduled(); got.Class != sched.Idle {
		t.Errorf("after a hint against its owner: got class %v, want idle", got.Class)
	}
}

// TestRequests: a process reports requests on its page, its owner through the API.
func TestRequests(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	p := startShim(t, socket, "opencl")
	open := func() (n uint32) {
		d.events.inLoop(func() {
			for _, q := range d.sched.Queues(nil) {
				n = q.OpenRequests
			}
		})
		return n
	}
	reported := func() api.Requests {
		if r := p.described(d).Requests; r != nil {
			return *r
		}
		return api.Requests{}
	}
	p.send("begin")
	p.send("begin")
	eventually(t, "two requests are open", func() bool { return open() == 2 && reported().Open == 2 })
	p.send("end")
	eventually(t, "one request is finished", func() bool { return open() == 1 && reported().Count == 1 && reported().P99 > 0 })
	p.send("end")
	eventually(t, "both requests are finished", func() bool { return open() == 0 && reported().Count == 2 })

	c := client.New(socket)
	one := int64(1)
	if _, err := c.Hint(t.Context(), p.Process.Pid, api.Hint{Begin: &one, Values: attr.Must("expect=1m work=1m")}); err != nil {
		t.Fatal(err)
	}
	if open() != 1 {
		t.Errorf("got %d open requests, want 1", open())
	}
	p.send("watch")
	p.expect(t, "requests reported true")
	hints := attr.Must("idempotent=true deadline=1m laxity=1m")
	got, err := c.Hint(t.Context(), p.Process.Pid, api.Hint{End: &one, Values: hints})
	expect := got.Attrs.Duration(attr.Expect)
	got.Attrs.Replace(attr.Expect, int64(time.Minute))
	if givenTo(got) != hints.With(attr.Must("expect=1m work=1m")) || expect <= 0 || expect > time.Minute {
		t.Errorf("got %+v, want the attributes of both hints", got.Attrs.Given())
	}
	if err != nil || open() != 0 || got.Requests == nil || got.Requests.Count != 3 {
		t.Errorf("got %v, %d open, %+v, want 3 finished requests", err, open(), got.Requests)
	}
	if _, err := c.Hint(t.Context(), p.Process.Pid, api.Hint{End: &one}); err == nil {
		t.Error("a request could be ended twice")
	}
	if _, err := c.Hint(t.Context(), os.Getpid(), api.Hint{Values: attr.Must("work=1m")}); err == nil {
		t.Error("a hint for a process that uses no device was accepted")
	}
	// The open requests of a process that exits end with it.
	p.send("begin")
	eventually(t, "one request is open", func() bool { return open() == 1 })
	_ = p.Process.Kill()
	eventually(t, "the process is dropped", func() bool { return len(d.Processes()) == 0 })
}

// TestBound: a bound is on the page as soon as it is set, also zero, which is none.
// Without one a batch process has the default bound, and under a policy that stops processes
// of any class every process has.
func TestBound(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	p := startShim(t, socket, "opencl")
	p.send("bound")
	p.expect(t, "0 0")
	for _, c := range []struct{ policy, bound string }{{"wfq", "16 0"}, {"slo", "0 0"}} {
		if _, err := d.SetPolicy(ourselves, api.Policy{Name: c.policy}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the bound of a standard process under "+c.policy+" is "+c.bound, func() bool {
			p.send("bound")
			return <-p.output == c.bound
		})
	}
	p.set(t, d, "class=batch")
	p.send("bound")
	p.expect(t, "16 0")
	for _, n := range []uint32{32, 1, 0} {
		p.set(t, d, fmt.Sprint("bound=", n))
		p.send("bound")
		p.expect(t, fmt.Sprintf("%d 0", n))
	}
	p.set(t, d, "bound-batch=8")
	p.set(t, d, "bound=32")
	p.send("bound")
	p.expect(t, "32 8")
	if _, err := d.Change(ourselves, p.Process.Pid, api.Change{Values: attr.Bound.Of(1 << 20)}); err == nil {
		t.Error("a bound above the maximum was accepted")
	}
}

// TestOwnersHintReachesThePage: a hint through the API is written to the process's page.
func TestOwnersHintReachesThePage(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	p := startShim(t, socket, "cuda")
	p.send("settings")
	p.expect(t, "0 false")
	c := client.New(socket)
	if _, err := c.Hint(t.Context(), p.Process.Pid, api.Hint{Values: attr.Must("idempotent=true expect=1m")}); err != nil {
		t.Fatal(err)
	}
	p.send("settings")
	p.expect(t, "1 true")
}

// TestKilledProcessesAreDropped kills processes in various states: no record is left.
func TestKilledProcessesAreDropped(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	for _, last := range []string{"paused", "", "launch", "hint 1 1", "begin", "scribble 7", "fork"} {
		p := startShim(t, socket, "cuda")
		if last == "paused" {
			p.set(t, d, "paused=true")
			last = "launch"
		}
		p.send("%s", last)
		if last == "fork" {
			p.expect(t, "forked <nil>")
		}
		_ = p.Process.Kill()
		eventually(t, "a process that was killed is dropped", func() bool { return len(d.Processes()) == 0 })
		_ = p.Wait()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.processes) != 0 {
		t.Errorf("got %d records of processes, want 0", len(d.processes))
	}
}

// TestCorruptPageHarmsNoOtherProcess: a process writes random bytes to its page. The
// daemon goes on, and another process is not affected.
func TestCorruptPageHarmsNoOtherProcess(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	corrupt, other := startShim(t, socket, "opencl"), startShim(t, socket, "opencl")
	other.set(t, d, "class=online")
	for seed := range 50 {
		corrupt.send("scribble %d", seed)
		corrupt.expect(t, "scribbled")
		other.send("launch")
		other.expect(t, "launched false")
		other.send("done")
		if got := other.described(d); len(got.Queues) != 1 || got.Class() != "online" {
			t.Fatalf("seed %d: got %+v, want one queue of class online", seed, got)
		}
	}
	eventually(t, "all commands of the other process are counted", func() bool { return other.described(d).Shim.Completed == 50 })
	_ = corrupt.Process.Kill()
	eventually(t, "the killed process is dropped", func() bool { return len(d.Processes()) == 1 })
}

// TestGateOpensWhenDaemonIsKilled: a daemon is killed while it holds a process. The gate
// opens at the end of its lease.
func TestGateOpensWhenDaemonIsKilled(t *testing.T) {
	socket := filepath.Join(journalDir(t), "s")
	server := exec.Command(os.Args[0], socket)
	server.Env = append(os.Environ(), "DAEMON_TEST=server")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	c := client.New(socket)
	eventually(t, "the daemon answers", func() bool { _, err := c.Status(t.Context()); return err == nil })
	p := startShim(t, socket, "opencl")
	if _, err := c.Change(t.Context(), p.Process.Pid, given("paused=true")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is paused", func() bool {
		all, err := c.Processes(t.Context())
		return err == nil && len(all) == 1 && all[0].Queues[0].State == "stopped"
	})
	p.send("launch")
	p.expectNothing(t)
	_ = server.Process.Kill()
	begin := time.Now()
	p.expect(t, "launched true")
	t.Logf("the launch passed %v after the daemon was killed", time.Since(begin))
}

// TestShimConnections: a connection of another version is refused, a process has one page
// at a time, a connection that sends more is closed, and no descriptor is leaked.
func TestShimConnections(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	for _, abi := range []string{"", "0", fmt.Sprint(pageabi.Version + 1), "one", strings.Repeat("1", 1000)} {
		if _, _, err := connectShim(socket, abi, "cuda"); err == nil || !strings.Contains(err.Error(), "409") {
			t.Errorf("version %.10q: got %v, want status 409", abi, err)
		}
	}
	// All connections are of this process, so the last page is read.
	count := func() int {
		all, _ := os.ReadDir("/proc/self/fd")
		return len(all)
	}
	before := count()
	var conns []net.Conn
	var last *pagetest.Process
	for range 100 {
		c, p, err := connectShim(socket, "1", strings.Repeat("x", 100))
		if err != nil {
			t.Fatal(err)
		}
		if last != nil {
			_ = last.Close()
		}
		conns, last = append(conns, c), p
	}
	last.Page.Runtimes.Store(1)
	eventually(t, "the last page is read", func() bool { return len(d.Processes()) == 1 })
	held := count()
	for _, c := range conns[:50] {
		fmt.Fprint(c, "more")
	}
	eventually(t, "connections that send more are closed", func() bool { return count() <= held-50 })
	for _, c := range conns {
		c.Close()
	}
	_ = last.Close()
	eventually(t, "the process is dropped", func() bool { return len(d.Processes()) == 0 })
	eventually(t, "no descriptor is left", func() bool { return count() <= before+2 })
}
