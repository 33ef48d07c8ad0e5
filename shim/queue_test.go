package shim_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
)

// queueWork builds shim/test/queuework.c with the shim: as a separate library, or with a sanitizer
// as one program. In the latter the shim's dlsym is renamed, because the sanitizer needs the
// real one before the shim can run.
func queueWork(t *testing.T, sanitizer string) string {
	t.Helper()
	sources, err := filepath.Glob("*.c")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	dir := t.TempDir()
	program, library := filepath.Join(dir, "queuework"), filepath.Join(dir, "libgiveway.so")
	flags := []string{"-std=gnu11", "-g", "-fvisibility=hidden"}
	strict := append(flags, "-O1", "-Wall", "-Wextra", "-Wshadow", "-Werror")
	if sanitizer == "" {
		compileQueueWork(t, append(strict, append(sources, "-fPIC", "-shared", "-Wl,-Bsymbolic,--version-script=giveway.map,-soname,libgiveway.so,-z,defs", "-o", library)...))
		compileQueueWork(t, append(strict, "test/queuework.c", "-L"+dir, "-lgiveway", "-Wl,-rpath,"+dir, "-pthread", "-o", program))
		return program
	}
	probe := exec.Command("gcc", "-fsanitize="+sanitizer, "-x", "c", "-", "-o", filepath.Join(dir, "probe"))
	probe.Stdin = strings.NewReader("int main(void) { return 0; }")
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("gcc has no -fsanitize=%s here: %s", sanitizer, out)
	}
	flags = append(flags, "-w", "-fsanitize="+sanitizer, "-Ddlsym=not_dlsym", "-Ddlvsym=not_dlvsym", "-o", program, "test/queuework.c")
	compileQueueWork(t, append(append(flags, sources...), "-pthread", "-ldl"))
	return program
}

func compileQueueWork(t *testing.T, args []string) {
	t.Helper()
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestQueues runs each part of queuework.c without a daemon, with a daemon, and with a daemon that
// sets a bound.
func TestQueues(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("the shim's tests need gcc")
	}
	for _, sanitizer := range []string{"", "address,undefined", "thread"} {
		t.Run("sanitizer="+sanitizer, func(t *testing.T) {
			if sanitizer != "" && testing.Short() {
				t.Skip("sanitizers are skipped with -short")
			}
			program := queueWork(t, sanitizer)
			daemons := map[string]uint32{"none": 0, "free": 0, "bound": 2}
			if sanitizer != "" {
				daemons = map[string]uint32{"bound": 2} // this runs all of the code
			}
			for daemon, bound := range daemons {
				for _, part := range []string{"semantics", "destroy", "threads", "forks", "ranks"} {
					t.Run(daemon+"/"+part, func(t *testing.T) {
						if part == "forks" && sanitizer != "" {
							t.Skip("after a fork the sanitizers' own locks may stay held in the child")
						}
						socket := filepath.Join(t.TempDir(), "none")
						if daemon != "none" {
							socket = pagetest.New(t, func(p *shimpage.Page) { p.SetBound(bound, 1) }).Socket()
						}
						runQueueWork(t, program, socket, part)
					})
				}
			}
			t.Run("gate", func(t *testing.T) { testQueueGate(t, program) })
			t.Run("gate of a daemon that dies", func(t *testing.T) { testQueueDaemonDies(t, program) })
			t.Run("hint first", func(t *testing.T) { testQueueAfterHint(t, program) })
			t.Run("bound", func(t *testing.T) { testQueueBound(t, program) })
			t.Run("rank", func(t *testing.T) { testQueueRank(t, program) })
		})
	}
}

func runQueueWork(t *testing.T, program, socket, part string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, part)
	cmd.Env = append(os.Environ(), "GIVEWAY_SOCKET="+socket)
	stop := time.AfterFunc(4*pagetest.Timeout, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "ok "+part+"\n") {
		t.Errorf("%s: %v\n%s", part, err, out)
	}
}

// interactive is queuework.c in its interactive mode, which reads commands line by line.
type interactive struct {
	t     *testing.T
	in    io.WriteCloser
	lines chan string
	cmd   *exec.Cmd
}

func startInteractive(t *testing.T, program string, d *pagetest.Daemon) *interactive {
	t.Helper()
	w := &interactive{t: t, cmd: exec.CommandContext(t.Context(), program, "interactive"), lines: make(chan string, 64)}
	w.cmd.Env = append(os.Environ(), "GIVEWAY_SOCKET="+d.Socket())
	w.cmd.Stderr = os.Stderr
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(w.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			w.lines <- in.Text()
		}
	}()
	return w
}

func (w *interactive) send(what string, number int) {
	w.t.Helper()
	if _, err := fmt.Fprintf(w.in, "%s %d\n", what, number); err != nil {
		w.t.Fatal(err)
	}
}

func (w *interactive) expect(want string) {
	w.t.Helper()
	select {
	case line := <-w.lines:
		if line != want {
			w.t.Fatalf("got %q, want %q", line, want)
		}
	case <-time.After(pagetest.Timeout):
		w.t.Fatalf("no output, want %q", want)
	}
}

func (w *interactive) expectSilence() {
	w.t.Helper()
	select {
	case line := <-w.lines:
		w.t.Fatalf("got %q while the process is held", line)
	case <-time.After(2 * pagetest.Lease):
	}
}

func (w *interactive) end() {
	w.t.Helper()
	_ = w.in.Close()
	w.expect("ok interactive")
	if err := w.cmd.Wait(); err != nil {
		w.t.Fatal(err)
	}
}

