package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/quota"
)

// oneContainer is a registry with at most one container.
type oneContainer struct{ c api.Container }

func (o *oneContainer) Containers() []api.Container { return []api.Container{o.c} }
func (o *oneContainer) Container(id string) (api.Container, bool) {
	return o.c, o.c.ID == id
}
func (o *oneContainer) Register(c api.Container) error { o.c = c; return nil }
func (o *oneContainer) Unregister(string) error        { o.c = api.Container{}; return nil }
func (o *oneContainer) PodOf(containers string) (pod string, registered bool) {
	if strings.Contains(containers, o.c.ID) && o.c.ID != "" {
		return o.c.PodUID, true
	}
	return containers, false
}

// twoPods is a node with processes of root in two pods and outside.
type twoPods struct{ mute }

func (twoPods) Processes() []api.Process {
	return []api.Process{{PID: 11, Command: "mine", Owner: "pod-a"}, {PID: 12, Command: "theirs", Owner: "pod-b"}, {PID: 13, Command: "host"}}
}

func (n twoPods) Process(pid int) (api.Process, bool) { return one(n.Processes(), pid) }

var containerA = strings.Repeat("a", 64)

// askAs makes a request of a peer.
func askAs(s *Server, p peer, method, path, body string) *httptest.ResponseRecorder {
	ctx := context.WithValue(context.Background(), connKey{}, &connection{peer: p})
	r := httptest.NewRequest(method, path, strings.NewReader(body)).WithContext(ctx)
	w := httptest.NewRecorder()
	routesOf(s).ServeHTTP(w, r)
	return w
}

// TestAgentRegistersContainersOnly: on its socket an agent registers and removes containers,
// without root's rights, and can do nothing else. Other users cannot register containers.
func TestAgentRegistersContainersOnly(t *testing.T) {
	registry := &oneContainer{}
	s := New(mute{}, Config{Registry: registry})
	agent := peer{local: true, agent: true, confined: "it lacks capabilities"}
	user := peer{local: true, uid: 1000, gid: 1000}
	path := "/v1/containers/" + containerA
	body := `{"pod_uid":"pod-a","pod_name":"serve-0","namespace":"ml","container_name":"main","class":"batch","weight":3}`
	for _, c := range []struct {
		name               string
		by                 peer
		method, path, body string
		status             int
		want               string
	}{
		{"a user", user, "PUT", path, body, 403, "only root and the daemon's own user may"},
		{"the agent", agent, "PUT", path, body, 200, `"pod_name":"serve-0"`},
		{"the agent", agent, "GET", "/v1/containers", "", 200, `"weight":3`},
		{"root", peer{local: true}, "GET", "/v1/containers", "", 200, `"namespace":"ml"`},
		{"a user", user, "GET", "/v1/containers", "", 403, "register containers"},
		{"the agent", agent, "GET", "/v1/processes", "", 403, "and nothing else"},
		{"the agent", agent, "POST", "/v1/policy", `{"name":"rr"}`, 403, "and nothing else"},
		{"the agent", agent, "POST", "/v1/processes/11", `{"class":"online"}`, 403, "and nothing else"},
		{"another id", agent, "PUT", path, `{"id":"b"}`, 400, "the id in the path"},
		{"no id", agent, "PUT", "/v1/containers/x", `{}`, 400, "64 hex digits"},
		{"unknown key", agent, "PUT", path, `{"colour":1}`, 400, "there is no key"},
		{"a name that is none", agent, "PUT", path, `{"pod_name":"<script>"}`, 400, "is not a name"},
		{"bad class", agent, "PUT", path, `{"class":"fast"}`, 400, "class"},
		{"unknown container", agent, "DELETE", "/v1/containers/" + strings.Repeat("b", 64), "", 404, "is not registered"},
		{"the agent", agent, "DELETE", path, "", 200, containerA},
	} {
		w := askAs(s, c.by, c.method, c.path, c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %s %.30s: got %d %s, want %d %q", c.name, c.method, c.path, w.Code, w.Body, c.status, c.want)
		}
	}
	if registry.c.ID != "" {
		t.Errorf("got %+v, want no container", registry.c)
	}
}

