package top

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/internal/describe"
	"github.com/giveway/giveway/internal/format"
)

func explainFacts(name string) describe.Facts {
	return describe.Facts{Now: start, Orders: &api.Record{Entries: []api.Entry{
		{PID: 5100, Order: &api.Order{Name: name, Command: name, From: name, To: name, Refused: true, Reason: name}},
	}}}
}

// order returns the pids of the rows.
func order(s *State) string {
	var pids []string
	for _, r := range s.rows {
		pids = append(pids, fmt.Sprint(r.process.PID))
	}
	return strings.Join(pids, " ")
}

// TestFigures: shares, rates and waits are those of the constructed processes.
func TestFigures(t *testing.T) {
	s := running(Look{}, 80, 24, 40)
	byPID := map[int]row{}
	for _, r := range s.all {
		byPID[r.process.PID] = r
	}
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-6 }
	for _, c := range []struct {
		pid         int
		now, minute float64
	}{{812, 0.1, 0.1}, {4711, 0, 0.25}, {5100, 0.8 + 0.25, 0.3 + 0.25 + 0.25}, {4600, 0.2, 0.2}} {
		if r := byPID[c.pid]; !near(r.now, c.now) || !near(r.minute, c.minute) || !r.known {
			t.Errorf("%d: got %v now, %v in a minute, want %v, %v", c.pid, r.now, r.minute, c.now, c.minute)
		}
	}
	serve := byPID[812]
	if !near(serve.rate, 50) || !near(serve.met, 0.9) || serve.waitsFor != "switch 0.8%" || serve.holdsUp != "4711 4.0%" {
		t.Errorf("812: got %v requests/s, %v met, waits for %q, holds up %q", serve.rate, serve.met, serve.waitsFor, serve.holdsUp)
	}
	train := byPID[4711]
	if train.waitsFor != "5100 50.0%" || train.holdsUp != "812 0.2%" || train.rates || train.hasMet {
		t.Errorf("4711: got waits for %q, holds up %q, requests %v", train.waitsFor, train.holdsUp, train.rates)
	}
	levels := train.history.levels(6) // of 10 s each: 20 s unknown, 20 s at work, 20 s paused
	for i, want := range []float64{-1, -1, 0.5, 0.5, 0, 0} {
		if !near(levels[i], want) {
			t.Errorf("4711: got levels %v", levels)
			break
		}
	}
	for second := 41; second < 200; second++ {
		s.Take(snapshotAt(second))
	}
	if got, want := s.betweenClasses(s.last.Status.Devices[0]), "10 s: online waited 20.0ms for batch, 90.9ms switching; batch 400ms for online"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := s.betweenClasses(s.last.Status.Devices[1]); got != "" {
		t.Errorf("a device without online work: got %q", got)
	}
	s.Take(snapshotAt(3)) // the daemon was restarted
	if got := s.betweenClasses(s.last.Status.Devices[0]); got != "" {
		t.Errorf("a new daemon: got %q", got)
	}
	if n := len(s.history[812].steps); n > 61 {
		t.Errorf("got %d steps after 200 s, want not more than a minute's", n)
	}
}

// TestReusedPID: another process with the pid of one that is gone begins anew.
func TestReusedPID(t *testing.T) {
	s := running(Look{}, 80, 24, 10)
	next := snapshotAt(11)
	next.Processes[0].Queues[0].ID = 99
	s.Take(next)
	if r := s.all[0]; r.known || r.hasMet {
		t.Errorf("got %+v, want a process of which nothing is known", r)
	}
	next = snapshotAt(12)
	next.Processes = next.Processes[1:]
	s.Take(next)
	if s.history[812] != nil {
		t.Error("the history of a process that is gone is kept")
	}
}

func TestSortFilterTree(t *testing.T) {
	s := running(Look{}, 80, 24, 10)
	for _, c := range []struct{ keys, want string }{
		{"", "5100 4600 4711 812"}, // by share of the minute, the member below its server
		{"t", "5100 4711 4600 812"},
		{"r", "812 4600 4711 5100"},
		{"r t > > >", "812 4711 5100 4600"}, // requests/s, then pid
		{"< < <", "5100 4600 4711 812"},
		{"/ t r a i n enter", "4711"},
		{"esc", "5100 4600 4711 812"},
		{"/ B O B backspace enter", "5100 4600 4711"},
		{"/ z enter", ""},
		{"/ esc", "5100 4600 4711 812"},
		{"<", "812 4711 5100 4600"}, // from the first order to the last, by pid
	} {
		press(s, strings.Fields(c.keys)...)
		if got := order(s); got != c.want {
			t.Errorf("%q: got %s, want %s", c.keys, got, c.want)
		}
	}
	if !strings.Contains(s.View(), "by pid") {
		t.Errorf("the screen does not say how it is sorted:\n%s", s.View())
	}
}

