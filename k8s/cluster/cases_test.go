package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// runCases starts the node, installs Giveway and runs the cases in order: the last ones take
// the cluster apart.
func runCases(t *testing.T) {
	n := newNode(t)
	n.boot()
	began := time.Now()
	install(t)
	t.Logf("Giveway works %.1f s after it was installed", time.Since(began).Seconds())
	for _, c := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"annotation", testAnnotation},
		{"priority class", testPriorityClass},
		{"own annotation wins", testOwnAnnotation},
		{"refusals", testRefusals},
		{"deleted pod", testDeleted},
		{"class by container", testByContainer},
		{"injection", testInjection},
		{"shim in a program", testLoaded},
		{"claim", testClaim},
		{"rights of a pod", testRights},
		{"hostile annotations", testHostile},
		{"flooded socket", testFlood},
		{"weights", testWeights},
		{"churn", testChurn},
		{"requests", n.testRequests},
		{"agent restart", func(t *testing.T) { testRestart(t, func(t *testing.T) { killAndWait(t, agentCommand) }) }},
		{"daemon restart", func(t *testing.T) { testRestart(t, func(t *testing.T) { killAndWait(t, daemonCommand) }) }},
		{"containerd restart", func(t *testing.T) { testRestart(t, n.restart("containerd")) }},
		{"kubelet restart", func(t *testing.T) { testRestart(t, n.restart("kubelet")) }},
		{"agent hung", testHung},
		{"daemon hung", testDaemonHung},
		{"lost registration", testLost},
		{"not registered yet", testUnregistered},
		{"live change", n.testLiveChange},
		{"reboot", n.testReboot},
		{"delay", n.testDelay},
		{"uninstall", n.testUninstall},
		{"helm", n.testHelm},
	} {
		t.Run(c.name, c.run)
	}
}

// wantClass checks that a container had its class when its program started, and has it in the
// daemon's list.
func wantClass(t *testing.T, p pod, container, class string) {
	t.Helper()
	s, _ := p.report(t, container)
	if s.Error != "" || len(s.Processes) == 0 {
		t.Fatalf("pod %s/%s: processes %v, error %q", p.name, container, s.Processes, s.Error)
	}
	found := slices.ContainsFunc(s.Processes, func(q seenProcess) bool { return q == seenProcess{p.name, container, class, q.Weight} })
	if !found {
		t.Errorf("pod %s/%s saw the processes %+v at its start, want one of class %s", p.name, container, s.Processes, class)
	}
	if c, known := registered()[p.name+"/"+container]; !known {
		t.Errorf("pod %s/%s is not registered", p.name, container)
	} else if got := classOf(c); got != class {
		t.Errorf("pod %s/%s is registered with class %q, want %q", p.name, container, got, class)
	}
}

func testAnnotation(t *testing.T) {
	p := pod{name: "annotated", annotations: with("class", "idle", "shim", "true", "weight", "7")}
	p.start(t)
	wantClass(t, p, "main", "idle")
	if s, _ := p.report(t, "main"); s.Processes[0].Weight != 7 {
		t.Errorf("weight %d, want 7", s.Processes[0].Weight)
	}
}

func testPriorityClass(t *testing.T) {
	for priority, class := range map[string]string{"gpu-batch": "batch", "gpu-online": "online"} {
		p := pod{name: "by-" + priority, priority: priority, annotations: with("shim", "true")}
		if got := p.start(t).Metadata.Annotations["giveway.dev/class"]; got != class {
			t.Errorf("PriorityClass %s gives the annotation %q, want %q", priority, got, class)
		}
		wantClass(t, p, "main", class)
	}
}

func testOwnAnnotation(t *testing.T) {
	p := pod{name: "own", priority: "gpu-online", annotations: with("class", "idle", "shim", "true")}
	p.start(t)
	wantClass(t, p, "main", "idle")
}

