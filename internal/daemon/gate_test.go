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
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/sched"
)

// TestGates: two programs of which nobody knows more than their shims tell. The
// batch one waits at its gate while the online one has work.
func TestGates(t *testing.T) {
	d := newHost()
	socket, stop := serve(t, d)
	online, batch := start(t, socket, "opencl"), start(t, socket, "opencl")
	online.set(t, d, "class=online")
	batch.set(t, d, "class=batch")
	q := batch.found(d).Queues
	if len(q) != 1 || q[0].Device != "opencl" || strings.Join(q[0].Can, " ") != "hold bound" {
		t.Fatalf("it has %+v", q)
	}
	if devices := d.Status().Devices; len(devices) != 1 || devices[0].Backend != "shim" {
		t.Errorf("devices: %+v", devices)
	}
	batch.do("launch")
	batch.hears(t, "launched false")
	for range 3 {
		online.do("launch")
		online.hears(t, "launched false")
		eventually(t, "batch is held", func() bool { return batch.found(d).Queues[0].State == "stopped" })
		batch.do("launch")
		batch.silent(t)
		online.do("done")
		batch.hears(t, "launched true")
		eventually(t, "batch runs", func() bool { return batch.found(d).Queues[0].State == "running" })
	}
	if s := batch.found(d).Shim; s == nil || s.Launched != 4 || s.Holds != 3 || s.Runtime != "opencl" {
		t.Errorf("it is told to be %+v", s)
	}
	// A gate that is kept closed for longer than its lease stays so.
	batch.set(t, d, "paused=true")
	eventually(t, "it is paused", func() bool { return batch.found(d).Queues[0].State == "stopped" })
	batch.do("launch")
	time.Sleep(time.Second)
	batch.silent(t)
	begin := time.Now()
	stop()
	batch.hears(t, "launched true")
	t.Logf("it went on %v after the daemon was told to end", time.Since(begin))
}

// TestHintsOnThePage: a program says what it is. What makes no sense is ignored, and
// its owner's word counts for more.
func TestHintsOnThePage(t *testing.T) {
	d := newHost()
	socket, _ := serve(t, d)
	p := start(t, socket, "hint")
	if got := p.found(d); len(got.Queues) != 0 {
		t.Errorf("a program that uses nothing yet has queues: %+v", got)
	}
	p.do("use 6")
	eventually(t, "it has a queue", func() bool { return len(p.found(d).Queues) == 1 })
	if got := p.found(d).Queues[0].Device; got != "hip" {
		t.Errorf("it is on %s", got)
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
		so    func(sched.Attr) bool
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
		p.do("hint %d %d", h.kind, h.value)
		eventually(t, fmt.Sprintf("hint %d counts", h.kind), func() bool { return h.so(scheduled()) })
	}
	if got := p.found(d); got.Attrs.Source(attr.Class) != attr.FromHint || got.Attrs.Duration(attr.SLO) != 4*time.Millisecond {
		t.Errorf("it is told to be %+v", got)
	}
	was := scheduled()
	bad := [][2]int64{{1, 4}, {1, -1}, {2, 1 << 40}, {3, 0}, {3, 10001}, {4, -1}, {5, 1 << 62}, {6, -5}, {7, 5}, {7, -1 << 63}, {8, -1}, {99, 0}}
	for _, h := range bad {
		p.do("hint %d %d", h[0], h[1])
	}
	eventually(t, "nonsense is counted", func() bool { return p.found(d).Shim.Ignored == uint64(len(bad)) })
	if got := scheduled(); got != was {
		t.Errorf("nonsense made %+v of %+v", got, was)
	}
	p.set(t, d, "class=idle")
	p.do("hint 1 1")
	p.do("hint 2 5")
	eventually(t, "the second hint counts", func() bool { return scheduled().Priority == 5 })
	if got := scheduled(); got.Class != sched.Idle {
		t.Errorf("a program that its owner set to idle made itself %v", got.Class)
	}
}

