package extpolicy

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/giveway/giveway/policy"
	"github.com/giveway/giveway/sched"
)

func init() { StartTime, lineTime = 5*time.Second, 5*time.Second } // a machine that runs tests is busy

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name     string
		params   map[string]string
		want     Config
		fallback string
	}{
		{"socket", map[string]string{"socket": "/run/p"}, Config{Socket: "/run/p", Deadline: DefaultDeadline}, policy.Names()[0]},
		{"exec", map[string]string{"exec": "a b"}, Config{Exec: "a b", Deadline: DefaultDeadline}, policy.Names()[0]},
		{"deadline", map[string]string{"exec": "a", "deadline": "2ms"}, Config{Exec: "a", Deadline: 2 * time.Millisecond}, policy.Names()[0]},
		{"fallback", map[string]string{"exec": "a", "fallback": "native"}, Config{Exec: "a", Deadline: DefaultDeadline}, "native"},
	} {
		got, err := Parse(tt.params)
		if err != nil || got.Socket != tt.want.Socket || got.Exec != tt.want.Exec || got.Deadline != tt.want.Deadline || got.Fallback.Name != tt.fallback {
			t.Errorf("%s: got %+v, %v; want %+v with fallback %s", tt.name, got, err, tt.want, tt.fallback)
		}
	}
}

func TestParseRefusesBadParameters(t *testing.T) {
	for _, tt := range []struct {
		params map[string]string
		want   string
	}{
		{nil, "either socket"},
		{map[string]string{"socket": "", "exec": ""}, "either socket"},
		{map[string]string{"socket": "/a", "exec": "b"}, "either socket"},
		{map[string]string{"socket": "a"}, "not an absolute path"},
		{map[string]string{"exec": "b", "deadline": "999us"}, "from 1ms to 10s"},
		{map[string]string{"exec": "b", "deadline": "11s"}, "from 1ms to 10s"},
		{map[string]string{"exec": "b", "deadline": "10"}, "from 1ms to 10s"},
		{map[string]string{"exec": "b", "fallback": ""}, "there is no policy"},
		{map[string]string{"exec": "b", "fallback": policy.ExternalName}, "there is no policy"},
		{map[string]string{"exec": "b", "fallback": "hpf-global"}, "all devices at once"},
		{map[string]string{"exec": "b", "Deadline": "1s"}, "it has: socket, exec, deadline, fallback"},
	} {
		if got, err := Parse(tt.params); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: got %+v, %v; want an error with %q", tt.params, got, err, tt.want)
		}
	}
}

// node runs a scheduler with two queues and an external policy, whose process is the
// test: it accepts connections on a socket.
type node struct {
	t          *testing.T
	connection *Connection
	sched      *sched.Scheduler
	posted     chan sched.Event
	listener   net.Listener
	now        sched.Time
}

func newNode(t *testing.T) *node {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	cfg, err := Parse(map[string]string{"socket": path, "deadline": "10s", "fallback": "native"})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, listener: l, posted: make(chan sched.Event, 64)}
	n.connection = Start(cfg, func(evs ...sched.Event) {
		for _, ev := range evs {
			n.posted <- ev
		}
	}, func(string) {}, slog.New(slog.DiscardHandler))
	t.Cleanup(n.connection.Close)
	n.sched = sched.New(sched.Config{}, n.connection.Choice())
	n.step(
		sched.Event{Kind: sched.QueueOpened, Queue: 1, Device: "gpu0", Can: sched.CanInterrupt},
		sched.Event{Kind: sched.QueueOpened, Queue: 2, Device: "gpu0", Can: sched.CanInterrupt},
	)
	return n
}

// step lets more than the deadline pass and takes a turn of the loop. It returns the
// queues that were stopped.
func (n *node) step(evs ...sched.Event) (stopped []sched.QueueID) {
	n.now = n.now.Add(11 * time.Second)
	actions, _ := n.sched.Step(n.now, evs)
	for _, a := range actions {
		if a.Verb == sched.Stop {
			stopped = append(stopped, a.Queue)
		}
	}
	n.connection.Flush()
	return stopped
}

