package main_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// fullPipe returns the ends of a pipe that has no room.
func fullPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	if err := w.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = w.Write(make([]byte, 4096))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return r, w
}

// A guardian undoes changes also if its log, which is the daemon's stderr, cannot be written.
func TestGuardianWithoutReaderOfLog(t *testing.T) {
	program := build(t)
	for name, broken := range map[string]bool{"pipe is full": false, "pipe has no reader": true} {
		t.Run(name, func(t *testing.T) {
			r, w := fullPipe(t)
			if broken {
				r.Close()
			}
			fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			ours, theirs := os.NewFile(uintptr(fds[0]), "daemon"), os.NewFile(uintptr(fds[1]), "guardian")
			cmd := exec.Command(program, "guardian")
			cmd.Stderr, cmd.ExtraFiles = w, []*os.File{theirs}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			theirs.Close()
			ours.Close() // the daemon is killed
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("the guardian: %v, want a clean end", err)
				}
			case <-time.After(5 * time.Second):
				t.Error("the guardian has not ended 5 s after its daemon")
				_ = cmd.Process.Kill()
				<-ended
			}
		})
	}
}

// Orders are carried out, and the daemon ends, also while nothing reads its log, and when its reader
// has exited.
func TestDaemonWithoutReaderOfLog(t *testing.T) {
	program := build(t)
	for name, broken := range map[string]bool{"pipe is full": false, "pipe has no reader": true} {
		t.Run(name, func(t *testing.T) {
			r, w := fullPipe(t)
			if broken {
				r.Close()
			}
			dir := t.TempDir()
			file := filepath.Join(dir, "test.yaml")
			if err := os.WriteFile(file, []byte(scenario), 0o600); err != nil {
				t.Fatal(err)
			}
			n := &node{T: t, program: program, socket: filepath.Join(dir, "giveway.sock")}
			n.daemon = exec.Command(program, "daemon", "--sim", file, "--socket", n.socket)
			n.daemon.Stderr = w
			if err := n.daemon.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- n.daemon.Wait() }()
			t.Cleanup(func() { _ = n.daemon.Process.Kill() })
			n.eventually("the daemon finds three processes", func() bool { return len(n.processes()) == 3 })
			n.run(false, "set", strconv.Itoa(n.processes()["train"].PID), "--weight", "3")
			if err := n.daemon.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("the daemon: %v, want a clean end", err)
				}
			case <-time.After(8 * time.Second):
				t.Error("the daemon has not ended 8 s after SIGTERM")
			}
		})
	}
}
