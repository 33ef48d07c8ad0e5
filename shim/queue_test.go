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

// queueWork builds shim/test/queuework.c with the shim in it: as a library beside it, or
// with a sanitizer in one program. There the shim's dlsym goes by another name: a
// sanitizer needs the real one before anything of ours can run.
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

// TestQueues runs each part of queuework.c without a daemon, with one, and with one that
// bounds what is in flight: what a queue promises holds in all three.
func TestQueues(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("the shim's tests need gcc")
	}
	for _, sanitizer := range []string{"", "address,undefined", "thread"} {
		t.Run("sanitizer="+sanitizer, func(t *testing.T) {
			if sanitizer != "" && testing.Short() {
				t.Skip("sanitizers are not for short runs")
			}
			program := queueWork(t, sanitizer)
			daemons := map[string]uint32{"none": 0, "free": 0, "bound": 2}
			if sanitizer != "" {
				daemons = map[string]uint32{"bound": 2} // which passes through all the code there is
			}
			for daemon, bound := range daemons {
				for _, part := range []string{"semantics", "destroy", "threads", "forks"} {
					t.Run(daemon+"/"+part, func(t *testing.T) {
						if part == "forks" && sanitizer != "" {
							t.Skip("in the child of a fork the sanitizers' own locks may be held for ever, and threads are not for them")
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

// A talker is queuework.c doing what it is told, line by line.
type talker struct {
	t     *testing.T
	in    io.WriteCloser
	lines chan string
	cmd   *exec.Cmd
}

func talk(t *testing.T, program string, d *pagetest.Daemon) *talker {
	t.Helper()
	w := &talker{t: t, cmd: exec.CommandContext(t.Context(), program, "talk"), lines: make(chan string, 64)}
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

func (w *talker) tell(what string, number int) {
	w.t.Helper()
	if _, err := fmt.Fprintf(w.in, "%s %d\n", what, number); err != nil {
		w.t.Fatal(err)
	}
}

func (w *talker) hear(want string) {
	w.t.Helper()
	select {
	case line := <-w.lines:
		if line != want {
			w.t.Fatalf("it says %q, want %q", line, want)
		}
	case <-time.After(pagetest.Timeout):
		w.t.Fatalf("it does not say %q", want)
	}
}

func (w *talker) silent() {
	w.t.Helper()
	select {
	case line := <-w.lines:
		w.t.Fatalf("it says %q while it is held", line)
	case <-time.After(2 * pagetest.Lease):
	}
}

func (w *talker) end() {
	w.t.Helper()
	_ = w.in.Close()
	w.hear("ok talk")
	if err := w.cmd.Wait(); err != nil {
		w.t.Fatal(err)
	}
}

// testQueueGate: the process's gate holds a queue's commands like any others. What is
// held has not begun: it can be dropped, and the queue destroyed.
func testQueueGate(t *testing.T, program string) {
	d := pagetest.New(t, func(p *shimpage.Page) { p.Hold(pagetest.Lease) })
	w := talk(t, program, d)
	w.tell("submit", 0)
	w.tell("submit", 0)
	page := d.Page()
	pagetest.Until(t, "it is held", func() bool { return page.Counters().Flags == shimpage.Held|shimpage.Ready })
	w.silent()
	page.Release()
	w.hear("runs 1")
	w.hear("runs 2")
	pagetest.Until(t, "it is idle", func() bool { c := page.Counters(); return c.Flags == 0 && c.Completed == 2 })
	if c := page.Counters(); c.Launched != 2 || c.Holds != 1 || c.Runtimes != 1<<3 {
		t.Errorf("the daemon reads %+v", c)
	}
	w.tell("stay", 0)
	pagetest.Until(t, "one runs", func() bool {
		c := page.Counters()
		return c.Flags == shimpage.Ready && c.Launched == 3 && c.Completed == 2
	})
	w.tell("go", 0)
	pagetest.Until(t, "it is idle", func() bool { c := page.Counters(); return c.Flags == 0 && c.Launched == 3 && c.Completed == 3 })
	page.Hold(pagetest.Lease)
	w.tell("submit", 0)
	pagetest.Until(t, "it is held", func() bool { return page.Counters().Flags&shimpage.Held != 0 })
	w.tell("drop", 0)
	w.hear("dropped 1")
	w.tell("wait", 4)
	w.hear("waited 0")
	w.tell("submit", 0)
	w.end() // drops it, and ends while the thread is at the gate
}

func testQueueDaemonDies(t *testing.T, program string) {
	d := pagetest.New(t, func(p *shimpage.Page) { p.Hold(pagetest.Lease) })
	w := talk(t, program, d)
	w.tell("submit", 0)
	page := d.Page()
	pagetest.Until(t, "it is held", func() bool { return page.Counters().Flags&shimpage.Held != 0 })
	d.Die()
	w.hear("runs 1")
	w.end()
}

// testQueueAfterHint: where a hint came first the daemon hears of the queue while its
// first command runs, and not when that is over.
func testQueueAfterHint(t *testing.T, program string) {
	d := pagetest.New(t, nil)
	w := talk(t, program, d)
	w.tell("priority", 5)
	page := d.Page()
	pagetest.Hints(t, page, 1)
	if c := page.Counters(); c.Runtimes != 0 {
		t.Errorf("before any command the daemon reads %+v", c)
	}
	w.tell("stay", 0)
	pagetest.Until(t, "one runs", func() bool {
		c := page.Counters()
		return c.Flags == shimpage.Ready && c.Launched == 1 && c.Completed == 0
	})
	if c := page.Counters(); c.Runtimes != 1<<3 {
		t.Errorf("while it runs the daemon reads %+v", c)
	}
	w.tell("go", 0)
	w.end()
}

// testQueueBound: commands that are done later are in flight until then, for the daemon
// and its bound, in whatever order they are done.
func testQueueBound(t *testing.T, program string) {
	d := pagetest.New(t, func(p *shimpage.Page) { p.SetBound(3, 1) })
	w := talk(t, program, d)
	for i := range 3 {
		w.tell("later", 0)
		w.hear(fmt.Sprint("later ", i+1))
	}
	page := d.Page()
	flight := func(launched, completed uint64) {
		t.Helper()
		pagetest.Until(t, fmt.Sprintf("%d are launched, %d of them done", launched, completed), func() bool {
			c := page.Counters()
			return c.Launched == launched && c.Completed == completed
		})
	}
	flight(3, 0)
	w.tell("done", 2) // out of order: known when the first is done too
	w.hear("done 0")
	w.tell("done", 1)
	w.hear("done 0")
	flight(3, 2)
	w.tell("later", 0)
	w.hear("later 4")
	w.tell("later", 0)
	w.hear("later 5")
	flight(5, 2)
	before := page.Counters().Overruns
	w.tell("later", 0) // nothing moves, so it is let through
	w.hear("later 6")
	if n := page.Counters().Overruns; n != before+1 {
		t.Errorf("%d overruns, want %d", n, before+1)
	}
	for i := 6; i >= 3; i-- {
		w.tell("done", i)
		w.hear("done 0")
	}
	flight(6, 6)
	w.tell("wait", 0)
	w.hear("waited 0")
	if c := page.Counters(); c.Flags != 0 {
		t.Errorf("the daemon reads %+v", c)
	}
	w.end()
}
