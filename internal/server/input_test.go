package server

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/metrics"
	"github.com/giveway/giveway/internal/record"
)

// mute is a node that accepts everything.
type mute struct{}

func (mute) Process(int) (p api.Process, ok bool)                      { return p, false }
func (mute) Processes() []api.Process                                  { return nil }
func (mute) Change(Caller, int, api.Change) (p api.Process, err error) { return p, nil }
func (mute) Hint(Caller, int, api.Hint) (p api.Process, err error)     { return p, nil }
func (mute) Policy() (p api.Policy)                                    { return p }
func (mute) SetPolicy(_ Caller, p api.Policy) (api.Policy, error)      { return p, nil }
func (mute) Status() (s api.Status)                                    { return s }
func (mute) Restore(Caller) error                                      { return nil }

func (mute) Record() *record.Record              { return muteRecord }
func (mute) Delays() (d api.Delays)              { return d }
func (mute) Pressure() (p api.Pressure)          { return p }
func (mute) Tally() *metrics.Tally               { return muteTally }
func (mute) BeginInputs() ([]byte, error)        { return nil, nil }
func (mute) NextInputs(end bool) ([]byte, error) { return nil, nil }

var (
	muteBegan  = time.Now()
	muteRecord = record.New(muteBegan, 0)
	muteTally  = metrics.NewTally(metrics.Labels{PID: true})
)

func (mute) BeginRun(Caller, api.Run) (started api.RunStarted, end func(), err error) {
	return api.RunStarted{}, func() {}, nil
}

// routesOf returns the front end of a server in the same process.
func routesOf(s *Server) http.Handler {
	f := frontEnd{log: s.log, ask: s.ask, written: func(net.Conn) {}}
	return f.routes()
}

// ask makes a request as the daemon's own user.
func ask(h http.Handler, method, path, body string) *httptest.ResponseRecorder {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // so that a run ends at once
	ctx = context.WithValue(ctx, connKey{}, &connection{peer: peer{local: true, uid: uint32(os.Geteuid()), pid: os.Getpid()}})
	r := httptest.NewRequest(http.MethodGet, "/", strings.NewReader(body)).WithContext(ctx)
	r.Method, r.URL.Path = method, path
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestBadInput(t *testing.T) {
	h := routesOf(New(mute{}, Config{}))
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/", "", 404, `there is no path \"/\"`},
		{"GET", "/v2/processes", "", 404, "there is no path"},
		{"GET", "/" + strings.Repeat("x", 5000), "", 404, "there is no path"},
		{"DELETE", "/v1/processes", "", 405, `path \"/v1/processes\" takes GET, HEAD only`},
		{"PUT", "/v1/policy", "", 405, "takes GET, HEAD, POST only"},
		{"GET", "/v1/restore", "", 405, "takes POST only"},
		{"GET", "/v1/runs", "", 405, "takes POST only"},
		{"POST", "/metrics", "", 405, "takes GET, HEAD only"},
		{"GET", "/v1/shim", "", 405, "takes POST only"},
		{"POST", "/v1/shim", "", 409, "on the daemon's unix socket"},
		{"GET", "/v1/processes/1/hint", "", 405, "takes POST only"},
		{"POST", "/v1/processes/x/hint", `{"priority":1}`, 400, `\"x\" is not a pid`},
		{"POST", "/v1/processes/1/hint", `{}`, 400, "the hint is empty"},
		{"POST", "/v1/processes/1/hint", `{"colour":"red"}`, 400, `there is no key \"colour\"; there are: begin, end, class,`},
		{"POST", "/v1/processes/1/hint", `{"paused":true}`, 400, "paused cannot be set by hint, only by: set"},
		{"POST", "/v1/processes/1/hint", `{"expect_ns":-1}`, 400, "expect -1ns is not a time from 0 (unknown) to 1h"},
		{"POST", "/v1/processes/1/hint", `{"work_ns":1000000000000000000}`, 400, "work 277777h46m40s is not a time from 0"},
		{"POST", "/v1/processes/1/hint", `{"begin":1,"end":1}`, 400, "either begins or ends"},
		{"POST", "/v1/processes/1/hint", `{"begin":"1"}`, 400, "cannot unmarshal string"},
		{"POST", "/v1/processes/1", `{"slo_ns":-1}`, 400, "slo -1ns is not a time from 0"},
		{"POST", "/v1/processes/1", `{"bound":65537}`, 400, "bound 65537 is not a whole number from 0 (no bound) to 65536"},
		{"POST", "/v1/processes/1", `{"bound":16,"bound_batch":32}`, 400, "bound-batch 32 is more than bound 16"},
		{"POST", "/v1/processes/1", `{"share_percent":101}`, 400, "share 101% is not a whole percentage"},
		{"POST", "/v1/processes/1", `{"laxity_ns":1}`, 400, "laxity cannot be set by set, only by: hint, page, scenario"},
		{"POST", "/v1/processes/x", `{"class":"batch"}`, 400, `\"x\" is not a pid`},
		{"POST", "/v1/processes/0", `{"class":"batch"}`, 400, "is not a pid"},
		{"POST", "/v1/processes/-1", `{"class":"batch"}`, 400, "is not a pid"},
		{"POST", "/v1/processes/99999999999999999999", `{"class":"batch"}`, 400, "is not a pid"},
		{"POST", "/v1/processes/1", "", 400, "the body is empty"},
		{"POST", "/v1/processes/1", "{", 400, "unexpected EOF"},
		{"POST", "/v1/processes/1", "[]", 400, "cannot unmarshal array"},
		{"POST", "/v1/processes/1", "{}", 400, "the request sets no attribute"},
		{"POST", "/v1/processes/1", "null", 400, "the request sets no attribute"},
		{"POST", "/v1/processes/1", `{"tree":true}`, 400, "the request sets no attribute"},
		{"POST", "/v1/processes/1", `{"tree":1,"class":"batch"}`, 400, "cannot unmarshal number"},
		{"POST", "/v1/processes/1", `{"class":"batch"} {}`, 400, "more than one value"},
		{"POST", "/v1/processes/1", `{"class":"batch","colour":"red"}`, 400, `there is no key \"colour\"; there are: tree, class,`},
		{"POST", "/v1/processes/1", `{"class":"bach"}`, 400, `class bach is not one of online, standard, batch, idle`},
		{"POST", "/v1/processes/1", `{"weight":0}`, 400, "weight 0 is not a whole number from 1 to 10000"},
		{"POST", "/v1/processes/1", `{"weight":-1}`, 400, "weight -1 is not a whole number"},
		{"POST", "/v1/processes/1", `{"weight":4294967295}`, 400, "from 1 to 10000"},
		{"POST", "/v1/processes/1", `{"priority":4294967296}`, 400, "priority 4294967296 is not a whole number"},
		{"POST", "/v1/processes/1", `{"deadline_ns":-5}`, 400, "deadline -5ns is not a time from 0"},
		{"POST", "/v1/processes/1", `{"class":"` + strings.Repeat("x", 70<<10) + `"}`, 413, "too large"},
		{"POST", "/v1/processes/1", strings.Repeat("[", 20000), 400, "read the request"},
		{"POST", "/v1/runs", `{}`, 400, "the request sets no attribute"},
		{"POST", "/v1/runs", `{"paused":true}`, 400, "paused cannot be set by run, only by: set"},
		{"POST", "/v1/runs", `{"Change":{"class":"batch"}}`, 400, `there is no attribute \"Change\"`},
		{"POST", "/v1/policy", `{}`, 400, "the name of the policy is missing"},
		{"POST", "/v1/policy", `{"name":"rr","overruled":"x"}`, 400, "overruled and devices can be read only"},
		{"POST", "/v1/policy", `{"name":"rr","params":{"a":1}}`, 400, "cannot unmarshal number"},
	} {
		w := ask(h, c.method, c.path, c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %.40s %.40s: got %d %s\nwant %d %s", c.method, c.path, c.body, w.Code, w.Body, c.status, c.want)
		}
		checkAnswer(t, w)
	}
}

