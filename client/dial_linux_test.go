package client_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/client"
)

// TestListenerOfAnotherUser: a client sends nothing to a socket on which another user
// listens.
func TestListenerOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to listen as another user")
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	listenAs(t, l.(*net.UnixListener), 65534)
	got := make(chan int, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		n, _ := conn.Read(make([]byte, 100))
		got <- n
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // it never answers
	defer cancel()
	_, err = client.New(path).Status(ctx)
	if err == nil || !strings.Contains(err.Error(), "user 65534 listens on "+path) {
		t.Errorf("got error %v, want that another user listens", err)
	}
	if n := <-got; n != 0 {
		t.Errorf("the listener got %d bytes, want none", n)
	}
}

// listenAs makes the listener's credentials those of another user: the kernel records them
// at listen.
func listenAs(t *testing.T, l *net.UnixListener, uid int) {
	t.Helper()
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, failed := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); failed != 0 {
			done <- failed
			return
		}
		var failed error
		err := raw.Control(func(fd uintptr) { failed = syscall.Listen(int(fd), 10) })
		done <- errors.Join(err, failed)
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestFullBacklog: a client waits while too many connections wait to be accepted, as long
// as its context allows.
func TestFullBacklog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	waiting, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := client.Dial(ctx, path); err == nil {
		t.Fatal("connected although the backlog is full")
	}
	go func() {
		time.Sleep(100 * time.Millisecond) // the client is likely to have tried by then
		if c, _, err := syscall.Accept(fd); err == nil {
			_ = syscall.Close(c)
		}
	}()
	conn, err := client.Dial(t.Context(), path)
	if err != nil {
		t.Fatalf("after a place in the backlog is free: %v", err)
	}
	conn.Close()
}
