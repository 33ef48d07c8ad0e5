package top

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/format"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

func from(source attr.Source, attrs string) attr.Resolved {
	var l attr.Layers
	l[source] = attr.Must(attrs)
	return attr.Resolve(&l)
}

var start = time.Date(2026, 11, 16, 12, 0, 0, 0, time.Local)

// snapshotAt returns what a daemon says some seconds after the start: an online process
// with 50 requests a second, of which one in ten is late, two batch processes that share
// the rest, of which the first is paused after 20 s, and a pool.
func snapshotAt(second int) Snapshot {
	at := time.Duration(second) * time.Second
	trained := min(at, 20*time.Second)
	paused := ""
	if second > 20 {
		paused = " paused=true"
	}
	s := Snapshot{
		At: start.Add(at),
		Status: api.Status{
			Policy: api.Policy{Name: "giveway"}, Uptime: at,
			Devices: []api.Device{
				{ID: "GPU-a", Model: "NVIDIA H200", Trace: true, Switching: &api.Switching{Share: 0.049, Rate: 780}},
				{ID: "GPU-b", Index: 1, Model: "NVIDIA H200"},
			},
		},
		Processes: []api.Process{
			{
				PID: 812, Command: "python serve.py --port 80", User: "alice", Attrs: from(attr.FromRun, "class=online slo=10ms"),
				Queues:   []api.Queue{{ID: 1, Device: "GPU-a", State: "running", VendorSlice: 2 * time.Millisecond, Served: at / 10, Measured: true, MayRun: true, Reason: "online"}},
				Requests: &api.Requests{Count: uint64(50 * second), P50: 2 * time.Millisecond, P99: 9 * time.Millisecond},
			},
			{
				PID: 4711, Command: "python train.py", User: "bob", Attrs: from(attr.FromSet, "class=batch weight=2"+paused), Container: strings.Repeat("0123456789abcdef", 4),
				Queues: []api.Queue{{ID: 2, Device: "GPU-a", State: "stopped", Slice: 1, Served: trained * 5 / 10, Measured: true, Reason: "other turn"}},
			},
			{
				PID: 5100, Command: "nvidia-cuda-mps-server", User: "bob", Attrs: from(attr.FromBackend, "class=batch"),
				Queues: []api.Queue{
					{ID: 3, Device: "GPU-a", State: "running", Slice: 1, Served: at*3/10 + (at-trained)/2, Measured: true, MayRun: true, Reason: "turn", Shared: "mps", Pool: "night"},
					{ID: 4, Device: "GPU-b", Index: 1, State: "running", Served: at / 4, MayRun: true, Reason: "turn"},
				},
			},
			{PID: 4600, Command: "python sweep.py", User: "bob", Attrs: from(attr.FromRun, "class=batch"), Member: &api.Member{Server: 5100, Pool: "night", Served: at / 5}},
		},
		Delays: &api.Delays{Clock: api.Clock{Began: start, Now: at}, Classes: []api.ClassDelay{
			{Device: "GPU-a", Class: "online", Holder: "batch", Total: at / 500},
			{Device: "GPU-a", Class: "online", Holder: "switch", Total: at / 110},
			{Device: "GPU-a", Class: "batch", Holder: "online", Total: at / 25},
			{Device: "GPU-a", Class: "batch", Holder: "batch", Total: at},
		}, Delays: []api.Delay{
			{Device: "GPU-a", PID: 4711, Holder: api.Holder{Kind: "process", PID: 812}, Last10: 400 * time.Millisecond},
			{PID: 4711, Holder: api.Holder{Kind: "process", PID: 5100}, Last10: 5 * time.Second},
			{PID: 812, Holder: api.Holder{Kind: "switch"}, Last10: 80 * time.Millisecond},
			{Device: "GPU-a", PID: 812, Holder: api.Holder{Kind: "process", PID: 4711}, Last10: 20 * time.Millisecond},
		}},
		Pressure: &api.Pressure{Devices: []api.DevicePressure{{Device: "GPU-a", Some: api.Stall{Avg10: 54.2}, Full: api.Stall{Avg10: 1.3}}}},
	}
	for i := range 50 {
		s.Requests = append(s.Requests, api.Entry{PID: 812, Request: &api.RequestSpan{SLO: 10 * time.Millisecond, Late: i%10 == 0}})
	}
	return s
}

// running returns a screen after some seconds.
func running(look Look, width, height, seconds int) *State {
	s := New(look, width, height)
	for second := range seconds + 1 {
		s.Take(snapshotAt(second))
	}
	return s
}

func press(s *State, keys ...string) (last Effect) {
	for _, k := range keys {
		text := k
		if len([]rune(k)) > 1 {
			text = ""
		}
		last = s.Press(Key{k, text})
	}
	return last
}