func testRefusals(t *testing.T) {
	for _, c := range []struct {
		pod     pod
		message string // empty: accepted
	}{
		{pod{annotations: with("class", "fast")}, "is not one of"},
		{pod{annotations: with("class", "online")}, "needs a priorityClassName"},
		{pod{annotations: with("class", "online"), priority: "gpu-batch"}, "needs a priorityClassName"},
		{pod{annotations: with("class.container.main", "online")}, "needs a priorityClassName"},
		{pod{annotations: with("weight", "0")}, "giveway.dev/weight"},
		{pod{annotations: with("weight.container.main", "many")}, "giveway.dev/weight"},
		{pod{annotations: with("slo", "soon")}, "giveway.dev/slo"},
		{pod{annotations: with("slo.container.main", "20")}, "giveway.dev/slo"},
		{pod{annotations: with("shim", "yes")}, "giveway.dev/shim"},
		{pod{annotations: with("pool.container.main", "")}, "giveway.dev/pool"},
		{pod{annotations: with("clas", "batch")}, "is not known"},
		{pod{annotations: with("classes", "batch")}, "is not known"},
		{pod{annotations: with("class.container", "batch")}, "is not known"},
		{pod{annotations: with("priority.container.main", "1")}, "is not known"},
		{pod{annotations: with("class.container.mian", "batch")}, "names a container that the pod does not have"},
		{pod{annotations: with("class", "online"), priority: "gpu-online"}, ""},
		{pod{annotations: with("class", "batch", "weight", "10000", "slo", "1.5ms")}, ""},
		{pod{annotations: with("class.container.main", "idle", "weight.container.main", "3", "slo.container.main", "20ms", "shim", "true", "pool", "false")}, ""},
		{pod{annotations: map[string]string{"example.test/giveway.dev": "fast"}}, ""},
		{pod{}, ""},
	} {
		c.pod.name = "checked"
		if a := c.pod.dryRun(); a.ok() != (c.message == "") || !strings.Contains(a.body, c.message) {
			t.Errorf("annotations %v, PriorityClass %q: status %d, want %q in %s", c.pod.annotations, c.pod.priority, a.status, c.message, a.body)
		}
	}
}

func testDeleted(t *testing.T) {
	p := pod{name: "deleted", annotations: with("class", "batch")}
	p.start(t)
	if _, known := registered()["deleted/main"]; !known {
		t.Fatal("the pod runs and is not registered")
	}
	p.remove(t)
	began := time.Now()
	waitFor(t, "removal of the container", func() bool {
		all := registered()
		_, known := all["deleted/main"]
		return all != nil && !known
	})
	t.Logf("removed %v after the pod was gone", time.Since(began).Round(time.Millisecond))
}

func testByContainer(t *testing.T) {
	p := pod{
		name: "several", annotations: with("class", "batch", "class.container.low", "idle", "shim", "true"),
		containers: []container{{name: "main", mode: "report"}, {name: "low", mode: "report"}},
	}
	p.start(t)
	wantClass(t, p, "main", "batch")
	wantClass(t, p, "low", "idle")
}

func testInjection(t *testing.T) {
	const allocator, library = "/lib/allocator.so", "/opt/giveway/libgiveway.so"
	p := pod{
		name: "injected", annotations: with("shim", "true"),
		containers: []container{{name: "main", mode: "report", env: map[string]string{"LD_PRELOAD": allocator}}},
	}
	p.start(t)
	s, _ := p.report(t, "main")
	if s.Preload != allocator+":"+library || !s.LibraryThere || !strings.Contains(s.Write, "read-only") {
		t.Errorf("LD_PRELOAD %q, shim is there: %v, writing: %q", s.Preload, s.LibraryThere, s.Write)
	}
	plain := pod{name: "plain"}
	plain.start(t)
	if s, _ := plain.report(t, "main"); s.Preload != "" || s.LibraryThere || s.Socket != "" {
		t.Errorf("a pod that did not ask has LD_PRELOAD %q, socket %q, shim: %v", s.Preload, s.Socket, s.LibraryThere)
	}
}

// testLoaded runs a program of the node, which is linked dynamically, with the shim.
func testLoaded(t *testing.T) {
	p := pod{
		name: "loaded", annotations: with("shim", "true"),
		containers: []container{{name: "main", command: []string{"/usr/bin/sh", "-c", "/usr/bin/cat /proc/self/maps; exec /usr/bin/sleep 1000"}}},
	}
	p.start(t)
	waitFor(t, "the program's memory", func() bool { return len(p.lines("main")) > 5 })
	if !slices.ContainsFunc(p.lines("main"), func(l line) bool { return strings.HasSuffix(l.text, " /opt/giveway/libgiveway.so") }) {
		t.Errorf("the shim is not in the program's memory: %v", p.lines("main"))
	}
}

