package server_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/server"
)

// The process's first thread stays the test's own: /proc/PID/status is about it, and asUser
// leaves threads of other users behind.
func init() { runtime.LockOSThread() }

// asUser calls f on a thread whose user, as the kernel records it at connect, is uid.
func asUser(t *testing.T, uid int, f func()) {
	t.Helper()
	done := make(chan syscall.Errno)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		_, _, failed := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0))
		if failed == 0 {
			f()
		}
		done <- failed
	}()
	if failed := <-done; failed != 0 {
		t.Fatalf("become user %d: %v", uid, failed)
	}
}

// serveChild serves a node in this process for TestUsersCannotKeepRootOut.
func serveChild(socket string) {
	s := newServer(newFake(), server.Config{Socket: socket})
	s.SetSubuidFile(filepath.Join(filepath.Dir(socket), "subuid"))
	if err := s.Serve(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestUsersCannotKeepRootOut: a user with subordinate uids opens as many connections as it
// can to a daemon with few descriptors. Root and another user are still answered.
func TestUsersCannotKeepRootOut(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to become other users")
	}
	dir := t.TempDir()
	makeReachable(t, dir)
	socket := filepath.Join(dir, "giveway.sock")
	if err := os.WriteFile(filepath.Join(dir, "subuid"), []byte("1000:100000:65536\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const descriptors = 256
	cmd := exec.Command("sh", "-c", fmt.Sprintf("ulimit -n %d && exec /proc/%d/exe", descriptors, os.Getpid()))
	cmd.Env = []string{"GIVEWAY_TEST_SERVE=" + socket}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	status := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		c := client.New(socket)
		defer c.Close()
		_, err := c.Status(ctx)
		return err
	}
	eventually(t, "the daemon answers", func() bool { return status() == nil })

	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for uid := 100_000; uid < 100_009; uid++ {
		asUser(t, uid, func() {
			for range 64 {
				if c, err := net.DialTimeout("unix", socket, time.Second); err == nil {
					conns = append(conns, c)
				}
			}
		})
	}
	if err := status(); err != nil {
		t.Errorf("root: %v", err)
	}
	open := 0
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); os.IsTimeout(err) {
			open++
		}
	}
	if open == 0 || open > descriptors/8 {
		t.Errorf("the user has %d connections through 9 uids, want 1 to %d", open, descriptors/8)
	}
	asUser(t, 1001, func() { // one connection of another user is answered
		c, err := net.DialTimeout("unix", socket, time.Second)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprint(c, "GET /v1/policy HTTP/1.1\r\nHost: x\r\n\r\n")
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		text := make([]byte, 20)
		if n, err := c.Read(text); err != nil || !strings.HasPrefix(string(text[:n]), "HTTP/1.1 200") {
			t.Errorf("another user: got %q, %v", text[:n], err)
		}
	})
}

// TestRootWithoutRights: uid 0 in another user namespace, or without the daemon's
// capabilities, may not do what affects every user.
func TestRootWithoutRights(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: other users have no capabilities to drop")
	}
	socket, _ := start(t, newFake())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"GIVEWAY_TEST_POLICY=" + socket}
	mapping := []syscall.SysProcIDMap{{Size: 1}}
	namespace := exec.Command(self)
	namespace.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: mapping, GidMappings: mapping}
	for _, c := range []struct {
		name, want string
		cmd        *exec.Cmd
	}{
		{"root", "<nil>", exec.Command(self)},
		{"root of a user namespace", "in another user namespace", namespace},
		{"root with fewer capabilities", "lacks capabilities", exec.Command("setpriv", "--bounding-set", "-sys_admin", self)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.cmd.Err != nil {
				t.Skipf("needs setpriv: %v", c.cmd.Err)
			}
			c.cmd.Env = env
			out, err := c.cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if !strings.Contains(string(out), c.want) {
				t.Errorf("got %swant %s", out, c.want)
			}
		})
	}
}

// callPolicy changes the policy, for TestRootWithoutRights.
func callPolicy(socket string) {
	_, err := client.New(socket).SetPolicy(context.Background(), api.Policy{Name: "rr"})
	fmt.Println(err)
}

const maxTCPClients = 64 // with a token, as the documentation says

// TestTCPWithoutToken: connections that send no token do not keep out a client that has
// it.
func TestTCPWithoutToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newServer(newFake(), server.Config{TCP: "127.0.0.1:0", TokenFile: file})
	serve(t, s)
	addr := s.Addrs()[0].String()
	for range 200 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	keep := &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
	call := func(token string) (*http.Response, error) {
		req, _ := http.NewRequest(http.MethodGet, "http://"+addr+"/v1/status", nil)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := keep.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		return resp, err
	}
	resp, err := call("0123456789abcdef")
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("with the token: got %v, %v", resp, err)
	}
	var refused *http.Response
	for i := 0; i < 2*maxTCPClients && refused == nil; i++ {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "GET /v1/status HTTP/1.1\r\nHost: giveway\r\nAuthorization: Bearer 0123456789abcdef\r\n\r\n")
		if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 200 {
			refused = resp
		}
	}
	if refused == nil || refused.StatusCode != http.StatusTooManyRequests {
		t.Errorf("after %d clients with the token: got %v, want 429", maxTCPClients, refused)
	}
	if resp, err := call("another token, a wrong one"); err != nil || resp.StatusCode != 401 || !resp.Close {
		t.Errorf("with another token: got %v, %v; want 401 and the end of the connection", resp, err)
	}
}
