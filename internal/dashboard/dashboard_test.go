package dashboard

import (
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
)

const testToken = "secret"

// fakeDaemon answers with one process and one order, and notes changes.
type fakeDaemon struct {
	query   api.RecordQuery
	changes []api.Change
	err     error
}

func (d *fakeDaemon) Processes(context.Context) ([]api.Process, error) {
	slo := attr.Must("slo=1234567ns")
	layers := attr.Layers{attr.FromRule: slo}
	p := api.Process{PID: 7, Command: "train --key=hidden", Container: "hidden", Pod: "hidden", Attrs: attr.Resolve(&layers), Requests: &api.Requests{P99: 1234567}}
	return []api.Process{p}, d.err
}

func (d *fakeDaemon) Status(context.Context) (api.Status, error) {
	return api.Status{Version: "1"}, d.err
}

func (d *fakeDaemon) Record(_ context.Context, q api.RecordQuery) (api.Record, error) {
	d.query = q
	uid := int64(5)
	order := &api.Order{Name: "set", UID: &uid, Command: "giveway", To: "class=hidden"}
	return api.Record{Next: 3, Entries: []api.Entry{
		{Kind: api.KindOrder, Order: order},
		{Kind: api.KindRequest, Request: &api.RequestSpan{Begin: 1, End: 1234567}},
		{Kind: api.KindState, State: &api.StateChange{What: "process", Class: "batch", SLO: 1234567}},
	}}, d.err
}

func (d *fakeDaemon) Delays(context.Context) (api.Delays, error) { return api.Delays{}, d.err }

func (d *fakeDaemon) Pressure(context.Context) (api.Pressure, error) { return api.Pressure{}, d.err }

func (d *fakeDaemon) Change(_ context.Context, _ int, c api.Change) (api.Process, error) {
	d.changes = append(d.changes, c)
	return api.Process{PID: 7}, d.err
}

// call makes one request and returns status and body.
func call(t *testing.T, d Daemon, method, path, body string, header ...string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "127.0.0.1:8047"
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	Handler(d, testToken).ServeHTTP(w, r)
	text, _ := io.ReadAll(w.Result().Body)
	return w.Code, string(text)
}

func TestWithoutTheTokenNothingPrivateIsShown(t *testing.T) {
	for _, path := range []string{"/v1/processes", "/v1/record?last=true", "/v1/status", "/v1/delays", "/v1/pressure"} {
		for token, private := range map[string]bool{"": false, "wrong": false, testToken: true} {
			status, body := call(t, &fakeDaemon{}, "GET", path, "", tokenHeader, token)
			shows := strings.Contains(body, "hidden") || strings.Contains(body, "1234567")
			if status != http.StatusOK || shows && !private {
				t.Errorf("%s with token %q: got status %d, %s", path, token, status, body)
			}
			if private && !shows && (strings.Contains(path, "processes") || strings.Contains(path, "record")) {
				t.Errorf("%s with the token: got %s, want all of it", path, body)
			}
		}
	}
}

func TestChangesNeedTheToken(t *testing.T) {
	d := &fakeDaemon{}
	for _, token := range []string{"", "wrong"} {
		if status, body := call(t, d, "POST", "/v1/processes/7", `{"paused":true}`, tokenHeader, token); status != http.StatusForbidden || len(d.changes) > 0 {
			t.Errorf("token %q: got %d %s and changes %v, want it refused", token, status, body, d.changes)
		}
	}
	if status, body := call(t, d, "POST", "/v1/processes/7", `{"paused":true}`, tokenHeader, testToken); status != http.StatusOK || len(d.changes) != 1 {
		t.Errorf("with the token: got %d %s and changes %v, want one", status, body, d.changes)
	}
	for _, bad := range []struct{ path, body string }{
		{"/v1/processes/7", `{"slo_ns":1}`},
		{"/v1/processes/7", `{"tree":true}`},
		{"/v1/processes/7", `{"class":"emperor"}`},
		{"/v1/processes/7", `[`},
		{"/v1/processes/x", `{"paused":true}`},
		{"/v1/processes/7", `{"class":"` + strings.Repeat("x", 5000) + `"}`},
	} {
		if status, _ := call(t, d, "POST", bad.path, bad.body, tokenHeader, testToken); status != http.StatusBadRequest || len(d.changes) != 1 {
			t.Errorf("%s %.40s: got status %d, want it refused", bad.path, bad.body, status)
		}
	}
}

