// Package python_test runs the tests of the Python package, and checks what the daemon reads from
// it.
package python_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// python returns a Python interpreter that is new enough, or skips the test.
func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	if err := exec.Command(path, "-c", "import sys; sys.exit(sys.version_info < (3, 8))").Run(); err != nil {
		t.Skip("python3 is older than 3.8")
	}
	return path
}

func TestUnits(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), python(t), "-B", "-m", "unittest", "tests/test_giveway.py")
	cmd.Env = append(os.Environ(), "PYTHONPATH=.")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// library builds the shim.
func library(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("the shim needs gcc")
	}
	sources, err := filepath.Glob("../shim/*.c")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	name := filepath.Join(t.TempDir(), "libgiveway.so")
	args := append(sources, "-std=gnu11", "-O1", "-w", "-fPIC", "-shared", "-fvisibility=hidden",
		"-Wl,--version-script=../shim/giveway.map", "-o", name)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return name
}

// process is a running tests/tell.py.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

func start(t *testing.T, preload, part string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.CommandContext(t.Context(), python(t), "-B", "tests/tell.py", part), lines: make(chan string, 64)}
	p.cmd.Env = append(os.Environ(), "PYTHONPATH=.") // and GIVEWAY_SOCKET
	if preload != "" {
		p.cmd.Env = append(p.cmd.Env, "LD_PRELOAD="+preload)
	}
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			p.lines <- in.Text()
		}
	}()
	return p
}

func (p *process) line() string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.t.Fatal("the process has ended")
		}
		return line
	case <-time.After(pagetest.Timeout):
		p.t.Fatal("no output")
		return ""
	}
}

func (p *process) end() {
	p.t.Helper()
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		p.t.Error(err)
	}
}

// run runs a part to its end. The process still exists when it returns.
func run(t *testing.T, preload, part string) *process {
	t.Helper()
	p := start(t, preload, part)
	if line := p.line(); line != "ok" {
		t.Fatalf("got %q, want ok", line)
	}
	return p
}

func TestHints(t *testing.T) {
	t.Run("page", func(t *testing.T) { testHints(t, "") })
	t.Run("library", func(t *testing.T) { testHints(t, library(t)) })
}

func testHints(t *testing.T, preload string) {
	t.Run("each", func(t *testing.T) { testEach(t, preload) })
	t.Run("threads", func(t *testing.T) { testThreads(t, preload) })
	t.Run("fork", func(t *testing.T) { testFork(t, preload) })
}

// testEach: the daemon reads every hint with its kind, value and time.
func testEach(t *testing.T, preload string) {
	d := pagetest.New(t, nil)
	d.Status.SetAsleep(true)
	before := shimpage.Monotonic(time.Now())
	p := run(t, preload, "each")
	page := d.Page()
	ms := int64(time.Millisecond)
	want := []shimpage.Hint{
		{Kind: shimpage.HintPriority, Value: -3},
		{Kind: shimpage.HintDeadline, Value: 4 * ms},
		{Kind: shimpage.HintLaxity, Value: 5 * ms},
		{Kind: shimpage.HintWork, Value: 6 * ms},
		{Kind: shimpage.HintSLO, Value: 7 * ms},
		{Kind: shimpage.HintIdempotent, Value: 1},
		{Kind: shimpage.HintIdempotent, Value: 0},
		{Kind: shimpage.HintBegin, Value: 1 << 40},
		{Kind: shimpage.HintExpect},
		{Kind: shimpage.HintEnd, Value: 1 << 40},
	}
	for i, h := range pagetest.Hints(t, page, len(want)) {
		if h.At < before || h.At > shimpage.Monotonic(time.Now()) {
			t.Errorf("hint %d was given at %d, want after %d", i, h.At, before)
		}
		if h.Kind == shimpage.HintExpect {
			if from := before + uint64(time.Minute); uint64(h.Value) < from || uint64(h.Value) > from+uint64(pagetest.Timeout) {
				t.Errorf("arrival at %d, want a minute after %d", h.Value, before)
			}
			h.Value = 0
		}
		if h.At = 0; h != want[i] {
			t.Errorf("hint %d: got %+v, want %+v", i, h, want[i])
		}
	}
	n := 0
	page.Requests(func(shimpage.Request) { n++ })
	if c := page.Counters(); n != 1 || c.OpenRequests != 0 || page.InvalidEntries() != 0 || !page.AckDoorbell() {
		t.Errorf("%d requests in the log, %d open, %d invalid entries; want 1, 0, 0 and a ring", n, c.OpenRequests, page.InvalidEntries())
	}
	p.end()
}

