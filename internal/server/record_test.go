package server_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/record"
	"github.com/giveway/giveway/internal/server"
	"github.com/giveway/giveway/sched"
)

func addSpans(r *record.Record, n int) {
	for i := range n {
		r.Add(&record.Entry{Kind: record.Span, PID: int32(i + 1), At: sched.Time(i)})
	}
}

// TestRecordSnapshot reads the record in pieces.
func TestRecordSnapshot(t *testing.T) {
	n := newFake()
	socket, stop := start(t, n)
	defer stop()
	c := client.New(socket)
	defer c.Close()
	addSpans(n.rec, 2500)
	var q api.RecordQuery
	seen := 0
	for more := true; more; {
		r, err := c.Record(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if r.Version != api.RecordVersion || r.Lost != 0 || r.Began.IsZero() {
			t.Fatalf("got %+v", r)
		}
		for _, e := range r.Entries {
			if seen++; e.Seq != uint64(seen) || e.PID != seen || e.Kind != api.KindSpan || e.Span == nil {
				t.Fatalf("entry %d is %+v", seen, e)
			}
		}
		q.After, more = r.Next, r.More
	}
	if seen != 2500 {
		t.Errorf("got %d entries", seen)
	}
	n.rec.Note("", 0, "guardian", "died")
	r, err := c.Record(t.Context(), api.RecordQuery{Kinds: []api.EntryKind{api.KindNote}, Last: true, Limit: 5})
	if err != nil || len(r.Entries) != 1 || r.Entries[0].Note.Text != "died" {
		t.Errorf("got %+v, %v", r, err)
	}
	for _, wrong := range []api.RecordQuery{{Limit: api.MaxRecordLimit + 1}, {Kinds: []api.EntryKind{"nonsense"}}} {
		_, err := c.Record(t.Context(), wrong)
		if refusal := (*client.Error)(nil); !errors.As(err, &refusal) || refusal.Status != http.StatusBadRequest {
			t.Errorf("%+v: got %v", wrong, err)
		}
	}
}

// TestRecordStream follows the record, breaks off and goes on where it was.
func TestRecordStream(t *testing.T) {
	n := newFake()
	socket, stop := start(t, n)
	defer stop()
	c := client.New(socket)
	defer c.Close()
	addSpans(n.rec, 100)
	done := errors.New("done")
	follow := func(q api.RecordQuery, until uint64) (next uint64) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		expect := q.After
		err := c.FollowRecord(ctx, q, func(r api.Record) error {
			for _, e := range r.Entries {
				if expect++; e.Seq != expect {
					t.Errorf("got entry %d, want %d", e.Seq, expect)
				}
			}
			if next = r.Next; next == 100 {
				addSpans(n.rec, 50) // while the stream is open
			}
			if next >= until {
				return done
			}
			return nil
		})
		if !errors.Is(err, done) {
			t.Fatal(err)
		}
		return next
	}
	next := follow(api.RecordQuery{}, 150)
	addSpans(n.rec, 50)
	if next = follow(api.RecordQuery{After: next, Limit: 7}, 200); next != 200 {
		t.Errorf("got %d, want 200", next)
	}
}

// TestStreamResumesByEventID reads the stream as a browser does.
func TestStreamResumesByEventID(t *testing.T) {
	n := newFake()
	socket, stop := start(t, n)
	defer stop()
	addSpans(n.rec, 10)
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(conn, "GET /v1/record/stream HTTP/1.1\r\nHost: x\r\nLast-Event-ID: 7\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for in := bufio.NewScanner(conn); in.Scan(); {
		if lines = append(lines, in.Text()); strings.HasPrefix(in.Text(), "id: ") {
			break
		}
	}
	text := strings.Join(lines, "\n")
	if !strings.Contains(text, "Content-Type: text/event-stream") || !strings.Contains(text, `"seq":8,`) || strings.Contains(text, `"seq":7,`) || !strings.HasSuffix(text, "\nid: 10") {
		t.Errorf("got %s", text)
	}
}