// TestScreens compares the screen with the files in testdata, in the sizes that terminals
// have.
func TestScreens(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {200, 60}, {40, 10}} {
		for name, look := range map[string]Look{"colour": {Colour: true, UTF8: true}, "plain": {UTF8: true}, "ascii": {}} {
			for screen, keys := range map[string][]string{"table": nil, "help": {"?"}, "confirm": {"down", "c", "i"}, "filter": {"/", "b", "o", "b"}} {
				if screen != "table" && (name != "plain" || size[0] == 200) {
					continue
				}
				s := running(look, size[0], size[1], 40)
				press(s, keys...)
				compare(t, fmt.Sprintf("%s-%dx%d-%s.txt", screen, size[0], size[1], name), s)
			}
		}
	}
}

// compare compares a screen with a golden file, in which the escape character is written
// as ^[, and checks its size.
func compare(t *testing.T, name string, s *State) {
	t.Helper()
	got := s.View()
	checkSize(t, name, s, got)
	got = strings.ReplaceAll(got, "\x1b", "^[") + "\n"
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || got != string(want) {
		t.Errorf("%s: got\n%swant\n%s(%v)", name, got, want, err)
	}
}

var styles = regexp.MustCompile("\x1b\\[[0-9;]*m")

// checkSize checks that a screen fits the terminal and has no control characters besides
// styles.
func checkSize(t *testing.T, name string, s *State, view string) {
	t.Helper()
	view = styles.ReplaceAllString(view, "")
	lines := strings.Split(view, "\n")
	if len(lines) > max(s.height, 1) {
		t.Errorf("%s at %dx%d: got %d lines", name, s.width, s.height, len(lines))
	}
	for _, line := range lines {
		if n := format.Width(line); n > s.width || format.Printable(line) != line {
			t.Errorf("%s at %dx%d: got a line of %d columns: %q", name, s.width, s.height, n, line)
		}
	}
}

// hostile are names that would break a screen if they were shown as they are.
var hostile = []string{
	"\x1b[2J\x1b[H\x1b]0;owned\x07", "a\nb\r\nc\td", strings.Repeat("x", 64<<10), "\xff\xfe\xfd", "字字字字字字字字字字字字字", "e\u0301\u0301\u0301\u0301",
	"\u202eright to left\u2066", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\u009b31m", "<script>alert(1)</script>", "%s%n", "",
}

// TestHostileNames: no name of a process, user, device, policy, reason or container breaks
// the screen, at any size, on any page.
func TestHostileNames(t *testing.T) {
	for _, name := range hostile {
		for _, look := range []Look{{Colour: true, UTF8: true}, {}} {
			s := New(look, 80, 24)
			for second := range 3 {
				snap := snapshotAt(second)
				snap.Status.Policy.Name = name
				for i := range snap.Status.Devices {
					snap.Status.Devices[i].Model = name
				}
				for i := range snap.Processes {
					p := &snap.Processes[i]
					p.Command, p.User, p.Container = name, name, name
					for j := range p.Queues {
						p.Queues[j].Reason, p.Queues[j].State, p.Queues[j].Pool = name, name, name
					}
				}
				snap.Delays.Delays[0].Holder.Kind = name
				s.Take(snap)
			}
			for _, size := range [][2]int{{1, 1}, {2, 3}, {5, 4}, {20, 5}, {40, 10}, {80, 24}, {200, 60}} {
				s.Resize(size[0], size[1])
				for _, keys := range [][]string{nil, {"c"}, {"b", "n"}, {"/", name}, {"esc"}, {"p"}, {"n"}, {"?"}, {"esc"}} {
					press(s, keys...)
					checkSize(t, fmt.Sprintf("%.20q", name), s, s.View())
				}
				s.Explained(explainFacts(name), nil)
				checkSize(t, fmt.Sprintf("explanation with %.20q", name), s, s.View())
				press(s, "esc")
				s.Done(Order{Text: "pause"}, api.Process{}, errors.New(name))
				checkSize(t, fmt.Sprintf("message %.20q", name), s, s.View())
				s.Lost(errors.New(name))
				checkSize(t, fmt.Sprintf("error %.20q", name), s, s.View())
				s.gone = nil
			}
			for line := range strings.Lines(s.Text(100)) {
				if line = strings.TrimSuffix(line, "\n"); format.Printable(line) != line || format.Width(line) > 100 {
					t.Errorf("%.20q: got the line %q", name, line)
				}
			}
		}
	}
}