// TestPodSeesItsOwnProcessesOnly: a process in a registered container sees and changes the
// processes of its pod, whatever its uid, and nothing about others.
func TestPodSeesItsOwnProcessesOnly(t *testing.T) {
	s := New(twoPods{}, Config{Registry: &oneContainer{api.Container{ID: containerA, PodUID: "pod-a"}}})
	inside := peer{local: true, confined: "it lacks capabilities", containers: containerA}
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/v1/processes", "", 200},
		{"GET", "/v1/policy", "", 200},
		{"POST", "/v1/processes/11", `{"weight":2}`, 200},
		{"POST", "/v1/processes/11/hint", `{"weight":2}`, 200},
		{"POST", "/v1/processes/12", `{"weight":2}`, 404},
		{"POST", "/v1/processes/12/hint", `{"weight":2}`, 404},
		{"POST", "/v1/processes/13", `{"weight":2}`, 404},
		{"GET", "/v1/status", "", 403},
		{"GET", "/v1/record", "", 403},
		{"GET", "/v1/record/stream", "", 403},
		{"GET", "/v1/delays", "", 403},
		{"GET", "/v1/pressure", "", 403},
		{"GET", "/metrics", "", 403},
		{"POST", "/v1/policy", `{"name":"rr"}`, 403},
		{"POST", "/v1/restore", "", 403},
		{"GET", "/v1/containers", "", 403},
		{"PUT", "/v1/containers/" + containerA, `{"class":"online"}`, 403},
	} {
		if w := askAs(s, inside, c.method, c.path, c.body); w.Code != c.status {
			t.Errorf("%s %s: got %d %s, want %d", c.method, c.path, w.Code, w.Body, c.status)
		}
	}
	user := peer{local: true, confined: "it lacks capabilities"} // root's uid, and in no pod
	if w := askAs(s, user, "GET", "/v1/processes", ""); strings.Contains(w.Body.String(), "mine") || !strings.Contains(w.Body.String(), "host") {
		t.Errorf("the same uid outside of pods: got %s, want no command lines of pods", w.Body)
	}
	if w := askAs(s, user, "POST", "/v1/processes/11", `{"weight":2}`); w.Code != 403 {
		t.Errorf("the same uid outside of pods changes a process of a pod: got %d %s", w.Code, w.Body)
	}
	if w := askAs(s, inside, "GET", "/v1/processes", ""); !strings.Contains(w.Body.String(), "mine") || strings.Contains(w.Body.String(), "12") || strings.Contains(w.Body.String(), "13") {
		t.Errorf("processes: got %s, want those of the pod", w.Body)
	}
}

// TestPodsHaveAccountsOfTheirOwn: what one pod uses up is not missing for another, although
// both are root's.
func TestPodsHaveAccountsOfTheirOwn(t *testing.T) {
	var p podAccounts
	now := time.Now()
	a, b := p.enter("pod-a", now), p.enter("pod-b", now)
	if a == b || a != p.enter("pod-a", now) || a < firstPodAccount || b < firstPodAccount {
		t.Errorf("got accounts %d and %d", a, b)
	}
}

// TestPodsKeepTheirAccounts: a pod keeps its account while it has a connection, and after it
// has closed the last one for as long as few others come. Otherwise it could have a second
// share, and a full bucket of tokens, by connecting again.
func TestPodsKeepTheirAccounts(t *testing.T) {
	var p podAccounts
	now := time.Now()
	connected := p.enter("connected", now)
	var recent uint32
	for i := range 3 * maxPodAccounts {
		now = now.Add(time.Millisecond)
		pod := strconv.Itoa(i)
		p.enter(pod, now)
		p.leave(pod, now)
		if i%100 == 0 {
			was := recent
			if recent = p.enter("recent", now); i > 0 && recent != was {
				t.Fatalf("after %d pods a pod that was just here has account %d, had %d", i, recent, was)
			}
			p.leave("recent", now)
		}
		if len(p.of) > maxPodAccounts {
			t.Fatalf("%d accounts are kept, want at most %d", len(p.of), maxPodAccounts)
		}
	}
	if got := p.enter("connected", now); got != connected {
		t.Errorf("a pod with a connection has account %d, had %d", got, connected)
	}
}

// TestMadeContainersHaveNoAccounts: a user that makes cgroups with the names of containers gets
// no more connections than with none, whether it makes a new one for each or not.
func TestMadeContainersHaveNoAccounts(t *testing.T) {
	admitted := func(containers func(i int) string) (n int) {
		made := 0
		s := New(mute{}, Config{Registry: &oneContainer{api.Container{ID: containerA, PodUID: "pod-a"}}})
		s.containersOf = func(net.Conn, int) (string, bool) { made++; return containers(made), true }
		s.rights.effective = ^uint64(0) // so that this process does not manage the daemon
		s.admission.quota = quota.Quota{All: 64, Each: 64}
		_, c := unixPair(t)
		defer c.Close()
		for range 200 {
			if s.admitLocal(c) != nil {
				n++
			}
		}
		if len(s.pods.of) != 0 {
			t.Errorf("%d pods have accounts, want none", len(s.pods.of))
		}
		return n
	}
	none := admitted(func(int) string { return "" })
	if many := admitted(func(i int) string { return fmt.Sprintf("%064x", i) }); many != none || none == 0 {
		t.Errorf("with 200 cgroups of its own a user has %d connections, with none %d", many, none)
	}
}

