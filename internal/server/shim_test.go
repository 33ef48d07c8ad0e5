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
	"github.com/giveway/giveway/internal/shim/pageabi"
	"github.com/giveway/giveway/internal/shim/pagetest"
	"github.com/giveway/giveway/internal/shim/shimpage"
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
	for _, headers := range []string{"", fmt.Sprintf("Giveway-Abi: %d\r\n", pageabi.Version+1), "Giveway-Abi: " + strings.Repeat("1", 5000) + "\r\n"} {
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

// versionHost hands out real pages.
type versionHost struct {
	*fakeNode
	pages chan uint32 // the version of each
}

func (h *versionHost) Admit(v server.ShimProcess) (fds [3]int, leave func(), err error) {
	h.pages <- v.PageVersion
	page, err := shimpage.NewPageOf(v.PageVersion)
	if err != nil {
		return fds, nil, err
	}
	status, err := shimpage.NewStatusPage()
	if err != nil {
		return fds, nil, err
	}
	fds[0], fds[2], err = page.Descriptors()
	if err == nil {
		fds[1], err = status.Descriptor()
	}
	return fds, func() { page.Close(); status.Close() }, err
}

// TestReleasedShim: a shim of the release with version 1 gets a page that it accepts, from
// daemons of its version, of this one and of the next.
func TestReleasedShim(t *testing.T) {
	for _, highest := range []uint32{1, pageabi.Version, pageabi.Version + 1} {
		h := &versionHost{newFake(), make(chan uint32, 1)}
		socket := filepath.Join(t.TempDir(), "run", "giveway.sock")
		s := server.New(h, server.Config{Socket: socket, Pages: h})
		s.SetPageVersions(pageabi.Versions{Lowest: 1, Highest: highest})
		serve(t, s)
		answer, p := hello(t, socket, pagetest.ReleasedHello)
		if !strings.Contains(answer, "\r\nUpgrade: giveway-shim/1\r\n") || p == nil || !pagetest.ReleasedAccepts(answer, p) {
			t.Errorf("a released shim does not accept %q", answer)
		}
	}
}

// TestPageVersion: the server chooses the highest version of the page that it and the shim
// understand, and refuses if there is none.
func TestPageVersion(t *testing.T) {
	for _, c := range []struct {
		server       pageabi.Versions
		lowest, most string
		want         uint32
	}{
		{pageabi.Versions{Lowest: 1, Highest: 1}, "1", "1", 1},
		{pageabi.Versions{Lowest: 1, Highest: 1}, "1", "7", 1},
		{pageabi.Versions{Lowest: 1, Highest: 3}, "1", "2", 2},
		{pageabi.Versions{Lowest: 2, Highest: 3}, "1", "2", 2},
		{pageabi.Versions{Lowest: 2, Highest: 3}, "1", "1", 0},
		{pageabi.Versions{Lowest: 1, Highest: 1}, "2", "3", 0},
		{pageabi.Versions{Lowest: 1, Highest: 2}, "1", "-1", 0},
		{pageabi.Versions{Lowest: 1, Highest: 2}, "1", "99999999999", 0},
		{pageabi.Versions{Lowest: 1, Highest: 2}, "", "2", 0},
		{pageabi.Versions{Lowest: 1, Highest: 2}, "0", "2", 2},
	} {
		h := &versionHost{newFake(), make(chan uint32, 1)}
		socket := filepath.Join(t.TempDir(), "run", "giveway.sock")
		s := server.New(h, server.Config{Socket: socket, Pages: h})
		s.SetPageVersions(c.server)
		serve(t, s)
		answer, _ := hello(t, socket, "POST /v1/shim HTTP/1.1\r\nHost: giveway\r\nContent-Length: 0\r\n"+
			"Giveway-Abi: "+c.lowest+"\r\nGiveway-Abi-Max: "+c.most+"\r\n\r\n")
		if c.want == 0 {
			if !strings.HasPrefix(answer, "HTTP/1.1 409") || len(h.pages) != 0 {
				t.Errorf("%+v: got %q, want a refusal", c, answer)
			}
			continue
		}
		if want := fmt.Sprintf("Upgrade: giveway-shim/%d\r\n", c.want); !strings.Contains(answer, want) || <-h.pages != c.want {
			t.Errorf("%+v: got %q, want %q in it", c, answer, want)
		}
	}
}

// hello sends a request and returns the answer with the process's side of the page, if there is
// one.
func hello(t *testing.T, socket, request string) (string, *pagetest.Process) {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write([]byte(request)); err != nil {
		t.Fatal(err)
	}
	text, rights := make([]byte, 4096), make([]byte, syscall.CmsgSpace(16*4))
	n, m, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(text, rights)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := syscall.ParseSocketControlMessage(rights[:m])
	if err != nil || len(messages) != 1 {
		return string(text[:n]), nil
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 3 {
		t.Fatalf("got %d descriptors, %v", len(fds), err)
	}
	p, err := pagetest.NewProcess(fds[0], fds[1], fds[2])
	if err != nil {
		return string(text[:n]), nil // of a version that is not known here
	}
	t.Cleanup(func() { _ = p.Close() })
	return string(text[:n]), p
}