// TestSelectionStaysOnItsProcess: after a key that acts on the selected process or moves the
// selection, the selection stays on the process when the order of the rows changes.
func TestSelectionStaysOnItsProcess(t *testing.T) {
	for keys, want := range map[string]int{
		"":          812, // no process was chosen: the first row is selected
		"space":     812,
		"p y":       5100,
		"p n":       5100,
		"w 2 esc":   5100,
		"c esc":     5100,
		"u y":       5100,
		"enter esc": 5100,
		"down":      4600,
		"down up":   5100,
	} {
		s := running(Look{}, 80, 24, 10)
		if s.selected != 5100 {
			t.Fatalf("got %d selected at first, want 5100", s.selected)
		}
		press(s, strings.Fields(keys)...)
		press(s, "r") // the last row is the first now
		s.Take(snapshotAt(11))
		if s.selected != want {
			t.Errorf("%q: got %d selected, want %d", keys, s.selected, want)
		}
	}
}

// TestOrders: orders are given only after a confirmation, for the process that was selected
// when they were begun.
func TestOrders(t *testing.T) {
	for _, c := range []struct {
		keys, want string
	}{
		{"c b y", "set class of 5100 (nvidia-cuda-mps-server) to batch: 5100 class=batch"},
		{"c o y", "set class of 5100 (nvidia-cuda-mps-server) to online: 5100 class=online"},
		{"c x y", ""},
		{"c b n", ""},
		{"c b enter", ""},
		{"c esc y", ""},
		{"down down w 1 6 enter y", "set weight of 4711 (python train.py) to 16: 4711 weight=16"},
		{"w 0 enter y", ""},
		{"w 1 esc y", ""},
		{"p y", "pause 5100 (nvidia-cuda-mps-server): 5100 paused=true"},
		{"u Y", "resume 5100 (nvidia-cuda-mps-server): 5100 paused=false"},
		{"p p", ""},
		{"p ctrl+c", "quit"},
		{"q", "quit"},
	} {
		s := running(Look{}, 80, 24, 10)
		e := press(s, strings.Fields(c.keys)...)
		got := ""
		switch {
		case e.Quit:
			got = "quit"
		case e.Order != nil:
			got = fmt.Sprintf("%s: %d %v", e.Order.Text, e.Order.PID, e.Order.Change().Values)
		}
		if got != c.want {
			t.Errorf("%q: got %q, want %q", c.keys, got, c.want)
		}
	}
	s := running(Look{}, 80, 24, 10)
	press(s, "p")
	later := snapshotAt(11)
	later.Processes = later.Processes[:2] // the process ends while the question is open
	s.Take(later)
	if e := press(s, "y"); e.Order == nil || e.Order.PID != 5100 {
		t.Errorf("got %+v, want the order for the process that was selected", e.Order)
	}
	press(s, "w", "0", "enter")
	if !strings.Contains(s.View(), "weight 0 is not a whole number from 1 to 10000") {
		t.Errorf("a wrong weight: got\n%s", s.View())
	}
}

// TestOutcomes: the daemon's refusal, and what has no effect, are on the screen.
func TestOutcomes(t *testing.T) {
	s := running(Look{}, 120, 24, 10)
	o := Order{PID: 812, Attr: attr.Weight, Text: "set weight of 812 to 3"}
	for _, c := range []struct {
		p    api.Process
		err  error
		want string
	}{
		{api.Process{}, errors.New("process 812 belongs to alice: only alice and root may change it"), "set weight of 812 to 3: process 812 belongs to alice"},
		{api.Process{}, nil, "done: set weight of 812 to 3"},
		{api.Process{Ignored: []api.Ignored{{Name: "weight", Reason: "policy rr does not use it"}}}, nil, "no effect now: policy rr does not use it"},
	} {
		s.Done(o, c.p, c.err)
		if view := s.View(); !strings.Contains(view, c.want) {
			t.Errorf("got\n%s\nwant %q", view, c.want)
		}
		if press(s, "down"); strings.Contains(s.View(), c.want) {
			t.Error("the message stays after the next key")
		}
	}
}