// TestConnectionsOfPodsAreCounted: connections that are closed or refused no longer keep a
// pod's account.
func TestConnectionsOfPodsAreCounted(t *testing.T) {
	s := New(mute{}, Config{Registry: &oneContainer{api.Container{ID: containerA, PodUID: "pod-a"}}})
	s.containersOf = func(net.Conn, int) (string, bool) { return containerA, true }
	s.rights.effective = ^uint64(0) // so that this process does not manage the daemon
	connect := func() *connection {
		a, b := unixPair(t)
		t.Cleanup(func() { a.Close(); b.Close() })
		return s.admitLocal(b)
	}
	open := func() (n int) {
		for _, a := range s.pods.of {
			n += a.open
		}
		return n
	}
	first := connect()
	if first == nil || open() != 1 {
		t.Fatalf("got %v and %d open connections, want 1", first, open())
	}
	s.admission.quota = quota.Quota{}
	if connect() != nil || open() != 1 {
		t.Errorf("a connection too many: %d count, want 1", open())
	}
	s.admission.quota = quota.Quota{All: 10, Each: 10}
	s.budgets.of[first.account] = &bucket{tokens: -budgetRate, at: time.Now().Add(time.Hour)} // and it does not fill
	if connect() != nil || open() != 1 {
		t.Errorf("a connection without tokens: %d count, want 1", open())
	}
	first.Close()
	if open() != 0 {
		t.Errorf("%d connections count after the last one was closed", open())
	}
}

// TestCallersThatCannotBeFoundAreRefused: a process in a pod that connects by a child which
// exits at once does not pass for one outside.
func TestCallersThatCannotBeFoundAreRefused(t *testing.T) {
	s := New(mute{}, Config{Registry: &oneContainer{}})
	s.containersOf = func(net.Conn, int) (string, bool) { return "", false }
	s.rights.effective = ^uint64(0) // so that this process does not manage the daemon
	a, b := unixPair(t)
	defer a.Close()
	if got := s.admitLocal(b); got != nil {
		t.Errorf("got a connection of pod %q, want it refused", got.containers)
	}
	b.Close()
	if ids, ok := containersOf(b, os.Getpid()); ok {
		t.Errorf("a closed connection: got %q, true", ids)
	}
}

func unixPair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// TestSocketsNeedFoldersOfTheirOwn: what containers have mounted has nothing else in it.
func TestSocketsNeedFoldersOfTheirOwn(t *testing.T) {
	dir := t.TempDir()
	at := func(path string) string { return filepath.Join(dir, path) }
	for _, c := range []Config{
		{Socket: at("run/a.sock"), Agent: at("run/b.sock")},
		{Socket: at("run/a.sock"), Pods: at("run/../run/b.sock")},
		{Socket: at("run/a.sock"), Agent: at("x/b.sock"), Pods: at("x/c.sock")},
	} {
		if err := New(mute{}, c).Listen(); err == nil || !strings.Contains(err.Error(), "same folder") {
			t.Errorf("%+v: got %v", c, err)
		}
	}
	s := New(mute{}, Config{Socket: at("a/a.sock"), Agent: at("b/b.sock"), Pods: at("c/giveway.sock")})
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if all, _ := os.ReadDir(at("c")); len(all) != 1 {
		t.Errorf("the folder of pods has %v, want the socket only", all)
	}
}

// TestAgentSocket: only the owner can connect to the agent's socket.
func TestAgentSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "agent", "agent.sock")
	s := New(mute{}, Config{Socket: filepath.Join(dir, "run", "giveway.sock"), Agent: path, Registry: &oneContainer{}})
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	defer func() { cancel(); <-done }()
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("got %v, %v, want mode 0600", info, err)
	}
	c := http.Client{Transport: &http.Transport{DialContext: dialTo(path)}}
	defer c.CloseIdleConnections()
	resp, err := c.Get("http://giveway/v1/containers")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("containers: got %s", resp.Status)
	}
	if resp, err = c.Get("http://giveway/v1/status"); err != nil || resp.StatusCode != http.StatusForbidden {
		t.Errorf("status: got %v, %v, want 403", resp, err)
	}
}

func dialTo(path string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
}
