package agent

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	nri "github.com/containerd/nri/pkg/api"
)

// apiServer answers watches of pods with what send gets to do, one function a request.
type apiServer struct {
	*httptest.Server
	watch *Watch

	mu       sync.Mutex
	requests []*http.Request
}

// newAPIServer returns a server whose n-th watch is answered by the n-th function. Watches
// beyond are answered with nothing and stay open.
func newAPIServer(t *testing.T, watches ...func(send func(kind, uid, version, class string), w http.ResponseWriter)) *apiServer {
	t.Helper()
	s := &apiServer{}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		n := len(s.requests)
		s.requests = append(s.requests, r)
		s.mu.Unlock()
		if n >= len(watches) {
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		watches[n](func(kind, uid, version, class string) {
			annotations := map[string]string{"kubernetes.io/other": strings.Repeat("x", 100_000)} // longer than a scanner's usual lines
			if class != "" {
				annotations[prefix+"class"] = class
			}
			text, err := json.Marshal(map[string]any{"type": kind, "object": map[string]any{
				"kind": "PartialObjectMetadata", "metadata": map[string]any{"uid": uid, "resourceVersion": version, "annotations": annotations},
			}})
			if err != nil {
				t.Error(err)
			}
			fmt.Fprintln(w, string(text))
			w.(http.Flusher).Flush()
		}, w)
	}))
	t.Cleanup(s.Close)
	files := t.TempDir()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	for name, text := range map[string]string{"token": "secret\n", "ca.crt": string(certificate)} {
		if err := os.WriteFile(filepath.Join(files, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.watch = &Watch{Server: s.URL, Node: "n1", Files: files, Log: slog.New(slog.DiscardHandler), min: time.Millisecond, max: 20 * time.Millisecond}
	return s
}

// versions returns the versions from which the server was asked to go on.
func (s *apiServer) versions(t *testing.T) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, r := range s.requests {
		q := r.URL.Query()
		all = append(all, q.Get("resourceVersion"))
		if r.Method != "GET" || r.URL.Path != "/api/v1/pods" || q.Get("watch") != "1" || q.Get("allowWatchBookmarks") != "true" || q.Get("fieldSelector") != "spec.nodeName=n1" {
			t.Errorf("got request %s %s, want watches only, of one node", r.Method, r.URL)
		}
		if r.Header.Get("Authorization") != "Bearer secret" || !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata;") {
			t.Errorf("got token %q and %q", r.Header.Get("Authorization"), r.Header.Get("Accept"))
		}
	}
	return strings.Join(all, " ")
}

// TestWatch: a changed annotation reaches the daemon, a removed one is removed, and what was
// injected stays. A container that is created later has the new annotations at once, although
// the runtime passes on the old ones.
func TestWatch(t *testing.T) {
	next, end := make(chan string), make(chan struct{})
	api := newAPIServer(t, func(send func(kind, uid, version, class string), _ http.ResponseWriter) {
		send("ADDED", "uid-batch", "7", "batch")
		send("ADDED", "uid-elsewhere", "8", "online")
		for {
			select {
			case class := <-next:
				send("MODIFIED", "uid-batch", "9", class)
			case <-end:
				return
			}
		}
	})
	defer close(end)
	socket := filepath.Join(t.TempDir(), "nri.sock")
	r, d := newRuntime(t, socket), &daemon{}
	pod := sandbox("batch")
	pod.Annotations[prefix+"pool"] = "true" // both removed since
	pod.Annotations[prefix+"weight"] = "3"
	r.pods, r.containers = []*nri.PodSandbox{pod}, []*nri.Container{inside(pod, "1")}
	r.start(t)
	defer r.Stop()
	startAgent(t, d, socket, api.watch)
	one, two := strings.Repeat("1", 64), strings.Repeat("2", 64)
	eventually(t, "a removed annotation is removed", func() bool { return d.knows(one) == "class=batch pool=on" })
	next <- "idle"
	eventually(t, "a changed annotation is applied", func() bool { return d.knows(one) == "class=idle" })
	next <- ""
	eventually(t, "the class is removed", func() bool { return d.knows(one) == "" })
	next <- "idle"
	eventually(t, "the class is there again", func() bool { return d.knows(one) == "class=idle" })
	if _, err := r.CreateContainer(t.Context(), &nri.CreateContainerRequest{Pod: pod, Container: inside(pod, "2")}); err != nil {
		t.Fatal(err)
	}
	if d.knows(two) != "class=idle" {
		t.Errorf("a container that was created later: got %q, want class=idle", d.knows(two))
	}
	if got := api.versions(t); got != "0" {
		t.Errorf("got watches from %s, want one", got)
	}
}

