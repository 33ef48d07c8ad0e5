package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/policy"
)

// FuzzAPI sends requests, many of them wrong, over the daemon's socket to a daemon that
// controls two processes. It checks that every request is answered soon and with JSON, that
// none is answered with status 500, that what an answer says is what the next request
// shows, and that restore undoes everything.
func FuzzAPI(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seedTape(seed, 60+60*int(seed)))
	}
	h := newAPIFuzz(f)
	f.Fuzz(func(t *testing.T, input []byte) { h.run(t, input) })
}

// apiFuzz is a daemon with two processes, which is shared by all inputs.
type apiFuzz struct {
	b    *fakeBackend
	pids []int
	http http.Client
}

func newAPIFuzz(f *testing.F) *apiFuzz {
	h := &apiFuzz{b: newFakeBackend(f.TempDir())}
	socket, _ := serve(f, newTestDaemon(newShim(), h.b))
	for range 2 {
		p, _ := sleeper(f)
		h.b.mustOffer(f, p)
		h.pids = append(h.pids, p.PID)
	}
	var d net.Dialer
	h.http.Transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", socket) },
	}
	return h
}

func (h *apiFuzz) run(t *testing.T, input []byte) {
	ctx, cancel := context.WithCancel(t.Context()) // ends the runs
	defer cancel()
	in := tape(input)
	for requests := 0; len(in) > 0 && requests < 50; requests++ {
		r := h.request(&in)
		if r.startsCommand() {
			continue
		}
		status, body := h.send(ctx, t, r)
		if status == http.StatusOK {
			h.checkEffect(ctx, t, r, body)
		}
	}
	h.checkProcesses(t, h.get(ctx, t, "/v1/processes"))
	if status, body := h.send(ctx, t, apiRequest{http.MethodPost, "/v1/restore", ""}); status != http.StatusOK {
		t.Fatalf("restore: got %d %s", status, body)
	}
	for _, pid := range h.pids {
		if got := h.b.hardware(pid); got != (hardware{}) {
			t.Fatalf("after restore: got %+v, want no change left", got)
		}
	}
}

type apiRequest struct{ method, path, body string }

// startsCommand reports whether the request would start a command with the rights of the
// test.
func (r apiRequest) startsCommand() bool {
	var p api.Policy
	_ = json.Unmarshal([]byte(r.body), &p)
	return p.Params["exec"] != "" || strings.Contains(strings.ToLower(r.body), "exec")
}

// request makes a request.
func (h *apiFuzz) request(in *tape) apiRequest {
	pid := []string{
		fmt.Sprint(h.pids[0]), fmt.Sprint(h.pids[1]), fmt.Sprint(h.pids[0]), fmt.Sprint(os.Getpid()),
		"1", "0", "-1", "99999999", "9223372036854775808", "x", "%00", "",
	}[in.number(12)]
	post := http.MethodPost
	switch in.number(10) {
	case 0, 1, 2:
		return apiRequest{post, "/v1/processes/" + pid, attrBody(in, attr.BySet, `"tree":true`)}
	case 3, 4:
		return apiRequest{post, "/v1/processes/" + pid + "/hint", attrBody(in, attr.ByHint, fmt.Sprintf(`"begin":%d`, in.number(3)), fmt.Sprintf(`"end":%d`, in.number(3)))}
	case 5:
		return apiRequest{post, "/v1/runs", attrBody(in, attr.ByRun)}
	case 6:
		return apiRequest{post, "/v1/policy", policyBody(in)}
	case 7:
		return apiRequest{post, []string{"/v1/restore", "/v1/shim", "/v1/processes", "/metrics"}[in.number(4)], string(in.bytes(in.number(8)))}
	case 8:
		return apiRequest{http.MethodGet, []string{"/v1/processes", "/v1/policy", "/v1/status", "/metrics", "/v1/runs"}[in.number(5)], ""}
	}
	return apiRequest{post, "/v1/processes/" + pid, string(in.bytes(in.number(64)))}
}

// attrBody makes an object of attributes, with values that are often out of range, and of
// some of the other keys.
func attrBody(in *tape, way attr.Way, others ...string) string {
	var keys []string
	ids := attr.IDs(way)
	for range 1 + in.number(3) {
		row, v := ids[in.number(len(ids))].Row(), fmt.Sprint(int64(in.word()))
		switch in.number(8) {
		case 0:
			v = fmt.Sprintf("%q", attr.ClassNames()[in.number(len(attr.ClassNames()))])
		case 1, 2:
			v = fmt.Sprint(in.number(2) == 0)
		case 3:
			v = []string{"null", "[]", "{}", "1e99", `"`, "-0", `"\u0000"`, "0.5"}[in.number(8)]
		}
		keys = append(keys, fmt.Sprintf("%q:%s", row.Key, v))
	}
	for _, other := range others {
		if in.number(4) == 0 {
			keys = append(keys, other)
		}
	}
	return "{" + strings.Join(keys, ",") + "}"
}

