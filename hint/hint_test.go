package hint

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/shim/pageclient"
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

func timeout(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), pagetest.Timeout)
	t.Cleanup(cancel)
	return ctx
}

func TestDaemonReadsAllHints(t *testing.T) {
	d := pagetest.New(t, nil)
	s, err := connect(timeout(t), pageclient.NewPage())
	if err != nil || !s.Connected() {
		t.Fatalf("connected %v, error %v; want true, nil", s.Connected(), err)
	}
	page := d.Page()
	s.Priority(-3)
	s.Deadline(4 * time.Millisecond)
	s.Laxity(5 * time.Millisecond)
	s.Work(6 * time.Millisecond)
	s.SLO(7 * time.Millisecond)
	s.Idempotent(true)
	s.Idempotent(false)
	end := s.Begin()
	before := shimpage.Monotonic(time.Now())
	s.Expect(time.Minute)
	s.Expect(0)
	s.Expect(-time.Millisecond)
	end()
	ms := int64(time.Millisecond)
	want := []shimpage.Hint{
		{Kind: shimpage.HintPriority, Value: -3},
		{Kind: shimpage.HintDeadline, Value: 4 * ms},
		{Kind: shimpage.HintLaxity, Value: 5 * ms},
		{Kind: shimpage.HintWork, Value: 6 * ms},
		{Kind: shimpage.HintSLO, Value: 7 * ms},
		{Kind: shimpage.HintIdempotent, Value: 1},
		{Kind: shimpage.HintIdempotent, Value: 0},
		{Kind: shimpage.HintBegin, Value: 1},
		{Kind: shimpage.HintExpect, Value: 1}, // stands for a minute from now
		{Kind: shimpage.HintExpect, Value: 0},
		{Kind: shimpage.HintExpect, Value: -1},
		{Kind: shimpage.HintEnd, Value: 1},
	}
	for i, h := range pagetest.Hints(t, page, len(want)) {
		if h.Kind == shimpage.HintExpect && h.Value > 0 {
			from := before + uint64(59*time.Second) // 1 s of tolerance for a slow machine
			if uint64(h.Value) < from || uint64(h.Value) > from+uint64(pagetest.Timeout) {
				t.Errorf("arrival at %d, want a minute after %d", h.Value, before)
			}
			h.Value = 1
		}
		if h.At = 0; h != want[i] {
			t.Errorf("hint %d: got %+v, want %+v", i, h, want[i])
		}
	}
}

// TestSessionFindsLaterDaemon: a session without a daemon can be used, and connects to a
// daemon that starts later.
func TestSessionFindsLaterDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	t.Setenv("GIVEWAY_SOCKET", socket)
	s, err := connect(timeout(t), pageclient.NewPage())
	if err == nil || s == nil || s.Connected() {
		t.Fatalf("without a daemon: session %v, error %v; want a session that is not connected, and an error", s, err)
	}
	s.Priority(5)
	s.Begin()()
	d := pagetest.At(t, socket, nil)
	pagetest.Until(t, "the session is connected", func() bool { s.Begin()(); return s.Connected() })
	priority := int64(0)
	d.Page().Hints(func(h shimpage.Hint) {
		if h.Kind == shimpage.HintPriority {
			priority = h.Value
		}
	})
	if priority != 5 {
		t.Errorf("the daemon read priority %d, want 5", priority)
	}
}

// recorder is a control socket that records the requests it gets.
type recorder struct {
	mu  sync.Mutex
	got []string
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var body map[string]any
	_ = json.NewDecoder(req.Body).Decode(&body)
	text, _ := json.Marshal(body)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, req.Method+" "+req.URL.Path+" "+string(text))
	if req.URL.Path == "/v1/policy" {
		_ = json.NewEncoder(w).Encode(api.Policy{})
	} else {
		_ = json.NewEncoder(w).Encode(api.Process{})
	}
}

// TestHintsGoOverSocketWithLibrary: if the shim has the page, hints go over the
// control socket, in order.
func TestHintsGoOverSocketWithLibrary(t *testing.T) {
	name := filepath.Join(t.TempDir(), "libgiveway.so")
	if err := os.WriteFile(name, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	loaded, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ, syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(loaded)
	socket := filepath.Join(t.TempDir(), "s")
	t.Setenv("GIVEWAY_SOCKET", socket)
	listen, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{}
	server := &http.Server{Handler: r}
	go func() { _ = server.Serve(listen) }()
	defer server.Close()

	s, err := connect(timeout(t), pageclient.NewPage())
	if err != nil || !s.Connected() {
		t.Fatalf("connected %v, error %v; want true, nil", s.Connected(), err)
	}
	id := strconv.FormatInt(s.sender.lastID.Load()+1, 10)
	s.Priority(3)
	s.SLO(time.Second)
	s.Idempotent(true)
	end := s.Begin()
	s.Expect(time.Second)
	s.Expect(0)
	end()
	end()
	me := "/v1/processes/" + strconv.Itoa(os.Getpid())
	want := []string{
		"GET /v1/policy null",
		"POST " + me + `/hint {"priority":3}`,
		"POST " + me + `/hint {"slo_ns":1000000000}`,
		"POST " + me + `/hint {"idempotent":true}`,
		"POST " + me + `/hint {"begin":` + id + `}`,
		"POST " + me + `/hint {"expect_ns":1000000000}`,
		"POST " + me + `/hint {"expect_ns":0}`,
		"POST " + me + `/hint {"end":` + id + `}`,
	}
	recorded := func() []string {
		r.mu.Lock()
		defer r.mu.Unlock()
		return append([]string(nil), r.got...)
	}
	pagetest.Until(t, "all messages are sent", func() bool { return len(recorded()) >= len(want) })
	if got := strings.Join(recorded(), "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}
