package discover

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/nvidia/nvrm/nvrmtest"
)

// The test's own binary, started again, plays the processes that are watched.
const (
	childEnv  = "DISCOVER_TEST_CHILD"
	childFile = "DISCOVER_TEST_FILE"
)

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(childEnv) {
	case "":
		os.Exit(m.Run())
	case "fiemap":
		err = fiemapChild(os.Getenv(childFile))
	case "obey":
		err = obey(os.Getenv(childFile))
	case "inherit": // a descriptor, and hold it until killed
		fmt.Println(os.Getpid())
		time.Sleep(time.Minute)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// obey is a CUDA program that does what it is told, a word a line, and answers
// each with a line.
func obey(path string) error {
	f, err := nvrm.Open(path)
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	var c nvrmtest.Context
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		answer := "ok"
		switch in.Text() {
		case "make":
			if c, err = nvrmtest.NewContext(f); err == nil {
				b, _ := json.Marshal(c)
				answer = string(b)
			}
		case "free group":
			err = nvrm.Free(f, c.Client, c.Device, c.Compute.Group)
		case "free channel":
			err = nvrm.Free(f, c.Client, c.Compute.Group, c.Compute.Channels[7])
		case "close":
			err = f.Close()
		case "reopen":
			f, err = nvrm.Open(path)
		case "bequeath":
			heir := child("inherit", path)
			heir.ExtraFiles = []*os.File{os.NewFile(uintptr(f.Fd()), "nvidiactl")}
			out, _ := heir.StdoutPipe()
			if err = heir.Start(); err == nil {
				answer, err = bufio.NewReader(out).ReadString('\n')
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", in.Text(), err)
		}
		fmt.Println(strings.TrimSpace(answer))
	}
	return nil
}

func child(part, path string) *exec.Cmd {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), childEnv+"="+part, childFile+"="+path)
	c.Stderr = os.Stderr
	return c
}

// A program is one that obeys.
type program struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

func start(t *testing.T, path string) *program {
	t.Helper()
	c := child("obey", path)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	p := &program{t, c, in, bufio.NewReader(out)}
	t.Cleanup(p.kill)
	return p
}

func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *program) tell(word string) string {
	p.t.Helper()
	fmt.Fprintln(p.in, word)
	answer, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("%s: %v", word, err)
	}
	return strings.TrimSpace(answer)
}

func (p *program) make() (c nvrmtest.Context) {
	p.t.Helper()
	if err := json.Unmarshal([]byte(p.tell("make")), &c); err != nil {
		p.t.Fatal(err)
	}
	return c
}

// A watch is a Watcher under test, of which the events come one by one.
type watch struct {
	*Watcher
	t      *testing.T
	cancel context.CancelFunc
}

// watching starts to watch, and sees to it that in the end nothing is left.
func watching(t *testing.T, c Config) *watch {
	t.Helper()
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	if c.Poll == 0 {
		c.Poll = 20 * time.Millisecond
	}
	ctx, cancel := context.WithCancel(t.Context())
	w, err := Watch(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if !c.NoBPF && w.bpfErr != nil {
		t.Skipf("eBPF: %v", w.bpfErr)
	}
	t.Cleanup(func() {
		cancel()
		for e := range w.Events() {
			if e.Found != nil {
				e.Found.File.Close()
			}
		}
		settled(t, "goroutines", goroutines, runtime.NumGoroutine)
		settled(t, "open files", files, func() int { return openFiles(t) })
	})
	return &watch{w, t, cancel}
}

// settled waits until a count is no more than before.
func settled(t *testing.T, what string, before int, count func() int) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for count() > before {
		if time.Now().After(deadline) {
			t.Errorf("%d %s, %d before", count(), what, before)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func openFiles(t *testing.T) int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func (w *watch) next() Event {
	w.t.Helper()
	select {
	case e := <-w.Events():
		return e
	case <-time.After(20 * time.Second):
		w.t.Fatalf("nothing was reported; wrong guesses: %d; %+v", w.Guesses(), w.Checks())
		return Event{}
	}
}

// found wants the next event to be a group, and closes its descriptor.
func (w *watch) found() Group {
	w.t.Helper()
	e := w.next()
	if e.Found == nil {
		w.t.Fatalf("got %+v gone, want a group", *e.Gone)
	}
	if _, err := (nvrm.Group{File: e.Found.File, Client: e.Found.Client, Handle: e.Found.Handle}).Timeslice(); err != nil {
		w.t.Errorf("the copied descriptor does not work: %v", err)
	}
	if err := e.Found.File.Close(); err != nil {
		w.t.Error(err)
	}
	return *e.Found
}

func (w *watch) gone() Gone {
	w.t.Helper()
	e := w.next()
	if e.Gone == nil {
		w.t.Fatalf("got group %v of %d, want something gone", e.Found.Handle, e.Found.Process.PID)
	}
	return *e.Gone
}

// quiet wants no event for a few polls.
func (w *watch) quiet() {
	w.t.Helper()
	select {
	case e := <-w.Events():
		w.t.Fatalf("got %+v, want nothing", e)
	case <-time.After(150 * time.Millisecond):
	}
}
