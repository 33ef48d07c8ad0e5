package daemon

import (
	"strings"
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/record"
	"github.com/giveway/giveway/internal/server"
)

// Ids of containers, and a pod's UID.
var (
	first  = strings.Repeat("1", 64)
	second = strings.Repeat("2", 64)
	outer  = strings.Repeat("e", 64)
)

const podOne, podTwo = "2f1b7a04-5c1e-4a53-9d3b-8a7a6f0c1d2e", "00000000-5c1e-4a53-9d3b-8a7a6f0c1d2e"

func container(id, pod, attrs string) api.Container {
	return api.Container{ID: id, PodUID: pod, Values: attr.Must(attrs), ContainerNames: api.ContainerNames{Name: "main", Pod: "pod-" + pod[:1], Namespace: "ml"}}
}

// newPodDaemon returns a daemon with which containers can be registered.
func newPodDaemon(t *testing.T) (*Daemon, *fakeBackend, *slowProc) {
	t.Helper()
	d, b, s := newSlowDaemon(t)
	d.cfg.File.Agent = "/run/giveway-agent/agent.sock"
	return d, b, s
}

// inContainer offers a process of root in containers, from the outermost to the innermost.
func inContainer(t *testing.T, b *fakeBackend, s *slowProc, pid int, containers ...string) {
	t.Helper()
	b.mustOffer(t, s.add(proc.Process{PID: pid, Start: uint64(pid), Parent: 1, Containers: strings.Join(containers, "/")}))
}

func mustRegister(t *testing.T, d *Daemon, c api.Container) {
	t.Helper()
	if err := d.Register(c); err != nil {
		t.Fatal(err)
	}
}

// TestContainerGivesAttributes: the processes of a registered container have its attributes
// from their first moment on, also if they are found before the container is registered; and
// no longer when it is removed.
func TestContainerGivesAttributes(t *testing.T) {
	d, b, s := newPodDaemon(t)
	defer runDaemon(t, d)()
	inContainer(t, b, s, 10_001, first)
	mustRegister(t, d, container(first, podOne, "class=batch weight=3"))
	inContainer(t, b, s, 10_002, outer, first)
	inContainer(t, b, s, 10_003, second)
	for pid, want := range map[int]string{10_001: "batch", 10_002: "batch", 10_003: "standard"} {
		if got := classOf(d, pid); got != want {
			t.Errorf("process %d: got class %s, want %s", pid, got, want)
		}
	}
	for _, p := range d.Processes() {
		if inside := p.PID != 10_003; inside != (p.ContainerNames == api.ContainerNames{Name: "main", Pod: "pod-2", Namespace: "ml"}) || inside != (p.Pod == podOne) {
			t.Errorf("process %d: got %+v in pod %s", p.PID, p.ContainerNames, p.Pod)
		}
	}
	mustRegister(t, d, container(first, podOne, "class=idle"))
	if got := classOf(d, 10_001); got != "idle" {
		t.Errorf("registered again: got class %s, want idle", got)
	}
	d.Unregister(first)
	if got := classOf(d, 10_001); got != "standard" || len(d.Containers()) != 0 {
		t.Errorf("removed: got class %s and %d containers, want standard and none", got, len(d.Containers()))
	}
}

// TestOutermostContainerCounts: a process that makes a cgroup with the id of another
// container inside its own stays what it is.
func TestOutermostContainerCounts(t *testing.T) {
	d, b, s := newPodDaemon(t)
	defer runDaemon(t, d)()
	mustRegister(t, d, container(first, podOne, "class=online"))
	mustRegister(t, d, container(second, podTwo, "class=idle"))
	inContainer(t, b, s, 10_001, second, first)
	if got := classOf(d, 10_001); got != "idle" || d.podOf(second+"/"+first) != podTwo {
		t.Errorf("got class %s in pod %s, want idle in %s", got, d.podOf(second+"/"+first), podTwo)
	}
}