// TestMessageGoes: a message is gone after a while without a key, also on a frozen screen.
func TestMessageGoes(t *testing.T) {
	for _, keys := range [][]string{{"p", "n"}, {"space", "p", "n"}} {
		s := running(Look{}, 80, 24, 10)
		press(s, keys...)
		for _, second := range []int{11, 14} {
			if s.Take(snapshotAt(second)); !strings.Contains(s.View(), "not done: pause") {
				t.Errorf("%v: after %d s: got\n%s", keys, second-10, s.View())
			}
		}
		if s.Take(snapshotAt(15)); strings.Contains(s.View(), "not done") {
			t.Errorf("%v: the message stays:\n%s", keys, s.View())
		}
	}
}

// TestPromptsFit: what can be chosen is not cut off, however long the name is.
func TestPromptsFit(t *testing.T) {
	for _, width := range []int{40, 80, 200} {
		s := running(Look{}, width, 24, 10)
		for i := range s.last.Processes {
			s.last.Processes[i].Command = strings.Repeat("字x", 50)
		}
		press(s, "c")
		if got := s.prompt(); !strings.Contains(got, "[o]nline [s]tandard [b]atch [i]dle") || format.Width(got) > width {
			t.Errorf("width %d: got %q", width, got)
		}
		press(s, "esc", "w", "1", "2")
		if got := s.prompt(); !strings.Contains(got, ": 12_") || format.Width(got) > width {
			t.Errorf("width %d: got %q", width, got)
		}
	}
}

func TestReverseIsShown(t *testing.T) {
	s := running(Look{}, 120, 24, 10)
	if press(s, "r"); !strings.Contains(s.header(), "by share of the last minute, reversed") {
		t.Errorf("got %q", s.header())
	}
}

// TestNewDaemon: the figures of an earlier daemon are not mixed with those of the next.
func TestNewDaemon(t *testing.T) {
	s := running(Look{}, 120, 24, 30)
	next := snapshotAt(40)
	next.Status.Uptime = time.Second
	s.Take(next)
	for _, r := range s.rows {
		if r.known || len(r.history.steps) > 0 {
			t.Errorf("process %d: got %d steps, want none", r.process.PID, len(r.history.steps))
		}
	}
	next = snapshotAt(41)
	next.Status.Uptime = 2 * time.Second
	s.Take(next)
	for _, r := range s.rows {
		if !r.known || len(r.history.steps) != 1 {
			t.Errorf("process %d: got %d steps, want 1", r.process.PID, len(r.history.steps))
		}
	}
}

func TestExplainPage(t *testing.T) {
	s := running(Look{}, 80, 12, 10)
	if e := press(s, "enter"); !e.Explain {
		t.Fatal("Enter asks for no explanation")
	}
	s.Explained(explainFacts("set"), nil)
	if view := s.View(); !strings.Contains(view, "On GPU 0 (NVIDIA H200) it runs: it is its turn.") || !strings.Contains(view, "Esc: back") {
		t.Errorf("got\n%s", view)
	}
	press(s, "pgdown", "pgdown", "pgdown", "down")
	if view := s.View(); !strings.Contains(view, "giveway pause 5100") {
		t.Errorf("scrolled to the end: got\n%s", view)
	}
	press(s, "q")
	if view := s.View(); !strings.Contains(view, "COMMAND") {
		t.Errorf("back: got\n%s", view)
	}
	s.Explained(describe.Facts{}, errors.New("no daemon is running"))
	if view := s.View(); !strings.Contains(view, "explain: no daemon is running") {
		t.Errorf("an error: got\n%s", view)
	}
}

// TestFrozen: a frozen screen does not change, and goes on later.
func TestFrozen(t *testing.T) {
	s := running(Look{}, 80, 24, 10)
	press(s, "space")
	before := s.View()
	s.Take(snapshotAt(11))
	if s.View() != before || !strings.Contains(before, "FROZEN") {
		t.Errorf("got\n%s\nwant\n%s", s.View(), before)
	}
	press(s, "space")
	s.Take(snapshotAt(13))
	if !strings.Contains(s.View(), "12:00:13") {
		t.Errorf("got\n%s", s.View())
	}
}