// testQueueGate: a closed gate holds the commands of a queue. A held command has not begun: it can
// be dropped, and the queue destroyed.
func testQueueGate(t *testing.T, program string) {
	d := pagetest.New(t, func(p *shimpage.Page) { p.Hold(pagetest.Lease) })
	w := startInteractive(t, program, d)
	w.send("submit", 0)
	w.send("submit", 0)
	page := d.Page()
	pagetest.Until(t, "a command is held", func() bool { return page.Counters().Flags == shimpage.Held|shimpage.Ready })
	w.expectSilence()
	page.Release()
	w.expect("runs 1")
	w.expect("runs 2")
	pagetest.Until(t, "the process is idle", func() bool { c := page.Counters(); return c.Flags == 0 && c.Completed == 2 })
	if c := page.Counters(); c.Launched != 2 || c.Holds != 1 || c.Runtimes != 1<<3 {
		t.Errorf("got %+v, want 2 launched, 1 hold, runtime queue", c)
	}
	w.send("stay", 0)
	pagetest.Until(t, "a command runs", func() bool {
		c := page.Counters()
		return c.Flags == shimpage.Ready && c.Launched == 3 && c.Completed == 2
	})
	w.send("go", 0)
	pagetest.Until(t, "the process is idle", func() bool { c := page.Counters(); return c.Flags == 0 && c.Launched == 3 && c.Completed == 3 })
	page.Hold(pagetest.Lease)
	w.send("submit", 0)
	pagetest.Until(t, "a command is held", func() bool { return page.Counters().Flags&shimpage.Held != 0 })
	w.send("drop", 0)
	w.expect("dropped 1")
	w.send("wait", 4)
	w.expect("waited 0")
	w.send("submit", 0)
	w.end() // drops the command, and exits while the thread waits at the gate
}

func testQueueDaemonDies(t *testing.T, program string) {
	d := pagetest.New(t, func(p *shimpage.Page) { p.Hold(pagetest.Lease) })
	w := startInteractive(t, program, d)
	w.send("submit", 0)
	page := d.Page()
	pagetest.Until(t, "a command is held", func() bool { return page.Counters().Flags&shimpage.Held != 0 })
	d.Die()
	w.expect("runs 1")
	w.end()
}

// testQueueAfterHint: if a hint came first, the daemon learns of the queue while its first command
// runs, not only afterwards.
func testQueueAfterHint(t *testing.T, program string) {
	d := pagetest.New(t, nil)
	w := startInteractive(t, program, d)
	w.send("priority", 5)
	page := d.Page()
	pagetest.Hints(t, page, 1)
	if c := page.Counters(); c.Runtimes != 0 {
		t.Errorf("before any command: got %+v, want no runtime", c)
	}
	w.send("stay", 0)
	pagetest.Until(t, "a command runs", func() bool {
		c := page.Counters()
		return c.Flags == shimpage.Ready && c.Launched == 1 && c.Completed == 0
	})
	if c := page.Counters(); c.Runtimes != 1<<3 {
		t.Errorf("while a command runs: got %+v, want runtime queue", c)
	}
	w.send("go", 0)
	w.end()
}

// testQueueBound: a LATER command is in flight until it is done, for the daemon and its bound, in
// whatever order the commands are done.
func testQueueBound(t *testing.T, program string) {
	d := pagetest.New(t, func(p *shimpage.Page) { p.SetBound(3, 1) })
	w := startInteractive(t, program, d)
	for i := range 3 {
		w.send("later", 0)
		w.expect(fmt.Sprint("later ", i+1))
	}
	page := d.Page()
	waitForCounts := func(launched, completed uint64) {
		t.Helper()
		pagetest.Until(t, fmt.Sprintf("%d launched, %d completed", launched, completed), func() bool {
			c := page.Counters()
			return c.Launched == launched && c.Completed == completed
		})
	}
	waitForCounts(3, 0)
	w.send("done", 2) // out of order: counted when the first is done too
	w.expect("done 0")
	w.send("done", 1)
	w.expect("done 0")
	waitForCounts(3, 2)
	w.send("later", 0)
	w.expect("later 4")
	w.send("later", 0)
	w.expect("later 5")
	waitForCounts(5, 2)
	before := page.Counters().Overruns
	w.send("later", 0) // nothing completes, so it is let through
	w.expect("later 6")
	if n := page.Counters().Overruns; n != before+1 {
		t.Errorf("%d overruns, want %d", n, before+1)
	}
	for i := 6; i >= 3; i-- {
		w.send("done", i)
		w.expect("done 0")
	}
	waitForCounts(6, 6)
	w.send("wait", 0)
	w.expect("waited 0")
	if c := page.Counters(); c.Flags != 0 {
		t.Errorf("got %+v, want an idle process", c)
	}
	w.end()
}

// testQueueRank: the daemon is told the class and the priority of the queue that has commands.
func testQueueRank(t *testing.T, program string) {
	d := pagetest.New(t, func(*shimpage.Page) {})
	w := startInteractive(t, program, d)
	w.send("class", 1)
	w.send("rank", 7)
	w.send("submit", 0)
	w.expect("runs 1")
	w.send("class", 2)
	w.send("submit", 0)
	w.expect("runs 2")
	page := d.Page()
	w.end()
	var got []string
	page.Hints(func(h shimpage.Hint) { got = append(got, fmt.Sprint(h.Kind, "=", h.Value)) })
	if want := "[1=1 2=7 1=2]"; fmt.Sprint(got) != want {
		t.Errorf("hints %v, want %v", got, want)
	}
}
