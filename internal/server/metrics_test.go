package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/record"
)

func attrs(text string) attr.Resolved {
	return attr.Resolve(&attr.Layers{attr.FromSet: attr.Must(text)})
}

// busy is a node with processes of two users.
type busy struct{ mute }

func (busy) Processes() []api.Process {
	queue := func(id uint64) []api.Queue {
		return []api.Queue{{ID: id, Device: "GPU-a", State: "running", Served: time.Second}}
	}
	return []api.Process{
		{PID: 5, Command: "train --key=hunter2", Container: "c0ffee", Pod: "web-0", User: "alice", UID: 1000, Attrs: attrs("class=batch"), Queues: queue(1)},
		{PID: 6, Command: "serve --key=hunter3", User: "bob", UID: 1001, Attrs: attrs("class=online"), Queues: queue(2)},
	}
}

func (n busy) Process(pid int) (api.Process, bool) { return one(n.Processes(), pid) }

func (busy) Status() api.Status { return api.Status{Version: "test", KernelLogLines: 3} }

// rooted is a busy node on which root has a process as well.
type rooted struct {
	busy
	rec *record.Record
}

func (n rooted) Record() *record.Record { return n.rec }

func (n rooted) Processes() []api.Process {
	all := n.busy.Processes()
	all[0].Shim, all[0].Requests = &api.Shim{Launched: 3}, &api.Requests{Count: 1}
	return append(all, api.Process{PID: 7, Command: "hunter4", User: "root", Container: "c0ffee", Attrs: attrs("class=idle")})
}

func (n rooted) Process(pid int) (api.Process, bool) { return one(n.Processes(), pid) }

// TestMetrics: a caller that may list processes may scrape, and sees no more. Command
// lines, containers and pods are in no metrics.
func TestMetrics(t *testing.T) {
	s := New(busy{}, Config{})
	s.token, _ = newToken([]byte("0123456789abcdef"), "x")
	h := routesOf(s)
	scrape := func(method, authorization string, p *peer) *httptest.ResponseRecorder {
		ctx := t.Context()
		if p != nil {
			ctx = context.WithValue(ctx, connKey{}, &connection{peer: *p})
		}
		r := httptest.NewRequestWithContext(ctx, method, "/metrics", nil)
		r.Header.Set("Authorization", authorization)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for _, c := range []struct {
		who, method, authorization string
		peer                       *peer
		status                     int
	}{
		{"root", "GET", "", &peer{local: true}, 200},
		{"the daemon's user", "GET", "", &peer{local: true, uid: uint32(os.Geteuid())}, 200},
		{"alice", "GET", "", &peer{local: true, uid: 1000}, 200},
		{"another user", "GET", "", &peer{local: true, uid: 65534}, 200},
		{"TCP with the token", "GET", "Bearer 0123456789abcdef", &peer{}, 200},
		{"TCP with another token", "GET", "Bearer 0123456789abcdee", &peer{}, 401},
		{"TCP without a token", "GET", "", &peer{}, 401},
		{"no peer", "GET", "", nil, 403},
		{"a peer that the kernel does not identify", "GET", "", &peer{local: true, err: errNoPeer}, 403},
		{"root, with POST", "POST", "", &peer{local: true}, 405},
	} {
		w := scrape(c.method, c.authorization, c.peer)
		text := w.Body.String()
		if w.Code != c.status {
			t.Errorf("%s: got %d %s", c.who, w.Code, text)
			continue
		}
		for _, secret := range []string{"hunter", "c0ffee", "web-0", "train", "serve --"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s sees %q:\n%s", c.who, secret, text)
			}
		}
		if c.status != http.StatusOK {
			if strings.Contains(text, "giveway_") || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%s is refused with %s", c.who, text)
			}
			continue
		}
		if got := w.Header().Get("Content-Type"); got != "text/plain; version=0.0.4; charset=utf-8" {
			t.Errorf("%s: content type %q", c.who, got)
		}
		for _, want := range []string{
			`giveway_build_info{version="test"} 1`, "giveway_kernel_log_lines_total 3", `giveway_processes{class="batch"} 1`,
			`giveway_queue_state{device="GPU-a",pid="6",queue="2",state="running"} 1`,
		} {
			if !strings.Contains(text, want+"\n") {
				t.Errorf("%s: no %s in\n%s", c.who, want, text)
			}
		}
	}
}