// testClaim gives a container the variable that a DRA driver sets. Class online is not taken
// from it, because a pod could set it too.
func testClaim(t *testing.T) {
	for claimed, want := range map[string]string{"batch": "batch", "online": "standard"} {
		p := pod{name: "claim-" + claimed, annotations: with("shim", "true"), containers: []container{{name: "main", mode: "report", env: map[string]string{
			"GIVEWAY_GPU_PRIORITY": `{"apiVersion": "giveway.dev/v1", "kind": "GPUPriority", "class": "` + claimed + `"}`,
		}}}}
		p.start(t)
		if s, _ := p.report(t, "main"); len(s.Processes) != 1 || s.Processes[0].Class != want {
			t.Errorf("a claim of class %s: processes %+v, want class %s", claimed, s.Processes, want)
		}
	}
}

func testRights(t *testing.T) {
	other := pod{name: "other", priority: "gpu-online", annotations: with("shim", "true")}
	other.start(t)
	other.report(t, "main")
	p := pod{name: "asking", annotations: with("class", "batch", "shim", "true")}
	p.start(t)
	s, _ := p.report(t, "main")
	for _, q := range s.Processes {
		if q.Pod != p.name {
			t.Errorf("pod %s sees a process of pod %q", p.name, q.Pod)
		}
	}
	if len(s.Processes) != 1 || s.Raise == "" || s.Other == "" || s.Containers == "" {
		t.Errorf("processes %v; raising the class: %q, registering a container: %q, listing containers: %q; want all refused", s.Processes, s.Raise, s.Other, s.Containers)
	}
	if got := processes()[p.name].Attrs.Class().String(); got != "batch" {
		t.Errorf("class %s after the pod tried to raise it, want batch", got)
	}
}

// testHostile starts a pod with as many bytes of annotations as Kubernetes takes. The policy
// refuses them; the agent, where there is no policy, leaves out what it does not understand.
func testHostile(t *testing.T) {
	p := pod{name: "hostile", annotations: with("class", "batch", "shim", "true", "pool", "\x1b[31m\n\u202e", "unknown", strings.Repeat("x", 100<<10))}
	p.annotations["example.test/large"] = strings.Repeat("\x00\"", 60<<10)
	if p.dryRun().ok() {
		t.Error("the policy admits a pod with unknown annotations")
	}
	binding := objectOf(t, "ValidatingAdmissionPolicyBinding")
	remove(t, namespace, binding)
	t.Cleanup(func() {
		apply(t, namespace, binding)
		waitFor(t, "the policy", func() bool { return !p.dryRun().ok() })
	})
	waitFor(t, "end of the policy", func() bool { return p.dryRun().ok() })
	p.start(t)
	wantClass(t, p, "main", "batch")
	next := pod{name: "next", annotations: with("class", "idle", "shim", "true")}
	next.start(t)
	wantClass(t, next, "main", "idle")
}

// testFlood runs a pod that opens as many connections to the control socket as it can, asks on
// each, and never reads the answers. Other pods start and have their class from their first
// moment in the daemon's list, which may come later than usual.
func testFlood(t *testing.T) {
	flood := pod{name: "flood", annotations: with("class", "batch", "shim", "true"), containers: []container{{name: "main", mode: "flood"}}}
	flood.start(t)
	waitFor(t, "the flood", func() bool { return len(flood.lines("main")) > 0 })
	for _, name := range []string{"beside-1", "beside-2", "beside-3"} {
		p := pod{name: name, annotations: with("class", "idle", "shim", "true")}
		p.start(t)
		wantClass(t, p, "main", "idle")
		s, _ := p.report(t, "main")
		t.Logf("pod %s was listed %v after its start", name, s.Took.Round(time.Millisecond))
	}
	t.Logf("the flood had %s connections", flood.lines("main")[0].text)
}
