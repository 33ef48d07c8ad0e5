package cluster

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/sched"
)

// annotate changes annotations of a pod, as kubectl annotate does; nil removes one.
func (p pod) annotate(changes map[string]any) answer {
	return request("PATCH", podsPath+"/"+p.name, "application/merge-patch+json", encode(map[string]any{"metadata": map[string]any{"annotations": changes}}))
}

// wantChange annotates a pod and waits until its container is registered with a class.
func (p pod) wantChange(t *testing.T, key string, value any, class string) {
	t.Helper()
	began := time.Now()
	if a := p.annotate(map[string]any{"giveway.dev/" + key: value}); !a.ok() {
		t.Fatalf("annotate: status %d: %s", a.status, a.body)
	}
	waitFor(t, "class "+class, func() bool {
		c := registered()[p.name+"/main"]
		return c.ID != "" && classOf(c) == class
	})
	t.Logf("%s=%v: class %q %v later", key, value, class, time.Since(began).Round(time.Millisecond))
}

// testLiveChange changes annotations of a running pod, first without the watch, which has no
// effect, then with it.
func (n *node) testLiveChange(t *testing.T) {
	n.t = t
	p := pod{name: "live", annotations: with("class", "batch", "shim", "true")}
	p.start(t)
	wantClass(t, p, "main", "batch")
	if agentHasToken(t) {
		t.Error("the agent has a token without the watch")
	}
	if a := p.annotate(map[string]any{"giveway.dev/class": "idle"}); !a.ok() {
		t.Fatalf("annotate: status %d: %s", a.status, a.body)
	}
	waitForNewClass(t) // what the agent hears of it would have reached the daemon before
	if got := classOf(registered()["live/main"]); got != "batch" {
		t.Errorf("without the watch the class became %s", got)
	}
	n.startWatch(t)
	waitFor(t, "the change from before", func() bool { return classOf(registered()["live/main"]) == "idle" })
	p.wantChange(t, "class", "batch", "batch")
	if a := p.annotate(map[string]any{"giveway.dev/class": "online"}); a.ok() {
		t.Error("the policy admits a change to class online")
	}
	p.wantChange(t, "class.container.main", "idle", "idle")
	p.wantChange(t, "class.container.main", nil, "batch")
	checkSet(t, p)
	p.wantChange(t, "class", nil, "")
	p.wantChange(t, "class", "idle", "idle")

	before := registered()["live/main"].ID
	if err := syscall.Kill(processes()["live"].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the container's next life", func() bool {
		c := registered()["live/main"]
		return c.ID != before && classOf(c) == "idle"
	})

	n.stop("kube-apiserver", syscall.SIGKILL) // it would wait a minute for those that watch
	n.start("kube-apiserver")
	waitFor(t, "API server", func() bool { return request("GET", "/readyz", "", nil).body == "ok" })
	p.wantChange(t, "class", "batch", "batch")
	n.checkWatches(t)
}

// startWatch lets the agent watch the API server until the end of the test.
func (n *node) startWatch(t *testing.T) {
	t.Helper()
	data, err := os.ReadFile("../../deploy/kubernetes/giveway-watch.yaml")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, namespace, string(data))
	t.Cleanup(func() {
		apply(t, namespace, manifests(t))
		for _, m := range split(string(data)) {
			if kindLine.FindStringSubmatch(m)[1] != "DaemonSet" {
				remove(t, namespace, m)
			}
		}
		waitFor(t, "an agent without a token", func() bool { return len(pidsOf(t, agentCommand)) == 1 && !agentHasToken(t) })
		waitForGiveway(t)
	})
	waitFor(t, "an agent with a token", func() bool { return len(pidsOf(t, agentCommand)) == 1 && agentHasToken(t) })
}

func agentHasToken(t *testing.T) bool {
	t.Helper()
	for _, pid := range pidsOf(t, agentCommand) {
		if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid), "root/var/run/secrets/kubernetes.io/serviceaccount/token")); err == nil {
			return true
		}
	}
	return false
}

// checkSet checks that what an administrator sets stays in force, whatever the annotations
// become.
func checkSet(t *testing.T, p pod) {
	t.Helper()
	daemon := client.New(controlSocket)
	defer daemon.Close()
	class := func() string { return processes()[p.name].Attrs.Class().String() }
	waitFor(t, "class batch of the process", func() bool { return class() == "batch" })
	if _, err := daemon.Change(t.Context(), processes()[p.name].PID, api.Change{Values: attr.Class.Of(int64(sched.Online))}); err != nil {
		t.Fatal(err)
	}
	if got := class(); got != "online" {
		t.Errorf("giveway set after an annotation: class %s, want online", got)
	}
	p.wantChange(t, "class", "idle", "idle")
	if got := class(); got != "online" {
		t.Errorf("an annotation after giveway set: class %s, want online", got)
	}
}

// checkWatches checks that the agent made watches of its node's pods and nothing else.
func (n *node) checkWatches(t *testing.T) {
	t.Helper()
	data, err := os.ReadFile(n.path("audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	watches := 0
	for l := range strings.Lines(string(data)) {
		var e struct {
			Stage, Verb, RequestURI string
			User                    struct{ Username string }
			ResponseStatus          struct{ Code int }
		}
		if json.Unmarshal([]byte(l), &e) != nil || !strings.HasPrefix(e.User.Username, "system:serviceaccount:"+namespace+":") {
			continue // of another program, or still being written
		}
		if e.Verb != "watch" || !strings.Contains(e.RequestURI, "/api/v1/pods?") || !strings.Contains(e.RequestURI, "fieldSelector=spec.nodeName%3D"+nodeName) {
			t.Errorf("the agent made the request %s %s", e.Verb, e.RequestURI)
		}
		if e.Stage == "ResponseStarted" && e.ResponseStatus.Code == http.StatusOK {
			watches++
		}
	}
	t.Logf("the agent made %d watches and no other request", watches)
	if watches < 2 || watches > 6 { // before and after the API server's restart, and again if that ends one early
		t.Errorf("the agent made %d watches, want 2 to 6", watches)
	}
}