// TestRequests: requests that a program tells of, on its page or through the API.
func TestRequests(t *testing.T) {
	d := newHost()
	socket, _ := serve(t, d)
	p := start(t, socket, "opencl")
	open := func() (n uint32) {
		d.events.inLoop(func() {
			for _, q := range d.sched.Queues(nil) {
				n = q.OpenRequests
			}
		})
		return n
	}
	told := func() api.Requests {
		if r := p.found(d).Requests; r != nil {
			return *r
		}
		return api.Requests{}
	}
	p.do("begin")
	p.do("begin")
	eventually(t, "two are open", func() bool { return open() == 2 && told().Open == 2 })
	p.do("end")
	eventually(t, "one is over", func() bool { return open() == 1 && told().Count == 1 && told().P99 > 0 })
	p.do("end")
	eventually(t, "both are over", func() bool { return open() == 0 && told().Count == 2 })

	c := client.New(socket)
	one := int64(1)
	if _, err := c.Hint(t.Context(), p.Process.Pid, api.Hint{Begin: &one, Values: attr.Must("expect=1m work=1m")}); err != nil {
		t.Fatal(err)
	}
	if open() != 1 {
		t.Errorf("%d requests are open", open())
	}
	p.do("watch")
	p.hears(t, "told true")
	said := attr.Must("idempotent=true deadline=1m laxity=1m")
	got, err := c.Hint(t.Context(), p.Process.Pid, api.Hint{End: &one, Values: said})
	expect := got.Attrs.Duration(attr.Expect)
	got.Attrs.Replace(attr.Expect, int64(time.Minute))
	if got.Attrs.Given() != said.With(attr.Must("expect=1m work=1m")) || expect <= 0 || expect > time.Minute {
		t.Errorf("not all that was said is shown: %+v", got)
	}
	if err != nil || open() != 0 || got.Requests == nil || got.Requests.Count != 3 {
		t.Errorf("%v, %d open, %+v", err, open(), got.Requests)
	}
	if _, err := c.Hint(t.Context(), p.Process.Pid, api.Hint{End: &one}); err == nil {
		t.Error("a request ended twice")
	}
	if _, err := c.Hint(t.Context(), os.Getpid(), api.Hint{Values: attr.Must("work=1m")}); err == nil {
		t.Error("a process that uses no GPU gave a hint")
	}
	// Those of a program that dies are nobody's.
	p.do("begin")
	eventually(t, "one is open", func() bool { return open() == 1 })
	_ = p.Process.Kill()
	eventually(t, "it is forgotten", func() bool { return len(d.Processes()) == 0 })
}

// TestBound: a bound that is set counts at once, and so does that there is none.
// Where nobody says, batch work has the usual one.
func TestBound(t *testing.T) {
	d := newHost()
	socket, _ := serve(t, d)
	p := start(t, socket, "opencl")
	p.set(t, d, "class=batch")
	p.do("bound")
	p.hears(t, "16 0")
	for _, n := range []uint32{32, 1, 0} {
		p.set(t, d, fmt.Sprint("bound=", n))
		p.do("bound")
		p.hears(t, fmt.Sprintf("%d 0", n))
	}
	p.set(t, d, "bound-batch=8")
	p.set(t, d, "bound=32")
	p.do("bound")
	p.hears(t, "32 8")
	if _, err := d.Change(p.Process.Pid, api.Change{Values: attr.Bound.Of(1 << 20)}); err == nil {
		t.Error("a bound that makes no sense was taken")
	}
}

// TestOwnersWord: what an owner says of a program by the API the program is told.
func TestOwnersWord(t *testing.T) {
	d := newHost()
	socket, _ := serve(t, d)
	p := start(t, socket, "cuda")
	p.do("told")
	p.hears(t, "0 false")
	c := client.New(socket)
	if _, err := c.Hint(t.Context(), p.Process.Pid, api.Hint{Values: attr.Must("idempotent=true expect=1m")}); err != nil {
		t.Fatal(err)
	}
	p.do("told")
	p.hears(t, "1 true")
}

