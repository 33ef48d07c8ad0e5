package server_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/giveway/giveway/internal/server"
)

// host is a server.PageHost that hands out files and counts processes.
type host struct {
	*fakeNode
	here, left atomic.Int32
	refuse     error
}

func (h *host) Admit(v server.ShimProcess) (fds [3]int, leave func(), err error) {
	if h.refuse != nil {
		return fds, nil, h.refuse
	}
	if v.PID != os.Getpid() || v.UID != uint32(os.Getuid()) {
		return fds, nil, fmt.Errorf("got process %+v", v)
	}
	for i := range fds {
		if fds[i], err = syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0); err != nil {
			return fds, nil, err
		}
	}
	h.here.Add(1)
	return fds, func() { h.left.Add(1) }, nil
}

func visit(t *testing.T, network, addr, headers string) (net.Conn, int, []int) {
	t.Helper()
	c, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "POST /v1/shim HTTP/1.1\r\nHost: giveway\r\nContent-Length: 0\r\n%s\r\n", headers)
	u, local := c.(*net.UnixConn)
	if !local {
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		return c, resp.StatusCode, nil
	}
	text, oob := make([]byte, 4096), make([]byte, syscall.CmsgSpace(16*4))
	n, m, _, _, err := u.ReadMsgUnix(text, oob)
	if err != nil {
		t.Fatal(err)
	}
	status := 0
	if _, err := fmt.Sscanf(string(text[:n]), "HTTP/1.1 %d", &status); err != nil {
		t.Fatal(err)
	}
	var fds []int
	if messages, err := syscall.ParseSocketControlMessage(oob[:m]); err == nil && len(messages) == 1 {
		fds, _ = syscall.ParseUnixRights(&messages[0])
	}
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
	return c, status, fds
}

// TestShim: a process gets its descriptors in one message and keeps its page until its
// connection or the server ends.
func TestShim(t *testing.T) {
	h := &host{fakeNode: newFake()}
	socket, stop := start(t, h)
	const abi = "Giveway-Abi: 1\r\n"
	c, status, fds := visit(t, "unix", socket, abi)
	if status != http.StatusSwitchingProtocols || len(fds) != 3 {
		t.Fatalf("answered %d with %d descriptors", status, len(fds))
	}
	for _, headers := range []string{"", "Giveway-Abi: 2\r\n", "Giveway-Abi: " + strings.Repeat("1", 5000) + "\r\n"} {
		if _, status, fds := visit(t, "unix", socket, headers); status != http.StatusConflict || fds != nil {
			t.Errorf("%.20q: got answered %d with %v", headers, status, fds)
		}
	}
	if h.left.Load() != 0 {
		t.Error("leave was called while the connection was open")
	}
	c.Close()
	eventually(t, "leave is called", func() bool { return h.left.Load() == 1 })
	visit(t, "unix", socket, abi)
	stop()
	if h.here.Load() != 2 || h.left.Load() != 2 {
		t.Errorf("%d processes were admitted, and leave was called %d times", h.here.Load(), h.left.Load())
	}
}

// TestShimRefused: a refusal of the page host is answered, and TCP is always refused.
func TestShimRefused(t *testing.T) {
	h := &host{fakeNode: newFake(), refuse: server.Conflict("it is full")}
	socket, _ := start(t, h)
	if _, status, _ := visit(t, "unix", socket, "Giveway-Abi: 1\r\n"); status != http.StatusConflict {
		t.Errorf("answered %d", status)
	}
	h = &host{fakeNode: newFake(), refuse: errors.New("it was asked")}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newServer(h, server.Config{TCP: "127.0.0.1:0", TokenFile: token})
	serve(t, s)
	headers := "Giveway-Abi: 1\r\nAuthorization: Bearer 0123456789abcdef\r\n"
	if _, status, _ := visit(t, "tcp", s.Addrs()[0].String(), headers); status != http.StatusConflict {
		t.Errorf("over TCP: got answered %d", status)
	}
}