// nextEvent waits for an event that the connection posts.
func (n *node) nextEvent() sched.Event {
	n.t.Helper()
	select {
	case ev := <-n.posted:
		return ev
	case <-time.After(20 * time.Second):
		n.t.Fatal("no event was posted for 20 s")
		return sched.Event{}
	}
}

// problem waits until the reason why the fallback policy decides contains a text, or is
// empty for an empty text.
func (n *node) problem(want string) {
	n.t.Helper()
	var got string
	for range 2000 {
		got = n.connection.Problem(n.now)
		if got == "" && want == "" || want != "" && strings.Contains(got, want) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	n.t.Fatalf("problem: got %q, want %q", got, want)
}

// processEnd is the policy process's end of one connection.
type processEnd struct {
	t *testing.T
	net.Conn
	lines *bufio.Reader
}

func (n *node) accept() *processEnd {
	n.t.Helper()
	conn, err := n.listener.Accept()
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return &processEnd{n.t, conn, bufio.NewReader(conn)}
}

func (p *processEnd) question() (q policy.Question) {
	p.t.Helper()
	line, err := p.lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &q)
	}
	if err != nil {
		p.t.Fatalf("read a question: %v", err)
	}
	return q
}

// answer grants one queue.
func (p *processEnd) answer(number uint64, queue sched.QueueID) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p, `{"answer":%d,"grants":[{"queue":%d}]}`+"\n", number, queue); err != nil {
		p.t.Fatal(err)
	}
}

func TestAnswerIsCarriedOut(t *testing.T) {
	n := newNode(t)
	p := n.accept()
	q := p.question()
	if len(q.Queues) != 2 || len(q.Devices) != 1 {
		t.Errorf("question: got %d queues on %d devices, want 2 on 1", len(q.Queues), len(q.Devices))
	}
	p.answer(q.Number, 2)
	ev := n.nextEvent()
	if ev.Kind != sched.PlanOffered || ev.Device != "gpu0" || ev.Number != q.Number || ev.Plan == nil {
		t.Errorf("event: got %+v, want the plan of question %d for gpu0", ev, q.Number)
	}
	if stopped := n.step(ev); len(stopped) != 1 || stopped[0] != 1 {
		t.Errorf("stopped: got %v, want [1]", stopped)
	}
	n.problem("")
}

func TestConnectionIsMadeAgainAfterProcessClosesIt(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	first := n.accept()
	old := first.question()
	first.Close()
	if ev := n.nextEvent(); ev.Kind != sched.PlanOffered || ev.Plan != nil {
		t.Errorf("event: got %+v, want no plan", ev)
	} else {
		n.problem("closed the connection")
		n.step(ev) // asks again
	}
	second := n.accept()
	q := second.question()
	if q.Number == old.Number {
		t.Errorf("second question: got number %d again", q.Number)
	}
	second.answer(old.Number, 1) // no longer open
	second.answer(q.Number, 2)
	ev := n.nextEvent()
	if ev.Number != q.Number {
		t.Errorf("event: got number %d, want %d", ev.Number, q.Number)
	}
	n.step(ev)
	n.problem("")
}

func TestAnswersToUnknownQuestionsAreIgnored(t *testing.T) {
	n := newNode(t)
	p := n.accept()
	q := p.question()
	p.answer(q.Number+100, 1)
	p.answer(q.Number, 2)
	p.answer(q.Number, 1) // answered already
	if ev := n.nextEvent(); ev.Number != q.Number || ev.Plan == nil || ev.Plan.Grants[0].Queue != 2 {
		t.Errorf("event: got %+v, want the first answer to question %d", ev, q.Number)
	}
	p.Close() // whatever was posted before this is in the channel
	if ev := n.nextEvent(); ev.Plan != nil {
		t.Errorf("event: got another answer: %+v", ev)
	}
}

func TestBadLinesEndTheConnection(t *testing.T) {
	for _, tt := range []struct {
		name    string
		line    io.Reader
		problem string
	}{
		{"longer than an answer may be", io.LimitReader(spaces{}, policy.MaxAnswerBytes+1), "too long"},
		{"not JSON", strings.NewReader("grant 1\n"), "invalid character"},
		{"two objects", strings.NewReader(`{"answer":1}{"answer":1}` + "\n"), "more than one"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			p := n.accept()
			p.question()
			_, _ = io.Copy(p, tt.line) // fails when the connection ends
			if ev := n.nextEvent(); ev.Kind != sched.PlanOffered || ev.Plan != nil {
				t.Errorf("event: got %+v, want no plan", ev)
			}
			n.problem(tt.problem)
			if _, err := io.Copy(io.Discard, p.lines); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is still open")
			}
		})
	}
}