// TestEverySize: the screen fits whatever the size is, and with no process and no device.
func TestEverySize(t *testing.T) {
	for _, s := range []*State{New(Look{}, 1, 1), running(Look{UTF8: true}, 1, 1, 2)} {
		for width := range 130 {
			for height := range 30 {
				s.Resize(width, height)
				checkSize(t, "table", s, s.View())
			}
		}
	}
	empty := New(Look{}, 80, 24)
	empty.Take(Snapshot{At: start})
	if !strings.Contains(empty.View(), "No process uses a device here.") {
		t.Errorf("no process: got\n%s", empty.View())
	}
	for _, key := range []string{"up", "pgdown", "end", "c", "w", "p", "u", "enter", "t", ">"} {
		if e := press(empty, key); e != (Effect{}) {
			t.Errorf("%s without a process: got %+v", key, e)
		}
	}
}

// many returns a snapshot with many processes.
func many(n, second int) Snapshot {
	s := snapshotAt(second)
	one := s.Processes
	s.Processes = nil
	for i := range n {
		p := one[i%3]
		p.PID, p.Command = 1000+i, strings.Repeat(p.Command, 1+i%50)
		p.Queues = append([]api.Queue{}, p.Queues...)
		for j := range p.Queues {
			p.Queues[j].ID += uint64(10 * i)
			p.Queues[j].Served /= time.Duration(n)
		}
		s.Processes = append(s.Processes, p)
		s.Delays.Delays = append(s.Delays.Delays, api.Delay{PID: p.PID, Holder: api.Holder{Kind: "process", PID: 1000 + (i*7)%n}, Last10: time.Duration(i) * time.Millisecond})
	}
	return s
}

// manyProcesses are so many that they do not fit the screen.
const manyProcesses = 200

func screenOfMany() *State {
	s := New(Look{Colour: true, UTF8: true}, 200, 60)
	for second := range 60 {
		s.Take(many(manyProcesses, second))
	}
	return s
}

// BenchmarkRedraw: a redraw, with the snapshot before it, should take less than a frame of 16 ms.
func BenchmarkRedraw(b *testing.B) {
	s := screenOfMany()
	b.Run("view", func(b *testing.B) {
		for b.Loop() {
			s.View()
		}
	})
	second := 60
	b.Run("snapshot and view", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			next := many(manyProcesses, second)
			second++
			b.StartTimer()
			s.Take(next)
			s.View()
		}
	})
}

// fakeDaemon answers as a daemon does.
type fakeDaemon struct {
	second  int
	err     error
	old     bool // it has no record
	began   time.Time
	queries []api.RecordQuery
	changed []string
}

func (d *fakeDaemon) Processes(context.Context) ([]api.Process, error) {
	return snapshotAt(d.second).Processes, d.err
}

func (d *fakeDaemon) Status(context.Context) (api.Status, error) {
	return snapshotAt(d.second).Status, d.err
}

func (d *fakeDaemon) Change(_ context.Context, pid int, c api.Change) (api.Process, error) {
	d.changed = append(d.changed, fmt.Sprintf("%d %v", pid, c.Values))
	return api.Process{PID: pid}, d.err
}

func (d *fakeDaemon) Delays(context.Context) (api.Delays, error) {
	if d.old {
		return api.Delays{}, &client.Error{Status: 404, Message: "there is no such path"}
	}
	delays := *snapshotAt(d.second).Delays
	delays.Began = d.began
	return delays, d.err
}

func (d *fakeDaemon) Pressure(context.Context) (api.Pressure, error) {
	return *snapshotAt(d.second).Pressure, d.err
}

func (d *fakeDaemon) Record(_ context.Context, q api.RecordQuery) (api.Record, error) {
	d.queries = append(d.queries, q)
	return api.Record{Entries: snapshotAt(d.second).Requests, Next: q.After + 100}, d.err
}

// TestReader: requests are read from where the last snapshot ended, and from the beginning
// if the daemon is another.
func TestReader(t *testing.T) {
	d := &fakeDaemon{began: start}
	r := NewReader(d)
	for i, want := range []struct {
		after    uint64
		requests int
	}{{0, 0}, {100, 50}, {200, 50}, {0, 0}, {100, 50}} {
		if i == 3 {
			d.began = start.Add(time.Hour)
		}
		s, err := r.Read(t.Context())
		if err != nil || s.Pressure == nil || len(s.Requests) != want.requests {
			t.Errorf("%d: got %v, %d requests, want %d", i, err, len(s.Requests), want.requests)
		}
		if got := d.queries[len(d.queries)-1]; got.After != want.after || !got.Last || got.Limit != requestLimit {
			t.Errorf("%d: got the query %+v, want after %d", i, got, want.after)
		}
	}
	d.old = true
	if s, err := r.Read(t.Context()); err != nil || s.Delays != nil || len(s.Processes) == 0 {
		t.Errorf("a daemon without a record: got %v, %+v", err, s)
	}
	d.old, d.err = false, client.ErrNoDaemon
	if _, err := r.Read(t.Context()); !errors.Is(err, client.ErrNoDaemon) {
		t.Errorf("no daemon: got %v", err)
	}
}