// policyBody names a policy and parameters, some of which it has.
func policyBody(in *tape) string {
	names := append(policy.Names(), "external", "none", "")
	p := api.Policy{Name: names[in.number(len(names))], Device: []string{"", "", "", "0", "fake0", "opencl", "9"}[in.number(7)]}
	keys := []string{"turn", "quantum", "socket", "deadline", "fallback", "k", "window", "x"}
	values := []string{"5ms", "1", "-1", "0", "1h", "/nowhere", "native", "NaN", "99999999999999999999"}
	for range in.number(3) {
		if p.Params == nil {
			p.Params = map[string]string{}
		}
		p.Params[keys[in.number(len(keys))]] = values[in.number(len(values))]
	}
	body, _ := json.Marshal(p)
	return string(body)
}

// answerTime is much longer than any answer takes, and shorter than the watchdog of a
// daemon whose lock is held.
const answerTime = 8 * time.Second

// send sends a request and checks the form of its answer. Of a run, which has no end, it
// reads the first line.
func (h *apiFuzz) send(ctx context.Context, t *testing.T, r apiRequest) (status int, body []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, r.method, "http://giveway"+r.path, strings.NewReader(r.body))
	if err != nil {
		return 0, nil // a path that a client cannot send
	}
	began := time.Now()
	answer, err := h.http.Do(req)
	if err != nil {
		t.Fatalf("%+v: %v", r, err)
	}
	if r.path == "/v1/runs" && answer.StatusCode == http.StatusOK {
		context.AfterFunc(ctx, func() { answer.Body.Close() })
		return answer.StatusCode, nil
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(answer.Body)
	if took := time.Since(began); err != nil || took > answerTime {
		t.Fatalf("%+v: answered after %v, %v", r, took, err)
	}
	var refusal api.Error
	switch status = answer.StatusCode; {
	case status == http.StatusOK && r.path == "/metrics":
	case status == http.StatusOK && json.Valid(body):
	case status >= 300 && status < 400: // a path with a dot or a slash too many
	case status >= 400 && status < 500 && json.Unmarshal(body, &refusal) == nil && refusal.Message != "":
	default:
		t.Fatalf("%+v: got %d %s", r, status, body)
	}
	return status, body
}

func (h *apiFuzz) get(ctx context.Context, t *testing.T, path string) []byte {
	t.Helper()
	status, body := h.send(ctx, t, apiRequest{http.MethodGet, path, ""})
	if status != http.StatusOK {
		t.Fatalf("GET %s: got %d %s", path, status, body)
	}
	return body
}

// checkEffect checks that the answer to a request that was accepted agrees with what the
// daemon shows afterwards.
func (h *apiFuzz) checkEffect(ctx context.Context, t *testing.T, r apiRequest, body []byte) {
	t.Helper()
	switch {
	case r.path == "/v1/policy" && r.method == http.MethodPost:
		var sent, got api.Policy
		if json.Unmarshal([]byte(r.body), &sent) != nil || json.Unmarshal(h.get(ctx, t, "/v1/policy"), &got) != nil {
			t.Fatalf("%+v: not a policy", r)
		}
		inForce := got.Name == sent.Name || slices.ContainsFunc(got.Devices, func(p api.Policy) bool { return p.Name == sent.Name })
		if !inForce {
			t.Fatalf("%+v was accepted, and afterwards the policy is %+v", r, got)
		}
	case strings.HasPrefix(r.path, "/v1/processes/"):
		var answer api.Process
		if err := json.Unmarshal(body, &answer); err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		for _, p := range h.checkProcesses(t, h.get(ctx, t, "/v1/processes")) {
			if p.PID == answer.PID && (p.Class() != answer.Class() || p.Attrs.Bool(attr.Paused) != answer.Attrs.Bool(attr.Paused)) {
				t.Fatalf("%+v was answered with %+v, and afterwards the process is %+v", r, answer, p)
			}
		}
	}
}

// checkProcesses checks that the list has the processes of the test, in order of pid.
func (h *apiFuzz) checkProcesses(t *testing.T, body []byte) (all []api.Process) {
	t.Helper()
	if err := json.Unmarshal(body, &all); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	var pids []int
	for _, p := range all {
		pids = append(pids, p.PID)
	}
	if want := slices.Sorted(slices.Values(h.pids)); !slices.Equal(pids, want) {
		t.Fatalf("got processes %v, want %v", pids, want)
	}
	return all
}