// TestWatchGoesOn: a watch that ends goes on where it ended, from a bookmark on; one that ended
// before, or whose version is too old, begins again.
func TestWatchGoesOn(t *testing.T) {
	type send = func(kind, uid, version, class string)
	api := newAPIServer(t,
		func(send send, _ http.ResponseWriter) { send("ADDED", "a", "90", "batch") }, // others may have been missed
		func(send send, _ http.ResponseWriter) {
			send("ADDED", "a", "90", "batch")
			send("ADDED", "b", "50", "batch")
			send("BOOKMARK", "", "91", "")
		},
		func(send send, _ http.ResponseWriter) {
			send("MODIFIED", "b", "92", "idle")
			send("DELETED", "a", "93", "")
		},
		func(_ send, w http.ResponseWriter) {
			fmt.Fprintln(w, `{"type":"ERROR","object":{"code":500,"message":"later"}}`)
		},
		func(_ send, w http.ResponseWriter) { w.WriteHeader(http.StatusForbidden) },
		func(_ send, w http.ResponseWriter) { fmt.Fprintln(w, `{"type":`) },
		func(_ send, w http.ResponseWriter) { fmt.Fprintln(w, `{"type":"ERROR","object":{"code":410}}`) },
		func(send send, _ http.ResponseWriter) {
			send("ADDED", "c", "94", "batch")
			send("BOOKMARK", "", "95", "")
		},
		func(_ send, w http.ResponseWriter) { w.WriteHeader(http.StatusGone) },
	)
	p := newPods()
	done := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() { api.watch.run(ctx, p); close(done) }()
	want := "0 0 91 93 93 93 93 0 95 0"
	eventually(t, "the watches", func() bool { return len(strings.Fields(api.versions(t))) >= 10 })
	if got := api.versions(t); got != want {
		t.Errorf("got watches from %s, want %s", got, want)
	}
	stop()
	<-done
	if len(p.watched) != 0 || len(p.changed) != 0 {
		t.Errorf("pods without containers are kept: %v", p.watched)
	}
}

// TestWatchForgets: a pod that was deleted while no watch was open is forgotten, also if the
// last watch ended before its first bookmark.
func TestWatchForgets(t *testing.T) {
	end := make(chan struct{})
	api := newAPIServer(t,
		func(send func(kind, uid, version, class string), _ http.ResponseWriter) {
			send("ADDED", "deleted", "1", "batch")
		},
		func(send func(kind, uid, version, class string), _ http.ResponseWriter) {
			send("ADDED", "there", "2", "batch")
			<-end
		},
	)
	p := newPods()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { api.watch.run(ctx, p); close(done) }()
	eventually(t, "only the pod that is there is known", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.watched) == 1 && p.watched["there"] != nil
	})
	close(end)
	stop()
	<-done
}

// TestManyChanges: annotations that change without end reach the daemon a few times a second.
func TestManyChanges(t *testing.T) {
	end := make(chan struct{})
	api := newAPIServer(t, func(send func(kind, uid, version, class string), _ http.ResponseWriter) {
		for i := range 500 {
			send("MODIFIED", "uid-batch", "1", []string{"idle", "standard"}[i%2])
		}
		send("MODIFIED", "uid-batch", "1", "idle")
		<-end
	})
	defer close(end)
	socket := filepath.Join(t.TempDir(), "nri.sock")
	r, d := newRuntime(t, socket), &daemon{}
	pod := sandbox("batch")
	r.pods, r.containers = []*nri.PodSandbox{pod}, []*nri.Container{inside(pod, "1")}
	r.start(t)
	defer r.Stop()
	began := time.Now()
	startAgent(t, d, socket, api.watch)
	eventually(t, "the last class", func() bool {
		var last bool
		d.set(func() { c := d.all[strings.Repeat("1", 64)]; last = c.String() == "class=idle" })
		return last
	})
	d.set(func() {
		if most := 2 + int(time.Since(began)/changeEvery); d.writes > most {
			t.Errorf("the daemon was told %d times, want at most %d", d.writes, most)
		}
	})
}

// TestInjectedStays: the annotations that have their effect when a container is created are
// those of that moment, whether the API server or the runtime tells of the container first.
func TestInjectedStays(t *testing.T) {
	was, now := map[string]string{prefix + "shim": "true", prefix + "class": "batch"}, map[string]string{prefix + "pool": "true", prefix + "class": "idle"}
	want := map[string]string{prefix + "shim": "true", prefix + "class": "idle"}
	container := Pod{ID: "1", UID: "u", Annotations: was}

	p := newPods()
	p.annotate("u", now)
	if got := p.add(container, false); !maps.Equal(got.Annotations, want) {
		t.Errorf("a container that was there: got %v, want %v", got.Annotations, want)
	}
	if got := p.take(); len(got) != 0 {
		t.Errorf("a container that has the newest annotations is changed: %v", got)
	}
	if got := p.add(container, true); !maps.Equal(got.Annotations, now) {
		t.Errorf("a container that is created: got %v, want %v", got.Annotations, now)
	}
	p = newPods()
	p.add(container, true)
	p.annotate("u", now)
	if got := p.take(); len(got) != 1 || !maps.Equal(got[0].Annotations, want) {
		t.Errorf("a container whose pod is changed: got %v, want %v", got, want)
	}
}

// TestHostileAnnotations: what is kept of a pod is small, whatever its annotations are.
func TestHostileAnnotations(t *testing.T) {
	all := map[string]string{prefix + "class": strings.Repeat("x", 250<<10), "example.test/large": strings.Repeat("y", 250<<10)}
	for i := range 5000 {
		all[fmt.Sprintf("%sclass.container.c%d", prefix, i)] = "batch"
	}
	size := 0
	for key, value := range ours(all) {
		size += len(key) + len(value)
	}
	if size > 32<<10 {
		t.Errorf("%d bytes are kept of one pod", size)
	}
}
