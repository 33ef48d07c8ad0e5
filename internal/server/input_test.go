package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/metrics"
)

type mute struct{}

func (mute) Processes() []api.Process                          { return nil }
func (mute) Change(int, api.Change) (p api.Process, err error) { return p, nil }
func (mute) Hint(int, api.Hint) (p api.Process, err error)     { return p, nil }
func (mute) Policy() (p api.Policy)                            { return p }
func (mute) SetPolicy(p api.Policy) (api.Policy, error)        { return p, nil }
func (mute) Status() (s api.Status)                            { return s }
func (mute) Restore() error                                    { return nil }
func (mute) BeginRun(int, api.Change) (end func(), err error)  { return func() {}, nil }

// ask makes a request as the daemon's own user.
func ask(h http.Handler, method, path, body string) *httptest.ResponseRecorder {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a run ends at once
	ctx = context.WithValue(ctx, peerKey{}, peer{local: true, uid: uint32(os.Geteuid()), pid: os.Getpid()})
	r := httptest.NewRequest(http.MethodGet, "/", strings.NewReader(body)).WithContext(ctx)
	r.Method, r.URL.Path = method, path
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestBadInput(t *testing.T) {
	h := New(mute{}, Config{}).routes()
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/", "", 404, `there is no \"/\" here: not found`},
		{"GET", "/v2/processes", "", 404, "not found"},
		{"GET", "/" + strings.Repeat("x", 5000), "", 404, "not found"},
		{"DELETE", "/v1/processes", "", 405, `\"/v1/processes\" takes GET only`},
		{"PUT", "/v1/policy", "", 405, "takes GET, POST only"},
		{"GET", "/v1/restore", "", 405, "takes POST only"},
		{"GET", "/v1/runs", "", 405, "takes POST only"},
		{"POST", "/metrics", "", 405, "takes GET only"},
		{"GET", "/v1/shim", "", 405, "takes POST only"},
		{"POST", "/v1/shim", "", 409, "on the daemon's own socket"},
		{"GET", "/v1/processes/1/hint", "", 405, "takes POST only"},
		{"POST", "/v1/processes/x/hint", `{"priority":1}`, 400, `\"x\" is not a pid`},
		{"POST", "/v1/processes/1/hint", `{}`, 400, "it says nothing"},
		{"POST", "/v1/processes/1/hint", `{"class":"online"}`, 400, "unknown field"},
		{"POST", "/v1/processes/1/hint", `{"expect_ns":-1}`, 400, "expect -1ns is not from 0"},
		{"POST", "/v1/processes/1/hint", `{"work_ns":1000000000000000000}`, 400, "work 277777h46m40s is not from 0"},
		{"POST", "/v1/processes/1/hint", `{"begin":1,"end":1}`, 400, "either begins or ends"},
		{"POST", "/v1/processes/1", `{"slo_ns":-1}`, 400, "slo -1ns is not from 0"},
		{"POST", "/v1/processes/1", `{"bound":65537}`, 400, "bound 65537 is not from 0"},
		{"POST", "/v1/processes/1", `{"bound":16,"bound_batch":32}`, 400, "batches of 32 are more than the bound of 16"},
		{"POST", "/v1/processes/x", `{"class":"batch"}`, 400, `\"x\" is not a pid`},
		{"POST", "/v1/processes/0", `{"class":"batch"}`, 400, "is not a pid"},
		{"POST", "/v1/processes/-1", `{"class":"batch"}`, 400, "is not a pid"},
		{"POST", "/v1/processes/99999999999999999999", `{"class":"batch"}`, 400, "is not a pid"},
		{"POST", "/v1/processes/1", "", 400, "the body is empty"},
		{"POST", "/v1/processes/1", "{", 400, "unexpected EOF"},
		{"POST", "/v1/processes/1", "[]", 400, "cannot unmarshal array"},
		{"POST", "/v1/processes/1", "{}", 400, "it asks for nothing"},
		{"POST", "/v1/processes/1", "null", 400, "it asks for nothing"},
		{"POST", "/v1/processes/1", `{"tree":true}`, 400, "it asks for nothing"},
		{"POST", "/v1/processes/1", `{"class":"batch"} {}`, 400, "more than one value"},
		{"POST", "/v1/processes/1", `{"class":"batch","colour":"red"}`, 400, `unknown field \"colour\"`},
		{"POST", "/v1/processes/1", `{"class":"bach"}`, 400, `there is no class \"bach\"; there are: online, standard, batch, idle`},
		{"POST", "/v1/processes/1", `{"weight":0}`, 400, "weight 0 is not from 1 to 10000"},
		{"POST", "/v1/processes/1", `{"weight":-1}`, 400, "cannot unmarshal number"},
		{"POST", "/v1/processes/1", `{"weight":4294967295}`, 400, "is not from 1 to 10000"},
		{"POST", "/v1/processes/1", `{"priority":4294967296}`, 400, "cannot unmarshal number"},
		{"POST", "/v1/processes/1", `{"deadline_ns":-5}`, 400, "deadline -5ns is not from 0"},
		{"POST", "/v1/processes/1", `{"class":"` + strings.Repeat("x", 70<<10) + `"}`, 413, "too large"},
		{"POST", "/v1/processes/1", strings.Repeat("[", 20000), 400, "bad request"},
		{"POST", "/v1/runs", `{}`, 400, "it asks for nothing"},
		{"POST", "/v1/runs", `{"Change":{"class":"batch"}}`, 400, "unknown field"},
		{"POST", "/v1/policy", `{}`, 400, "The name is missing"},
		{"POST", "/v1/policy", `{"name":"rr","overruled":"x"}`, 400, "overruled is the daemon's to say"},
		{"POST", "/v1/policy", `{"name":"rr","params":{"a":1}}`, 400, "cannot unmarshal number"},
	} {
		w := ask(h, c.method, c.path, c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %.40s %.40s: %d %s\nwant %d %s", c.method, c.path, c.body, w.Code, w.Body, c.status, c.want)
		}
		checkAnswer(t, w)
	}
}