// TestDying: programs are killed at any point of their lives, and nothing of them
// stays.
func TestDying(t *testing.T) {
	d := newHost()
	socket, _ := serve(t, d)
	for _, last := range []string{"paused", "", "launch", "hint 1 1", "begin", "scribble 7", "breed"} {
		p := start(t, socket, "cuda")
		if last == "paused" {
			p.set(t, d, "paused=true")
			last = "launch"
		}
		p.do("%s", last)
		if last == "breed" {
			p.hears(t, "bred <nil>")
		}
		_ = p.Process.Kill()
		eventually(t, "a program that was killed is forgotten", func() bool { return len(d.Processes()) == 0 })
		_ = p.Wait()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.processes) != 0 {
		t.Errorf("%d processes are left", len(d.processes))
	}
}

// TestScribbling: a program that writes over its page harms nobody but itself.
func TestScribbling(t *testing.T) {
	d := newHost()
	socket, _ := serve(t, d)
	mad, sane := start(t, socket, "opencl"), start(t, socket, "opencl")
	sane.set(t, d, "class=online")
	for seed := range 50 {
		mad.do("scribble %d", seed)
		mad.hears(t, "scribbled")
		sane.do("launch")
		sane.hears(t, "launched false")
		sane.do("done")
		if got := sane.found(d); len(got.Queues) != 1 || got.Class() != "online" {
			t.Fatalf("seed %d: it is told to be %+v", seed, got)
		}
	}
	eventually(t, "all of the sane one is seen", func() bool { return sane.found(d).Shim.Completed == 50 })
	_ = mad.Process.Kill()
	eventually(t, "the mad one is forgotten", func() bool { return len(d.Processes()) == 1 })
}

// TestKilledHolding: when a daemon is killed while it holds a program, the program
// goes on when the lease is over.
func TestKilledHolding(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	host := exec.Command(os.Args[0], socket)
	host.Env = append(os.Environ(), "DAEMON_TEST=host")
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = host.Process.Kill(); _ = host.Wait() }()
	c := client.New(socket)
	eventually(t, "the daemon answers", func() bool { _, err := c.Status(t.Context()); return err == nil })
	p := start(t, socket, "opencl")
	if _, err := c.Change(t.Context(), p.Process.Pid, given("paused=true")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is paused", func() bool {
		all, err := c.Processes(t.Context())
		return err == nil && len(all) == 1 && all[0].Queues[0].State == "stopped"
	})
	p.do("launch")
	p.silent(t)
	_ = host.Process.Kill()
	begin := time.Now()
	p.hears(t, "launched true")
	t.Logf("it went on %v after the daemon was killed", time.Since(begin))
}

// TestHello: what is not a hello is refused, and what follows one ends the page.
func TestHello(t *testing.T) {
	d := newHost()
	socket, _ := serve(t, d)
	for _, abi := range []string{"", "0", "2", "one", strings.Repeat("1", 1000)} {
		if _, _, err := hello(socket, abi, "cuda"); err == nil || !strings.Contains(err.Error(), "409") {
			t.Errorf("version %.10q: %v", abi, err)
		}
	}
	// A flood of hellos: all are of this process, so the last one is heard.
	count := func() int {
		all, _ := os.ReadDir("/proc/self/fd")
		return len(all)
	}
	before := count()
	var conns []net.Conn
	var last *pagetest.Process
	for range 100 {
		c, p, err := hello(socket, "1", strings.Repeat("x", 100))
		if err != nil {
			t.Fatal(err)
		}
		if last != nil {
			_ = last.Close()
		}
		conns, last = append(conns, c), p
	}
	last.Page.Runtimes.Store(1)
	eventually(t, "the last one is heard", func() bool { return len(d.Processes()) == 1 })
	held := count()
	for _, c := range conns[:50] {
		fmt.Fprint(c, "more") // who is not silent is shown the door
	}
	eventually(t, "connections that send more are closed", func() bool { return count() <= held-50 })
	for _, c := range conns {
		c.Close()
	}
	_ = last.Close()
	eventually(t, "all are gone", func() bool { return len(d.Processes()) == 0 })
	eventually(t, "no descriptor is left", func() bool { return count() <= before+2 })
}
