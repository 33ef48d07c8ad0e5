package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/journal"
)

// TestTakeoverThatCannotStart: a daemon that cannot start does not end the one that it is to replace.
func TestTakeoverThatCannotStart(t *testing.T) {
	dir := journalDir(t)
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const good = "policy: slo\n"
	write("giveway.yaml", good)
	if err := os.Mkdir(path("queues"), 0o700); err != nil {
		t.Fatal(err)
	}
	write("not-a-socket", "")
	write("short", "x")
	daemon := func(args ...string) (*exec.Cmd, *logBuffer) {
		cmd, log := exec.Command(os.Args[0], append([]string{dir}, args...)...), &logBuffer{}
		cmd.Env = append(os.Environ(), "DAEMON_TEST=soak")
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd, log
	}
	first, _ := daemon()
	c := client.New(path("s"))
	runs := func() bool {
		st, err := c.Status(t.Context())
		return err == nil && st.PID == first.Process.Pid
	}
	eventually(t, "the first daemon answers", runs)
	otherVersion := func(version byte) {
		t.Helper()
		f, err := os.OpenFile(journal.Path(path("s")), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte{version}, int64(len("GIVEWAY"))); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name, config, want string
		version            byte
	}{
		{"no token file", fmt.Sprintf("tcp: 127.0.0.1:0\ntoken_file: %s\n", path("missing")), "read the token", 1},
		{"token that is too short", fmt.Sprintf("tcp: 127.0.0.1:0\ntoken_file: %s\n", path("short")), "token", 1},
		{"address of another machine", fmt.Sprintf("tcp: 192.0.2.1:1\ntoken_file: %s\n", path("token")), "listen on TCP", 1},
		{"file in place of a socket", fmt.Sprintf("agent_socket: %s\n", path("not-a-socket")), "not a socket", 1},
		{"sockets in one folder", fmt.Sprintf("agent_socket: %s\n", path("agent")), "the same folder", 1},
		{"journal of another version", good, "another version", 9},
	} {
		write("token", "0123456789abcdef")
		write("giveway.yaml", test.config)
		otherVersion(test.version)
		second, log := daemon("takeover")
		err := second.Wait()
		otherVersion(1)
		if err == nil || !strings.Contains(log.String(), test.want) {
			t.Errorf("%s: got %v, want an error with %q: %s", test.name, err, test.want, log)
		}
		if !runs() {
			t.Fatalf("%s: the first daemon does not run any more", test.name)
		}
	}
}