// TestDaemonGone: the screen says that the daemon does not answer and keeps the last
// figures; when there is a daemon again, it goes on.
func TestDaemonGone(t *testing.T) {
	d := &fakeDaemon{}
	p := &program{ctx: t.Context(), source: d, reader: NewReader(d), state: New(Look{}, 100, 24)}
	p.Init()
	read := func() string {
		t.Helper()
		_, cmd := p.Update(p.read())
		if cmd == nil {
			t.Fatal("no further snapshot is asked for")
		}
		return p.state.View()
	}
	d.err = errors.New("no daemon is running: start one")
	if view := read(); !strings.Contains(view, "No answer yet, trying again: no daemon is running: start one") {
		t.Errorf("no daemon at first: got\n%s", view)
	}
	d.err = nil
	read()
	d.second++
	if view := read(); strings.Contains(view, "No answer") || !strings.Contains(view, "nvidia-c") {
		t.Errorf("a daemon: got\n%s", view)
	}
	d.err = errors.New("gone")
	if view := read(); !strings.Contains(view, ", trying again: gone") || !strings.Contains(view, "nvidia-c") {
		t.Errorf("the daemon is gone: got\n%s", view)
	}
	d.err = nil
	if view := read(); strings.Contains(view, "No answer") {
		t.Errorf("a daemon again: got\n%s", view)
	}
}

// TestProgram: keys of the terminal reach the daemon as orders, and a resize the screen.
func TestProgram(t *testing.T) {
	d := &fakeDaemon{}
	p := &program{ctx: t.Context(), source: d, reader: NewReader(d), state: New(Look{}, 80, 24)}
	p.Update(p.read())
	p.Update(tea.WindowSizeMsg{Width: 120, Height: 30})
	if p.state.width != 120 || p.state.height != 30 {
		t.Errorf("got %dx%d, want 120x30", p.state.width, p.state.height)
	}
	key := func(r rune) tea.Cmd {
		_, cmd := p.Update(tea.KeyPressMsg{Code: r, Text: string(r)})
		return cmd
	}
	p.Update(tea.PasteMsg{Content: "py"})
	if len(d.changed) > 0 || p.state.mode != inTable {
		t.Errorf("a paste: got orders %q, mode %d, want none", d.changed, p.state.mode)
	}
	key('/')
	p.Update(tea.PasteMsg{Content: "python"})
	if p.state.filter != "python" {
		t.Errorf("a pasted filter: got %q", p.state.filter)
	}
	p.Update(tea.KeyPressMsg{Code: tea.KeyEsc})
	key('p')
	cmd := key('y')
	if cmd == nil {
		t.Fatal("the confirmed order is not given")
	}
	p.Update(cmd())
	if got := strings.Join(d.changed, ";"); !strings.HasSuffix(got, " paused=true") {
		t.Errorf("the daemon got %q", got)
	}
	if !strings.Contains(p.View().Content, "done: pause ") || !p.View().AltScreen {
		t.Errorf("got\n%s", p.View().Content)
	}
	_, cmd = p.Update(tea.KeyPressMsg{Code: tea.KeyEnter})
	p.Update(cmd())
	if p.state.mode != inExplain {
		t.Errorf("Enter: got mode %d, want an explanation", p.state.mode)
	}
	key('q')
	if _, cmd := p.Update(tea.KeyPressMsg{Code: 'z', Mod: tea.ModCtrl}); cmd == nil {
		t.Error("Ctrl-Z does not suspend")
	} else if _, suspends := cmd().(tea.SuspendMsg); !suspends {
		t.Errorf("Ctrl-Z: got %T", cmd())
	}
	if _, quits := key('q')().(tea.QuitMsg); !quits {
		t.Error("q does not quit")
	}
}

// TestOnce: without a terminal the screen is text, with all processes and without styles.
func TestOnce(t *testing.T) {
	s := running(Look{Colour: true, UTF8: true}, 80, 24, 3)
	text := s.Text(0)
	for _, want := range []string{"GPU 0  used 90.0%  780 switches/s, 4.9% lost  pressure 54.2% full 1.3%  NVIDIA H200\n", "in 3 s online waited 6.00ms for batch and 27.3ms for switches, batch waited 120ms for online work\n", "python serve.py --port 80\n", "other turn"} {
		if !strings.Contains(text, want) {
			t.Errorf("got\n%s\nwant %q", text, want)
		}
	}
	if strings.Contains(text, "MINUTE") || strings.Contains(text, "TREND") {
		t.Errorf("got the figures of a minute, of which little has passed:\n%s", text)
	}
	if strings.Contains(text, "\x1b") {
		t.Errorf("got styles: %q", text)
	}
	begin := time.Now()
	if text, err := Once(t.Context(), &fakeDaemon{}, Look{}, 100); err != nil || !strings.Contains(text, "812") || time.Since(begin) < period {
		t.Errorf("got %v\n%s", err, text)
	}
}