// spaces is an endless line.
type spaces struct{}

func (spaces) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

// TestCloseEndsProcess: Close returns although the process neither reads nor exits.
func TestCloseEndsProcess(t *testing.T) {
	cfg, err := Parse(map[string]string{"exec": "sleep 1000"})
	if err != nil {
		t.Fatal(err)
	}
	c := Start(cfg, func(...sched.Event) {}, func(string) {}, slog.New(slog.DiscardHandler))
	for c.Problem(0) != "" {
		time.Sleep(time.Millisecond)
	}
	c.Close()
}

// TestProcessOutlivesThread: the process runs on when the thread exits that called for its start.
func TestProcessOutlivesThread(t *testing.T) {
	var processes [2]*process // at least one of them is not started from the first thread, which never exits
	var begun, ended sync.WaitGroup
	begun.Add(len(processes))
	for i := range processes {
		ended.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			begun.Done()
			begun.Wait()
			p, err := startCommand("cat", false, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Error(err)
				return
			}
			processes[i] = p
		})
	}
	if ended.Wait(); t.Failed() {
		return
	}
	time.Sleep(100 * time.Millisecond) // for the threads to exit
	for _, p := range processes {
		defer p.Close()
		got := make([]byte, 3)
		if _, err := io.WriteString(p, "on\n"); err != nil {
			t.Errorf("write to the process: %v", err)
			continue
		}
		if _, err := io.ReadFull(p, got); err != nil || string(got) != "on\n" {
			t.Errorf("got %q, %v of the process, want what was written to it", got, err)
		}
	}
}

// TestTry: a command that ends at once and a socket without a listener are errors, with the
// command's own message. Nothing is noted then, because the policy was not in force.
func TestTry(t *testing.T) {
	listening := newNode(t).listener.Addr().String()
	for _, tt := range []struct {
		key, value string
		want       string // empty: it has started
	}{
		{"exec", "sleep 1000", ""},
		{"exec", "nosuch", "nosuch: not found"},
		{"exec", "nosuch", "exit status 127"},
		{"exec", "exit 3", "it ended: exit status 3"},
		{"exec", "exec >&-; sleep 1000", "it closed the connection"},
		{"socket", listening, ""},
		{"socket", "/no/such/socket", "no such file"},
	} {
		cfg, err := Parse(map[string]string{tt.key: tt.value})
		if err != nil {
			t.Fatal(err)
		}
		note := func(text string) { t.Errorf("%s: noted %q", tt.value, text) }
		c, err := Try(cfg, func(...sched.Event) {}, note, slog.New(slog.DiscardHandler))
		if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) || (c == nil) != (err != nil) {
			t.Errorf("%s %s: got %v, want %q", tt.key, tt.value, err, tt.want)
		}
		if c != nil {
			c.Close()
		}
	}
}

// TestFailureIsLoggedOnce: a command that fails again and again is logged and noted once, and
// is not started every second.
func TestFailureIsLoggedOnce(t *testing.T) {
	t.Parallel()
	starts := filepath.Join(t.TempDir(), "starts")
	cfg, err := Parse(map[string]string{"exec": "echo >>" + starts + "; echo broken >&2; exit 3"})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	var notes []string
	c := Start(cfg, func(...sched.Event) {}, func(text string) { notes = append(notes, text) }, slog.New(slog.NewTextHandler(&log, nil)))
	time.Sleep(4500 * time.Millisecond) // attempts at 0, 1 and 3 s
	c.Close()
	if text, _ := os.ReadFile(starts); len(text) < 2 || len(text) > 3 {
		t.Errorf("got %d starts in 4.5 s, want 2 or 3", len(text))
	}
	if got := strings.Count(log.String(), "\n"); got != 2 {
		t.Errorf("got %d lines, want one of the command and one of the failure:\n%s", got, log.String())
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "it ended: exit status 3: broken") {
		t.Errorf("got notes %q, want one with the reason", notes)
	}
}