// TestPodsStayWithinWhatTheyWereGiven: a process in a pod may ask for less than its container
// was given and not for more, and changes no process of another pod, although both are
// root's. Root outside may do both.
func TestPodsStayWithinWhatTheyWereGiven(t *testing.T) {
	d, b, s := newPodDaemon(t)
	defer runDaemon(t, d)()
	mustRegister(t, d, container(first, podOne, "class=batch weight=3"))
	mustRegister(t, d, container(second, podTwo, ""))
	inContainer(t, b, s, 10_001, first)
	inContainer(t, b, s, 10_002, second)
	one, two := server.Caller{PID: 10_001, Pod: podOne}, server.Caller{PID: 10_002, Pod: podTwo}
	for _, c := range []struct {
		by    server.Caller
		pid   int
		attrs string
		want  string // part of the error
	}{
		{one, 10_001, "weight=2", ""},
		{one, 10_001, "class=idle", ""},
		{one, 10_001, "class=batch", ""},
		{one, 10_001, "class=online", "exceeds what the pod was given"},
		{one, 10_001, "weight=4", "exceeds what the pod was given"},
		{one, 10_002, "class=idle", "belongs to another"},
		{two, 10_002, "class=online", "exceeds what the pod was given"},
		{two, 10_002, "priority=1", "exceeds what the pod was given"},
		{two, 10_001, "class=idle", "belongs to another"},
		{ourselves, 10_002, "class=online", ""},
	} {
		_, err := d.Change(c.by, c.pid, given(c.attrs))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s of process %d by pod %.4s: got %v, want %q", c.attrs, c.pid, c.by.Pod, err, c.want)
		}
	}
	if _, err := d.Hint(one, 10_001, api.Hint{Values: attr.Must("class=online")}); err != nil || classOf(d, 10_001) != "batch" {
		t.Errorf("hint: got %v and class %s, want batch", err, classOf(d, 10_001))
	}
}

// TestRulesByName: rules can name pods, namespaces and containers. Of what a rule and the
// container give, the lesser counts: users choose annotations, the administrator rules.
func TestRulesByName(t *testing.T) {
	d, b, s := newLimitedDaemon(t, "rules: [{match: {namespace: ml, pod: 'pod-*', container: main}, class: batch, weight: 5}]")
	defer runDaemon(t, d)()
	mustRegister(t, d, container(first, podOne, "class=online slo=5ms"))
	inContainer(t, b, s, 10_001, first)
	inContainer(t, b, s, 10_002, second)
	p := d.processes[10_001]
	if got, want := p.attrs.Given(), attr.Must("class=batch weight=5 slo=5ms"); got != want || classOf(d, 10_002) != "standard" {
		t.Errorf("got %v and class %s, want %v, and standard for the process outside", got, classOf(d, 10_002), want)
	}
	mustRegister(t, d, container(first, podOne, "class=idle"))
	if got := classOf(d, 10_001); got != "idle" {
		t.Errorf("less than the rule: got class %s, want idle", got)
	}
}

// TestMachineInAContainer: where the daemon's machine is a container itself, that one is no
// pod: all processes are in it.
func TestMachineInAContainer(t *testing.T) {
	d, _, _ := newPodDaemon(t)
	d.inside = outer
	for path, want := range map[string]string{"": "", outer: "", first: first, outer + "/" + first: first, first + "/" + second: first} {
		if got := d.podOf(path); got != want {
			t.Errorf("containers %.70q: got pod %.4q, want %.4q", path, got, want)
		}
	}
	d.cfg.File.Agent = ""
	if got := d.podOf(first); got != "" {
		t.Errorf("without an agent: got pod %q, want none", got)
	}
}

// TestUnregisteredContainers: a container that the agent has not registered yet is a pod of
// its own: its processes change none outside, and ask for no more than the default.
func TestUnregisteredContainers(t *testing.T) {
	d, b, s := newPodDaemon(t)
	defer runDaemon(t, d)()
	inContainer(t, b, s, 10_001, first)
	inContainer(t, b, s, 10_002, second)
	b.mustOffer(t, s.add(proc.Process{PID: 10_003, Start: 10_003, Parent: 1}))
	one := server.Caller{PID: 10_001, Pod: d.podOf(first)}
	for pid, ok := range map[int]bool{10_001: true, 10_002: false, 10_003: false} {
		if _, err := d.Change(one, pid, given("class=idle")); (err == nil) != ok {
			t.Errorf("process %d: got %v, allowed %v", pid, err, ok)
		}
	}
	if _, err := d.Change(one, 10_001, given("class=online")); err == nil {
		t.Error("class online: got no error")
	}
	if _, err := d.Change(server.Caller{PID: 10_003}, 10_001, given("class=idle")); err == nil {
		t.Error("the same uid outside of the container: got no error")
	}
}

// TestTreesInPods: giveway set --tree and giveway run in a pod apply to the pod's processes,
// whatever user they change to, and to no others.
func TestTreesInPods(t *testing.T) {
	d, b, s := newPodDaemon(t)
	defer runDaemon(t, d)()
	mustRegister(t, d, container(first, podOne, ""))
	s.add(proc.Process{PID: 10_000, Start: 10_000, Parent: 1, Containers: first})
	b.mustOffer(t, s.add(proc.Process{PID: 10_001, Start: 10_001, Parent: 10_000, UID: alice, GID: alice, Containers: first}))
	b.mustOffer(t, s.add(proc.Process{PID: 10_002, Start: 10_002, Parent: 10_000, Containers: second}))
	if _, err := d.Change(server.Caller{PID: 10_000, Pod: podOne}, 10_000, tree("class=batch")); err != nil {
		t.Fatal(err)
	}
	if got := classOf(d, 10_001) + " " + classOf(d, 10_002); got != "batch standard" {
		t.Errorf("got classes %s, want batch standard", got)
	}
	if _, _, err := d.BeginRun(server.Caller{PID: 10_002, Pod: podOne}, api.Run{Values: attr.Must("class=idle")}); err == nil {
		t.Error("a run of a process in another pod: got no error")
	}
}

