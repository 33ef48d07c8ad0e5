package drivertest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Child is a child process of a test. It is killed when the test ends.
type Child struct {
	PID int
	In  io.WriteCloser // its standard input
	Out io.Reader      // its standard output

	cmd   *exec.Cmd
	ended sync.Once
}

// Self returns a command that runs the test's own binary again. The variables, NAME=VALUE,
// tell it what to do instead of the tests.
func Self(env ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	// Without this a process under the race detector takes a second to exit.
	cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0"), env...)
	return cmd
}

// Start starts a command as a child of the test.
func Start(t testing.TB, cmd *exec.Cmd) *Child {
	t.Helper()
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &Child{PID: cmd.Process.Pid, In: in, Out: out, cmd: cmd}
	t.Cleanup(c.Kill)
	return c
}

// Exit closes the standard input and waits until the child has exited.
func (c *Child) Exit() (err error) {
	c.ended.Do(func() {
		c.In.Close()
		err = c.cmd.Wait()
	})
	return err
}

// Kill sends SIGKILL to the child and waits until it has exited.
func (c *Child) Kill() {
	c.ended.Do(func() {
		_ = c.cmd.Process.Kill() // fails if it has exited
		_ = c.cmd.Wait()         // reports the signal
	})
}

// KillWithChildren kills the child and its own children, such as a daemon and its guardian, so
// that none of them notices the end of another. It returns how many children there were.
func (c *Child) KillWithChildren() (children int) {
	children = KillChildren(c.PID)
	c.Kill()
	return children
}

// KillChildren stops a process and kills its children. It returns how many there were.
func KillChildren(pid int) (killed int) {
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range all {
		text, _ := os.ReadFile(name)
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil && syscall.Kill(child, syscall.SIGKILL) == nil {
				killed++
			}
		}
	}
	return killed
}

// Eventually fails the test unless the condition holds within 30 seconds.
func Eventually(t testing.TB, condition string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("does not hold after 30 s: %s", condition)
		}
	}
}