// testThreads: concurrent hints leave no invalid entries.
func testThreads(t *testing.T, preload string) {
	d := pagetest.New(t, nil)
	p := run(t, preload, "threads")
	page := d.Page()
	hints, requests := 0, 0
	page.Hints(func(shimpage.Hint) { hints++ })
	page.Requests(func(shimpage.Request) { requests++ })
	if c := page.Counters(); hints != 32 || requests != 64 || c.OpenRequests != 0 || page.InvalidEntries() != 0 {
		t.Errorf("%d hints, %d requests, %d open, %d invalid entries; want 32, 64, 0, 0", hints, requests, c.OpenRequests, page.InvalidEntries())
	}
	p.end()
}

// testFork: a child gets its own page and does not write to its parent's.
func testFork(t *testing.T, preload string) {
	d := pagetest.New(t, nil)
	p := run(t, preload, "fork")
	parent, child := d.Page(), d.Page()
	want := []shimpage.Hint{
		{Kind: shimpage.HintPriority, Value: 1},
		{Kind: shimpage.HintBegin, Value: 1 << 40},
		{Kind: shimpage.HintEnd, Value: 1 << 40},
		{Kind: shimpage.HintPriority, Value: 3},
	}
	for i, h := range pagetest.Hints(t, parent, len(want)) {
		if h.At = 0; h != want[i] {
			t.Errorf("parent: hint %d: got %+v, want %+v", i, h, want[i])
		}
	}
	last := int64(0)
	child.Hints(func(h shimpage.Hint) { last = h.Value })
	if c := child.Counters(); last != 2 || c.OpenRequests != 0 {
		t.Errorf("child: priority %d, %d open requests; want 2, 0", last, c.OpenRequests)
	}
	p.end()
}

// TestDaemonRestarts: a process finds a daemon that starts later, survives its death, and gives the
// next daemon the hints that still hold.
func TestDaemonRestarts(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	t.Setenv("GIVEWAY_SOCKET", socket)
	p := start(t, "", "listen")
	until := func(want string) {
		t.Helper()
		pagetest.Until(t, "the process prints "+want, func() bool {
			if _, err := io.WriteString(p.in, "go on\n"); err != nil {
				t.Fatal(err)
			}
			return p.line() == want
		})
	}
	until("no daemon")
	for range 2 {
		d := pagetest.At(t, socket, nil)
		until("connected")
		page := d.Page()
		if h := page.Counters(); h.OpenRequests != 0 {
			t.Errorf("got %+v, want no open requests", h)
		}
		n := 0
		page.Hints(func(h shimpage.Hint) {
			if h.Kind == shimpage.HintPriority && h.Value == 9 {
				n++
			}
		})
		if n == 0 {
			t.Error("the new daemon did not get the priority")
		}
		d.Die()
		until("no daemon")
	}
	p.end()
}

// TestQueues runs the tests of giveway.queue with the library that this tree builds.
func TestQueues(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), python(t), "-B", "-m", "unittest", "tests/test_queue.py")
	cmd.Env = append(os.Environ(), "PYTHONPATH=.", "GIVEWAY_LIBRARY="+library(t), "GIVEWAY_SOCKET="+filepath.Join(t.TempDir(), "none"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