// TestContainersSurviveARestart: the next daemon knows the containers before it finds a
// process. One without an agent drops them.
func TestContainersSurviveARestart(t *testing.T) {
	dir := journalDir(t)
	agent := "/run/giveway-agent/agent.sock"
	run := func(f func(*Daemon)) {
		d := newTestDaemon(newFakeBackend(dir))
		d.cfg.Journal, d.cfg.File.Agent = openJournal(dir), agent
		stop := runDaemon(t, d)
		f(d)
		stop()
	}
	run(func(d *Daemon) {
		mustRegister(t, d, container(first, podOne, "class=batch slo=0"))
		mustRegister(t, d, container(second, podTwo, ""))
		d.Unregister(second)
	})
	run(func(d *Daemon) {
		if all := d.Containers(); len(all) != 1 || all[0] != container(first, podOne, "class=batch slo=0") {
			t.Errorf("got %+v, want the first container", all)
		}
	})
	agent = ""
	run(func(d *Daemon) {
		if all := d.Containers(); len(all) != 0 {
			t.Errorf("without an agent: got %+v, want none", all)
		}
		p := proc.Process{UID: 1000, GID: 1000, Containers: first}
		if !d.mayChange(server.Caller{UID: 1000, GID: 1000, Account: 1000}, &p) {
			t.Error("without an agent: the owner of a process in a container may not change it")
		}
	})
	agent = "/run/giveway-agent/agent.sock"
	run(func(d *Daemon) {
		if all := d.Containers(); len(all) != 0 {
			t.Errorf("with an agent again: got %+v, want none until it registers them", all)
		}
	})
}

// TestRegistryIsBounded: what is not a container is refused, and so are too many.
func TestRegistryIsBounded(t *testing.T) {
	d, _, _ := newSlowDaemon(t)
	for name, c := range map[string]api.Container{
		"short id":     {ID: "abc"},
		"name":         {ID: first, ContainerNames: api.ContainerNames{Name: "a\x1b[2J"}},
		"long name":    {ID: first, ContainerNames: api.ContainerNames{Pod: strings.Repeat("a", 300)}},
		"html":         {ID: first, ContainerNames: api.ContainerNames{Namespace: "<b>"}},
		"uid":          {ID: first, PodUID: "x/y"},
		"not by rule":  {ID: first, Values: attr.Must("paused=true")},
		"out of range": {ID: first, Values: attr.Weight.Of(-1)},
		"not hex":      {ID: strings.Repeat("G", 64)},
	} {
		if err := d.Register(c); err == nil {
			t.Errorf("%s: registered", name)
		}
	}
	all := containers{}
	for i := range maxContainers {
		id := strings.Repeat("0", 60) + string("0123456789abcdef"[i>>12&15]) + string("0123456789abcdef"[i>>8&15]) + string("0123456789abcdef"[i>>4&15]) + string("0123456789abcdef"[i&15])
		all[id] = &api.Container{ID: id}
	}
	d.containers.Store(&all)
	if err := d.Register(container(first, podOne, "")); err == nil || len(all) != maxContainers {
		t.Errorf("%d containers and one more: registered", len(all))
	}
}

// TestRecordHasThePod: entries about a process in a registered container have its pod, so that the server
// hides them from users with the same uid outside.
func TestRecordHasThePod(t *testing.T) {
	d, b, s := newPodDaemon(t)
	defer runDaemon(t, d)()
	mustRegister(t, d, container(first, podOne, "class=online"))
	inContainer(t, b, s, 10, first)
	d.mu.Lock()
	d.recorder.request(d.processes[10], 5, 7)
	d.mu.Unlock()
	d.settle()
	kinds := map[record.Kind]int{}
	d.Record().AppendRecord(nil, record.Query{Kinds: record.All, Limit: 1000}, func(e *record.Entry) bool {
		if e.PID == 10 && (e.Kind == record.State || e.Kind == record.Request) {
			if kinds[e.Kind]++; e.Pod != podOne {
				t.Errorf("entry of kind %v: got pod %q, want %q", e.Kind, e.Pod, podOne)
			}
		}
		return false
	})
	if kinds[record.State] == 0 || kinds[record.Request] == 0 {
		t.Errorf("got %v entries, want states and requests", kinds)
	}
}