// checkAnswer checks that an answer is JSON, except for metrics, and that a refusal has a
// reason.
func checkAnswer(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	if w.Code >= 300 && w.Code < 400 || w.Code == 200 && w.Body.Len() == 0 {
		return // a path with a dot or a slash too many; the answer to HEAD
	}
	if w.Code == 200 && w.Header().Get("Content-Type") == metrics.ContentType {
		return // package metrics tests its format
	}
	if w.Code == 200 {
		if !json.Valid(w.Body.Bytes()) {
			t.Errorf("no JSON: got %s", w.Body)
		}
		return
	}
	var e api.Error
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Message == "" || w.Code == 500 {
		t.Errorf("got %d %s, %v", w.Code, w.Body, err)
	}
}

// TestUnknownCaller: a caller that the kernel does not identify is refused.
func TestUnknownCaller(t *testing.T) {
	h := routesOf(New(mute{}, Config{}))
	r := httptest.NewRequest(http.MethodGet, "/v1/status", nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusForbidden {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

func FuzzRequest(f *testing.F) {
	for _, path := range []string{"/v1/processes", "/v1/processes/1", "/v1/runs", "/v1/policy", "/v1/status", "/v1/restore", "/metrics", "/v1/shim", "/v1/processes/1/hint", "/v1/containers", "/v1/containers/" + strings.Repeat("a", 64), "//", "/v1/processes/%zz"} {
		f.Add(true, path, `{"class":"batch","weight":2,"tree":true}`)
		f.Add(true, path, `{"name":"rr","params":{"quantum":"5ms"}}`)
		f.Add(false, path, "")
	}
	h := routesOf(New(mute{}, Config{}))
	f.Fuzz(func(t *testing.T, post bool, path, body string) {
		method := http.MethodGet
		if post {
			method = http.MethodPost
		}
		checkAnswer(t, ask(h, method, path, body))
	})
}

// TestCommandsAreNotStartedOverTCP: the token gives every right but that to start a
// command with the daemon's rights.
func TestCommandsAreNotStartedOverTCP(t *testing.T) {
	s := New(mute{}, Config{})
	s.token, _ = newToken([]byte("0123456789abcdef"), "x")
	for _, c := range []struct {
		body   string
		local  bool
		status int
	}{
		{`{"name":"external","params":{"exec":"true"}}`, false, 403},
		{`{"name":"external","params":{"socket":"/s"}}`, false, 200},
		{`{"name":"external","params":{"exec":"true"}}`, true, 200},
	} {
		ctx := context.WithValue(t.Context(), connKey{}, &connection{peer: peer{local: c.local}})
		r := httptest.NewRequestWithContext(ctx, "POST", "/v1/policy", strings.NewReader(c.body))
		r.Header.Set("Authorization", "Bearer 0123456789abcdef")
		w := httptest.NewRecorder()
		routesOf(s).ServeHTTP(w, r)
		if w.Code != c.status {
			t.Errorf("%s, local %v: got %d, want %d", c.body, c.local, w.Code, c.status)
		}
	}
}