// TestOtherSitesAreRefused: a page of another site may make requests to this machine, and
// may make its own name resolve to it.
func TestOtherSitesAreRefused(t *testing.T) {
	for _, c := range []struct {
		header []string
		want   int
	}{
		{[]string{"Host", "evil.example:8047"}, http.StatusForbidden},
		{[]string{"Host", "127.0.0.1.evil.example"}, http.StatusForbidden},
		{[]string{"Origin", "https://evil.example"}, http.StatusForbidden},
		{[]string{"Origin", "null"}, http.StatusForbidden},
		{[]string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		{[]string{"Sec-Fetch-Site", "same-site"}, http.StatusForbidden},
		{[]string{"Sec-Fetch-Site", "same-origin"}, http.StatusOK},
		{[]string{"Sec-Fetch-Site", "none"}, http.StatusOK},
		{[]string{"Origin", "http://127.0.0.1:8047"}, http.StatusOK},
		{[]string{"Host", "localhost:8047", "Origin", "http://localhost:8047"}, http.StatusOK},
		{[]string{"Host", "[::1]:8047"}, http.StatusOK},
	} {
		if status, body := call(t, &fakeDaemon{}, "GET", "/v1/status", "", c.header...); status != c.want {
			t.Errorf("%q: got %d %s, want %d", c.header, status, body, c.want)
		}
	}
}

// TestRequestsWithoutTheTokenAreLimited: they spend what the daemon allows the user who
// serves the page.
func TestRequestsWithoutTheTokenAreLimited(t *testing.T) {
	h := Handler(&fakeDaemon{}, testToken)
	status := func(token string) int {
		r := httptest.NewRequest("GET", "/v1/status", nil)
		r.Host = "localhost"
		r.Header.Set(tokenHeader, token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	refused := 0
	for range 10 * othersAtOnce {
		if status("") == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused == 0 || status(testToken) != http.StatusOK {
		t.Errorf("%d of %d requests were refused; want most, and none with the token", refused, 10*othersAtOnce)
	}
}

func TestQuery(t *testing.T) {
	d := &fakeDaemon{}
	if status, body := call(t, d, "GET", "/v1/record?after=12&kinds=span,wait&limit=99999&last=true", ""); status != http.StatusOK {
		t.Fatalf("got %d %s", status, body)
	}
	if q := d.query; q.After != 12 || len(q.Kinds) != 2 || q.Limit != api.MaxRecordLimit || !q.Last {
		t.Errorf("got %+v", q)
	}
	for _, bad := range []string{"after=-1", "after=x", "limit=1e9", "kinds=span,nothing"} {
		if status, _ := call(t, d, "GET", "/v1/record?"+bad, ""); status != http.StatusBadRequest {
			t.Errorf("%s: got status %d, want 400", bad, status)
		}
	}
}

func TestErrorsOfTheDaemon(t *testing.T) {
	for err, want := range map[error]int{client.ErrNoDaemon: http.StatusBadGateway, &client.Error{Status: 409, Message: "not now"}: 409} {
		status, body := call(t, &fakeDaemon{err: err}, "GET", "/v1/processes", "")
		var e api.Error
		if json.Unmarshal([]byte(body), &e) != nil || status != want || e.Message != err.Error() {
			t.Errorf("%v: got %d %s, want %d", err, status, body, want)
		}
	}
}

// TestPageNeedsNothingElse: the page works without a network, and has no script of its own
// that the policy of its contents would forbid.
func TestPageNeedsNothingElse(t *testing.T) {
	err := fs.WalkDir(files, "page", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, path)
		for _, bad := range []string{"http:", "https:", "//cdn", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " onclick=\"", "<style"} {
			if strings.Contains(strings.ReplaceAll(string(text), `xmlns="http://www.w3.org/2000/svg"`, ""), bad) {
				t.Errorf("%s has %q", path, bad)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Host = "localhost"
	w := httptest.NewRecorder()
	Handler(&fakeDaemon{}, testToken).ServeHTTP(w, r)
	if policy := w.Header().Get("Content-Security-Policy"); w.Code != http.StatusOK || !strings.HasPrefix(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
		t.Errorf("got status %d and policy %q", w.Code, policy)
	}
}
