package cluster

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The fleet: nodes and pods without programs, as kwok makes them. The pods come in two halves.
const (
	fleetNodes   = 1000
	fleetPods    = 4000
	fleetAgent   = "fleet-test" // the User-Agent of the test
	fleetClients = 8
)

// TestFleet creates a fleet with Giveway's objects installed, and checks that nothing of Giveway's
// grows with pods: the objects stay the same to the byte, no kind of object but pods becomes
// more, and the API server has no other requests than those that create the pods.
func TestFleet(t *testing.T) { inNamespaces(t, runFleet) }

func runFleet(t *testing.T) {
	n := newNode(t)
	n.start("etcd")
	n.start("kube-apiserver")
	n.wait("API server", func() bool { return request("GET", "/readyz", "", nil).body == "ok" })
	apply(t, namespace, prerequisites)
	apply(t, namespace, manifests(t))
	if a := request("POST", "/api/v1/namespaces/default/serviceaccounts", "application/json", []byte(`{"metadata": {"name": "default"}}`)); !a.ok() {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	n.wait("admission", func() bool {
		return strings.Contains(pod{name: "x", priority: "gpu-batch"}.dryRun().body, `"giveway.dev/class":"batch"`) && !pod{name: "x", annotations: with("class", "none")}.dryRun().ok()
	})
	f := fleet{t, &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: fleetClients, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
	began := time.Now()
	f.each(fleetNodes, func(i int) { f.post("/api/v1/nodes", fleetNode(i)) })
	t.Logf("%d nodes in %.1f s", fleetNodes, time.Since(began).Seconds())

	objects, counts := installed(t), countObjects(t)
	for half := range 2 {
		asked := n.auditedRequests()
		began := time.Now()
		f.each(fleetPods/2, func(i int) { f.post("/api/v1/namespaces/default/pods", fleetPod(half*fleetPods/2+i)) })
		t.Logf("%d pods in %.1f s", fleetPods/2, time.Since(began).Seconds())
		n.checkRequests(asked, fleetPods/2)
	}
	f.checkAdmission()
	if after := installed(t); !maps.Equal(objects, after) {
		t.Errorf("objects of Giveway have changed:\nbefore %v\nafter  %v", objects, after)
	}
	after := countObjects(t)
	if counts["/api/v1/nodes"] != fleetNodes || after["/api/v1/pods"]-counts["/api/v1/pods"] != fleetPods {
		t.Errorf("%d nodes and %d pods", counts["/api/v1/nodes"], after["/api/v1/pods"])
	}
	delete(counts, "/api/v1/pods")
	delete(after, "/api/v1/pods")
	if !maps.Equal(counts, after) {
		t.Errorf("other objects became more:\nbefore %v\nafter  %v", counts, after)
	}
}

// fleet creates objects by several connections.
type fleet struct {
	t      *testing.T
	client *http.Client
}

// each calls f with 0 to n-1, on several goroutines.
func (f *fleet) each(n int, call func(int)) {
	var wg sync.WaitGroup
	for first := range fleetClients {
		wg.Go(func() {
			for i := first; i < n && !f.t.Failed(); i += fleetClients {
				call(i)
			}
		})
	}
	if wg.Wait(); f.t.Failed() {
		f.t.FailNow()
	}
}

// post creates an object.
func (f *fleet) post(path string, object any) {
	body, err := json.Marshal(object)
	if err != nil {
		f.t.Error(err)
		return
	}
	req, err := http.NewRequest("POST", server+path, bytes.NewReader(body))
	if err != nil {
		f.t.Error(err)
		return
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", fleetAgent)
	resp, err := f.client.Do(req)
	if err != nil {
		f.t.Error(err)
		return
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusCreated {
		f.t.Errorf("create %.200s: status %d: %v: %s", body, resp.StatusCode, err, text)
	}
}

type object = map[string]any

func fleetNode(i int) object {
	return object{
		"metadata": object{"name": fmt.Sprintf("fleet-%d", i), "labels": object{"type": "fleet"}},
		"status":   object{"allocatable": object{"nvidia.com/gpu": "8", "pods": "110"}, "conditions": []object{{"type": "Ready", "status": "True"}}},
	}
}

// fleetPod returns a pod of one of four kinds: batch and online by PriorityClass, with annotations
// of its own, and with nothing of Giveway's.
func fleetPod(i int) object {
	annotations, priority := map[string]string{}, ""
	switch i % 4 {
	case 0:
		priority = "gpu-batch"
	case 1:
		priority, annotations = "gpu-online", with("slo", "10ms")
	case 2:
		annotations = with("class", "idle", "weight", fmt.Sprint(1+i%9), "shim", "true")
	}
	spec := object{"nodeName": fmt.Sprintf("fleet-%d", i%fleetNodes), "containers": []object{{"name": "main", "image": "none", "resources": object{"limits": object{"nvidia.com/gpu": "1"}}}}}
	if priority != "" {
		spec["priorityClassName"] = priority
	}
	return object{"metadata": object{"name": fmt.Sprintf("fleet-%d", i), "annotations": annotations}, "spec": spec}
}

// checkAdmission checks that the policies have seen the pods: each kind has the class that it
// should have.
func (f *fleet) checkAdmission() {
	f.t.Helper()
	var list struct {
		Items []struct {
			Metadata struct {
				Name        string
				Annotations map[string]string
			}
		}
	}
	request("GET", "/api/v1/namespaces/default/pods?resourceVersion=0", "", nil).decode(&list)
	classes := map[string]int{}
	for _, p := range list.Items {
		classes[p.Metadata.Annotations["giveway.dev/class"]]++
	}
	if want := (map[string]int{"batch": fleetPods / 4, "online": fleetPods / 4, "idle": fleetPods / 4, "": fleetPods / 4}); !maps.Equal(classes, want) {
		f.t.Errorf("classes of the pods: got %v, want %v", classes, want)
	}
}

// installed returns the version and the size of each object of Giveway's, by its path.
func installed(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, m := range split(manifests(t)) {
		path, err := objectPath(namespace, m)
		if err != nil {
			t.Fatal(err)
		}
		var o struct {
			Metadata struct{ ResourceVersion string }
		}
		a := request("GET", path, "", nil)
		if a.decode(&o); o.Metadata.ResourceVersion == "" {
			t.Fatalf("%s: status %d: %s", path, a.status, a.body)
		}
		all[path] = fmt.Sprintf("version %s, %d bytes", o.Metadata.ResourceVersion, len(a.body))
	}
	if len(all) < 8 {
		t.Fatalf("Giveway has only %d objects", len(all))
	}
	return all
}

// countObjects returns the number of objects of each kind that the API server has, by path.
// Leases are renewed and events come by time, not by pod.
func countObjects(t *testing.T) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, group := range apiGroups(t) {
		var list struct {
			Resources []struct {
				Name  string
				Verbs []string
			}
		}
		request("GET", group, "", nil).decode(&list)
		if len(list.Resources) == 0 {
			t.Fatalf("%s has no resources", group)
		}
		for _, r := range list.Resources {
			if !slices.Contains(r.Verbs, "list") || r.Name == "events" || r.Name == "leases" {
				continue
			}
			var found struct {
				Metadata struct{ RemainingItemCount int }
				Items    []any
			}
			if a := request("GET", group+"/"+r.Name+"?limit=1", "", nil); !a.ok() {
				t.Fatalf("list %s/%s: status %d: %s", group, r.Name, a.status, a.body)
			} else if a.decode(&found); strings.Contains(group, "giveway") || r.Name == "customresourcedefinitions" && len(found.Items) > 0 {
				t.Errorf("there is a kind of object of Giveway's own: %s", a.body)
			}
			counts[group+"/"+r.Name] = len(found.Items) + found.Metadata.RemainingItemCount
		}
	}
	return counts
}

// apiGroups returns the paths of all groups of the API.
func apiGroups(t *testing.T) []string {
	t.Helper()
	var list struct {
		Groups []struct {
			Versions []struct{ GroupVersion string }
		}
	}
	request("GET", "/apis", "", nil).decode(&list)
	all := []string{"/api/v1"}
	for _, g := range list.Groups {
		for _, v := range g.Versions {
			all = append(all, "/apis/"+v.GroupVersion)
		}
	}
	if len(all) < 10 {
		t.Fatalf("the API server has the groups %v", all)
	}
	return all
}

// audited is a request in the API server's audit log.
type audited struct{ Agent, User, Verb, Resource string }

// auditedRequests returns how often each request was made.
func (n *node) auditedRequests() map[audited]int {
	n.t.Helper()
	data, err := os.ReadFile(n.path("audit.log"))
	if err != nil {
		n.t.Fatal(err)
	}
	all := map[audited]int{}
	for line := range bytes.Lines(data) {
		var e struct {
			UserAgent, Verb string
			User            struct{ Username string }
			ObjectRef       struct{ Resource string }
		}
		if json.Unmarshal(line, &e) == nil { // else the last line is being written
			all[audited{e.UserAgent, e.User.Username, e.Verb, e.ObjectRef.Resource}]++
		}
	}
	return all
}

// checkRequests checks what was asked of the API server since then: one request for each pod
// by the test, and of others only what comes with time.
func (n *node) checkRequests(before map[audited]int, pods int) {
	n.t.Helper()
	var created, others, ours int
	waitFor(n.t, "the audit log", func() bool {
		created, others, ours = 0, 0, 0
		for r, count := range n.auditedRequests() {
			switch count -= before[r]; {
			case r.Agent == fleetAgent && r.Verb == "create" && r.Resource == "pods":
				created += count
			case byGiveway(r) || aboutGiveway(r):
				if ours += count; count > 0 {
					n.t.Errorf("%d requests: %+v", count, r)
				}
			case !strings.HasPrefix(r.Agent, "Go-http-client"): // else the test's own questions
				others += count
			}
		}
		return created >= pods
	})
	n.t.Logf("%d pods: %d requests to create them, %d of Giveway or about its objects, %d of others", pods, created, ours, others)
	if created != pods || others > pods/20 {
		n.t.Error("others make requests for each pod")
	}
}

// byGiveway reports whether a program of Giveway made a request.
func byGiveway(r audited) bool {
	return strings.Contains(r.Agent, "giveway") || strings.Contains(r.User, "giveway")
}

// aboutGiveway reports whether a request of others reads or writes kinds of objects that Giveway
// has. A watch lasts, so it does not come with a pod.
func aboutGiveway(r audited) bool {
	return r.Verb != "watch" && !strings.HasPrefix(r.Agent, "Go-http-client") &&
		(strings.Contains(r.Resource, "admissionpolic") || r.Resource == "priorityclasses" || r.Resource == "configmaps" || r.Resource == "daemonsets")
}

// testRequests: whatever happens in the cluster, neither agent nor daemon asks the API server for
// anything, other than a watch where that is configured.
func (n *node) testRequests(t *testing.T) {
	pod{name: "counted", annotations: with("class", "batch")}.start(t)
	var total, pods, watches int
	waitFor(t, "the audit log", func() bool {
		total, pods, watches = 0, 0, 0
		for r, count := range n.auditedRequests() {
			total += count
			switch {
			case byGiveway(r) && r.Verb == "watch":
				watches += count
			case byGiveway(r):
				t.Errorf("%d requests of Giveway: %+v", count, r)
			case r.Verb == "create" && r.Resource == "pods":
				pods += count
			}
		}
		return pods > 0
	})
	t.Logf("%d requests to the API server, %d of them to create pods; %d watches of Giveway", total, pods, watches)
}