// checkAnswer: whatever was asked but metrics, the answer is JSON, and a refusal says why.
func checkAnswer(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	if w.Code >= 300 && w.Code < 400 || w.Code == 200 && w.Body.Len() == 0 {
		return // a path with a dot or a slash too many; the beginning of a run
	}
	if w.Code == 200 && w.Header().Get("Content-Type") == metrics.ContentType {
		return // held to its format by package metrics
	}
	if w.Code == 200 {
		if !json.Valid(w.Body.Bytes()) {
			t.Errorf("no JSON: %s", w.Body)
		}
		return
	}
	var e api.Error
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Message == "" || w.Code == 500 {
		t.Errorf("%d %s: %v", w.Code, w.Body, err)
	}
}

// TestUnknownCaller: whom the kernel does not name may nothing.
func TestUnknownCaller(t *testing.T) {
	h := New(mute{}, Config{}).routes()
	r := httptest.NewRequest(http.MethodGet, "/v1/status", nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusForbidden {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func FuzzRequest(f *testing.F) {
	for _, path := range []string{"/v1/processes", "/v1/processes/1", "/v1/runs", "/v1/policy", "/v1/status", "/v1/restore", "/metrics", "/v1/shim", "/v1/processes/1/hint", "//", "/v1/processes/%zz"} {
		f.Add(true, path, `{"class":"batch","weight":2,"tree":true}`)
		f.Add(true, path, `{"name":"rr","params":{"quantum":"5ms"}}`)
		f.Add(false, path, "")
	}
	h := New(mute{}, Config{}).routes()
	f.Fuzz(func(t *testing.T, post bool, path, body string) {
		method := http.MethodGet
		if post {
			method = http.MethodPost
		}
		checkAnswer(t, ask(h, method, path, body))
	})
}

func TestLimit(t *testing.T) {
	l := limit(nil, true).(*limited)
	for range 3 {
		if !l.enter(7, 3) {
			t.Fatal("refused too early")
		}
	}
	if l.enter(7, 3) || !l.enter(8, 3) || !l.enter(0, 0) {
		t.Error("one user's connections are not that user's alone")
	}
	l.leave(7)
	if !l.enter(7, 3) {
		t.Error("a connection that is closed counts")
	}
}
