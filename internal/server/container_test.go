package server

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/giveway/giveway/api"
)

// oneContainer is a registry with at most one container.
type oneContainer struct{ c api.Container }

func (o *oneContainer) Containers() []api.Container { return []api.Container{o.c} }
func (o *oneContainer) Container(id string) (api.Container, bool) {
	return o.c, o.c.ID == id
}
func (o *oneContainer) Register(c api.Container) error { o.c = c; return nil }
func (o *oneContainer) Unregister(string)              { o.c = api.Container{} }
func (o *oneContainer) PodOf(containers string) string {
	if strings.Contains(containers, o.c.ID) && o.c.ID != "" {
		return o.c.PodUID
	}
	return ""
}

// twoPods is a node with processes of root in two pods and outside.
type twoPods struct{ mute }

func (twoPods) Processes() []api.Process {
	return []api.Process{{PID: 11, Command: "mine", Pod: "pod-a"}, {PID: 12, Command: "theirs", Pod: "pod-b"}, {PID: 13, Command: "host"}}
}

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
	if w := askAs(s, inside, "GET", "/v1/processes", ""); !strings.Contains(w.Body.String(), "mine") || strings.Contains(w.Body.String(), "12") || strings.Contains(w.Body.String(), "13") {
		t.Errorf("processes: got %s, want those of the pod", w.Body)
	}
}

// TestPodsHaveAccountsOfTheirOwn: what one pod uses up is not missing for another, although
// both are root's.
func TestPodsHaveAccountsOfTheirOwn(t *testing.T) {
	var p podAccounts
	a, b := p.account("pod-a"), p.account("pod-b")
	if a == b || a != p.account("pod-a") || a < firstPodAccount || b < firstPodAccount {
		t.Errorf("got accounts %d and %d", a, b)
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
