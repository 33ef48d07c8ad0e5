package extpolicy

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// listenAs listens on a socket as another user, as which the kernel reports the listener.
func listenAs(t *testing.T, uid int, path string) {
	t.Helper()
	done := make(chan error)
	var l net.Listener
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, failed := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); failed != 0 {
			done <- failed
			return
		}
		var err error
		l, err = net.Listen("unix", path)
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

// TestSocketOfAnotherUser: a policy process of another user is not asked.
func TestSocketOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	dir, err := os.MkdirTemp("", "policy") // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[int]string{1000: "user 1000 listens on", 0: ""} {
		path := filepath.Join(dir, strconv.Itoa(uid))
		listenAs(t, uid, path)
		c := &Connection{cfg: Config{Socket: path}, log: slog.New(slog.DiscardHandler)}
		conn, err := c.dial(context.Background())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("a listener of user %d: got %v, want %q", uid, err, want)
		}
		if err == nil {
			conn.Close()
		}
	}
}

// TestScoreOfTheCommand: a command does not inherit a score that is lower than its own, and keeps a
// higher one. The test cannot lower its score, so it takes another for that of commands.
func TestScoreOfTheCommand(t *testing.T) {
	const file = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	own, _ := strconv.Atoi(strings.TrimSpace(string(before)))
	defer func(was string) { commandScore = was }(commandScore)
	if commandScore != "0" {
		t.Errorf("a command has the score %s, want 0", commandScore)
	}
	for _, c := range []struct{ score, want int }{{own + 70, own + 70}, {own - 70, own}} {
		commandScore = strconv.Itoa(c.score)
		p, err := startCommand("cat "+file+"; exec cat", false, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(p).ReadString('\n')
		if got := strings.TrimSpace(line); err != nil || got != strconv.Itoa(c.want) {
			t.Errorf("with the score %d for commands: got %q, %v; want %d", c.score, got, err, c.want)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
