package cluster

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// testWeights starts two pods that compete for the device of package queue, with weights 3 and
// 1, and compares the device time that they get.
func testWeights(t *testing.T) {
	pods := map[string]string{"heavy": "3", "light": "1"}
	for name, weight := range pods {
		p := pod{
			name: name, annotations: with("class", "batch", "weight", weight, "shim", "true"),
			containers: []container{{name: "main", mode: "work"}},
		}
		p.start(t)
	}
	served := func() map[string]time.Duration {
		all := map[string]time.Duration{}
		for name, p := range processes() {
			for _, q := range p.Queues {
				all[name] += q.Served
			}
		}
		return all
	}
	waitFor(t, "work of both pods", func() bool {
		s := served()
		return s["heavy"] > 200*time.Millisecond && s["light"] > 200*time.Millisecond
	})
	before := served()
	waitFor(t, "2 s of work of the light pod", func() bool { return served()["light"]-before["light"] > 2*time.Second })
	after := served()
	heavy, light := after["heavy"]-before["heavy"], after["light"]-before["light"]
	ratio := heavy.Seconds() / light.Seconds()
	t.Logf("served %v and %v: %.2f to 1", heavy.Round(time.Millisecond), light.Round(time.Millisecond), ratio)
	if ratio < 2 || ratio > 4.5 {
		t.Errorf("weights 3 and 1 gave %.2f to 1", ratio)
	}
}

var delayPods = flag.Int("pods", 20, "how many pods are started one after another to measure how long that takes")

// startDelays starts pods and returns how long each took from its creation to the first line
// of its program, and with annotations, to the answer that the program's class is idle.
func startDelays(t *testing.T, annotations map[string]string) (all, took []time.Duration) {
	t.Helper()
	for i := range *delayPods {
		p := pod{name: "timed-" + strconv.FormatInt(time.Now().UnixNano(), 36), annotations: annotations}
		began := time.Now()
		p.start(t)
		s, at := p.report(t, "main")
		all = append(all, at.Sub(began))
		if annotations != nil && (len(s.Processes) != 1 || s.Processes[0].Class != "idle") {
			t.Errorf("pod %d saw %+v at its start, want class idle", i, s.Processes)
		}
		took = append(took, s.Took)
		request("DELETE", podsPath+"/"+p.name, "", nil)
	}
	slices.Sort(all)
	slices.Sort(took)
	return all, took
}

// testDelay measures how long pods take to start and to have their class.
func (n *node) testDelay(t *testing.T) {
	skip, began := len(n.createTimes(t)), time.Now()
	all, took := startDelays(t, with("class", "idle", "shim", "true"))
	logDelays(t, "from creation of a pod to its program's class in force", all)
	logDelays(t, "from the program's start to the daemon's answer that it has its class", took)
	all, _ = startDelays(t, nil)
	logDelays(t, "from creation of a pod to its program's start, with Giveway", all)
	n.create = n.createTimes(t)[skip:]
	slices.Sort(n.create)
	logDelays(t, "containerd's call CreateContainer, with Giveway", n.create)
	hook := hookTimes(t, began)
	slices.Sort(hook)
	logDelays(t, "of that in the agent, with the daemon's answer", hook)
	if half := hook[len(hook)/2]; half > 25*time.Millisecond {
		t.Errorf("the agent takes %v for half of the containers", half)
	}
}

// createdLine is a line of the agent's log when it has handled a container's creation.
var createdLine = regexp.MustCompile(`time=(\S+) level=INFO msg="container created" .* took=(\S+)`)

// hookTimes returns how long the agent took for each container that was created since then.
func hookTimes(t *testing.T, since time.Time) (all []time.Duration) {
	t.Helper()
	files, err := filepath.Glob("/var/log/pods/" + namespace + "_" + namespace + "-agent-*/agent/*.log")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range createdLine.FindAllSubmatch(data, -1) {
			at, wrong := time.Parse(time.RFC3339Nano, string(m[1]))
			took, err := time.ParseDuration(string(m[2]))
			if err = errors.Join(err, wrong); err != nil {
				t.Fatal(err)
			}
			if !at.Before(since) {
				all = append(all, took)
			}
		}
	}
	return all
}

// createLine is a line of containerd's log at the beginning or the end of CreateContainer.
var createLine = regexp.MustCompile(`^time="([^"]+)" .*msg="CreateContainer within sandbox \\"(\w+)\\" for (?:container )?name:\\"([^"\\]+)\\"( returns)?`)

// createTimes returns how long containerd took to create each container, in which time it
// calls the agent.
func (n *node) createTimes(t *testing.T) (all []time.Duration) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(n.run, "containerd.log"))
	if err != nil {
		t.Fatal(err)
	}
	began := map[string]time.Time{}
	for l := range strings.Lines(string(data)) {
		m := createLine.FindStringSubmatch(l)
		if m == nil {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			t.Fatal(err)
		}
		if m[4] == "" {
			began[m[2]+m[3]] = at
		} else {
			all = append(all, at.Sub(began[m[2]+m[3]]))
		}
	}
	return all
}

func logDelays(t *testing.T, what string, all []time.Duration) {
	t.Helper()
	const unit = 100 * time.Microsecond
	t.Logf("%s: P50 %v, P99 %v, max %v over %d pods", what, all[len(all)/2].Round(unit), all[len(all)*99/100].Round(unit), all[len(all)-1].Round(unit), len(all))
}

// testUninstall removes Giveway under a running pod whose queue is at work. The pod works on,
// and later pods start without Giveway.
func (n *node) testUninstall(t *testing.T) {
	p := pod{name: "working", annotations: with("class", "batch", "shim", "true"), containers: []container{{name: "main", mode: "work"}}}
	before := p.start(t).Status.ContainerStatuses[0]
	waitFor(t, "work", func() bool { return len(p.lines("main")) > 3 })
	remove(t, namespace, manifests(t))
	waitFor(t, "end of agent and daemon", func() bool { return len(pidsOf(t, agentCommand))+len(pidsOf(t, daemonCommand)) == 0 })
	done := len(p.lines("main"))
	waitFor(t, "work without the daemon", func() bool { return len(p.lines("main")) > done+10 })
	if after := statusOf(podsPath + "/working").Status.ContainerStatuses[0]; after.ContainerID != before.ContainerID {
		t.Error("the running pod's container was restarted")
	}
	if a := (pod{name: "x", annotations: with("class", "none")}).dryRun(); !a.ok() {
		waitFor(t, "end of the policies", func() bool { return pod{name: "x", annotations: with("class", "none")}.dryRun().ok() })
	}
	skip := len(n.createTimes(t))
	all, _ := startDelays(t, nil)
	logDelays(t, "from creation of a pod to its program's start, without Giveway", all)
	without := n.createTimes(t)[skip:]
	slices.Sort(without)
	logDelays(t, "containerd's call CreateContainer, without Giveway", without)
	if n.create != nil && n.create[len(n.create)/2]-without[len(without)/2] > 50*time.Millisecond {
		t.Error("Giveway delays the start of half of the pods by more than 50 ms")
	}
}
