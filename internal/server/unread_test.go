package server_test

import (
	"bufio"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
)

// largeNode is a node whose list of processes has about 1 MB.
type largeNode struct{ *fakeNode }

func (largeNode) Processes() []api.Process {
	return []api.Process{{PID: 4711, UID: stranger, Command: strings.Repeat("x", 1<<20)}}
}

// TestUnreadRepliesAreLimited: a user asks for large replies on many connections and reads none. It gets
// a limited number of them. What it reads, and what is closed, does not count any more.
func TestUnreadRepliesAreLimited(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	for _, split := range []bool{false, true} {
		if split {
			withFrontEnds(t)
		}
		socket, stop := start(t, largeNode{newFake()})
		makeReachable(t, filepath.Dir(socket))
		var conns []net.Conn
		ask := func() (c net.Conn, status int, in *bufio.Reader) {
			t.Helper()
			asUser(t, stranger, func() { c, _ = net.Dial("unix", socket) })
			if c == nil {
				t.Fatal("cannot connect")
			}
			conns = append(conns, c)
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			_, _ = c.Write([]byte("GET /v1/processes HTTP/1.1\r\nHost: giveway\r\n\r\n"))
			in = bufio.NewReaderSize(c, 16)
			line, err := in.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case strings.Contains(line, " 200 "):
				status = http.StatusOK
			case strings.Contains(line, " 429 "):
				status = http.StatusTooManyRequests
			default:
				t.Fatalf("got %q", line)
			}
			return c, status, in
		}
		given := 0
		for range 40 {
			if _, status, _ := ask(); status == http.StatusOK {
				given++
			}
		}
		if given < 8 || given > 16 {
			t.Errorf("front ends %v: got %d replies of 1 MB without reading them, want 8 to 16", split, given)
		}
		for _, c := range conns {
			c.Close()
		}
		for range 40 { // each is read
			eventually(t, "a reply", func() bool {
				c, status, in := ask()
				defer c.Close()
				if status != http.StatusOK {
					return false
				}
				_, err := in.Discard(1 << 20)
				return err == nil
			})
		}
		stop()
	}
}