// TestStreamsAreBounded opens streams until one is refused, and closes one.
func TestStreamsAreBounded(t *testing.T) {
	n := newFake()
	socket, stop := start(t, n)
	defer stop()
	addSpans(n.rec, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	open := func() error {
		began, failed := make(chan struct{}, 1), make(chan error, 1)
		go func() {
			failed <- client.New(socket).FollowRecord(ctx, api.RecordQuery{}, func(api.Record) error { began <- struct{}{}; return nil })
		}()
		select {
		case <-began:
			return nil
		case err := <-failed:
			return err
		}
	}
	opened := 0
	var err error
	for ; err == nil && opened < 1000; opened++ {
		err = open()
	}
	if refusal := (*client.Error)(nil); !errors.As(err, &refusal) || refusal.Status != http.StatusTooManyRequests {
		t.Fatalf("after %d streams: %v", opened, err)
	}
	cancel() // all end
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	for end := time.Now().Add(time.Minute); open() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no stream can be opened after all were closed")
		}
	}
}

// TestOrdersInTheRecord checks what users see of orders: their own, those about their
// processes and those that affect everyone.
func TestOrdersInTheRecord(t *testing.T) {
	n := newFake()
	socket, stop := start(t, n)
	defer stop()
	c := client.New(socket)
	defer c.Close()
	if _, err := c.Change(t.Context(), 4712, api.Change{Values: set("weight=3").Given()}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SetPolicy(t.Context(), api.Policy{Name: "rr"}); err != nil {
		t.Fatal(err)
	}
	r, err := c.Record(t.Context(), api.RecordQuery{Kinds: []api.EntryKind{api.KindOrder}})
	if err != nil || len(r.Entries) != 2 {
		t.Fatalf("got %+v, %v", r, err)
	}
	set, policy := r.Entries[0], r.Entries[1].Order
	if o := set.Order; set.PID != 4712 || o.Name != "set" || !strings.Contains(o.To, "weight=3") || o.UID == nil || *o.UID != int64(os.Getuid()) || o.PID != os.Getpid() || o.Command == "" {
		t.Errorf("got %+v", o)
	}
	if policy.Name != "policy" || policy.From != "giveway" || policy.To != "rr" {
		t.Errorf("got %+v", policy)
	}
}

// TestPressureAsText reads pressure in the kernel's format.
func TestPressureAsText(t *testing.T) {
	socket, stop := start(t, newFake())
	defer stop()
	get := func(path string) (string, int) {
		tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) }}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr}).Get("http://giveway" + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return string(text), resp.StatusCode
	}
	none := "avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
	for path, want := range map[string]string{
		"/v1/pressure?device=0&format=psi": "some avg10=1.50 avg60=0.00 avg300=0.00 total=7000\nfull " + none,
		"/v1/pressure?pid=4711&format=psi": "some " + none + "full avg10=0.00 avg60=0.00 avg300=99.25 total=0\n",
	} {
		if got, status := get(path); got != want || status != http.StatusOK {
			t.Errorf("%s: got %d %q, want %q", path, status, got, want)
		}
	}
	if _, status := get("/v1/pressure?pid=1"); status != http.StatusNotFound {
		t.Errorf("an unknown process: got %d", status)
	}
}

// TestStreamOverTCP reads the stream over TCP.
func TestStreamOverTCP(t *testing.T) {
	const secret = "0123456789abcdef"
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	n := newFake()
	addSpans(n.rec, 3)
	s := newServer(n, server.Config{TCP: "127.0.0.1:0", TokenFile: tokenFile})
	serve(t, s)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Addrs()[0].String()+"/v1/record/stream?after=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewScanner(resp.Body)
	if !in.Scan() || !strings.HasPrefix(in.Text(), `data: {"version":1,`) || !strings.Contains(in.Text(), `"seq":2,`) {
		t.Errorf("got %d %q, %v", resp.StatusCode, in.Text(), in.Err())
	}
}
