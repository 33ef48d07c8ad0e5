package server_test

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/attr"
	"github.com/giveway/giveway/client"
	"github.com/giveway/giveway/internal/sandbox"
	"github.com/giveway/giveway/internal/server"
)

// runFrontEnd is the front end that the servers of these tests start.
func runFrontEnd() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	err := sandbox.FrontEnd()
	if err == nil {
		err = server.RunFrontEnd(log)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "front end:", err)
		os.Exit(1)
	}
}

// withFrontEnds makes the servers of a test parse requests in processes of their own.
func withFrontEnds(t *testing.T) {
	t.Helper()
	frontEnds = []string{"/proc/self/exe"}
	t.Cleanup(func() { frontEnds = nil })
}

// TestFrontEnds repeats tests of the server with front ends in processes of their own.
func TestFrontEnds(t *testing.T) {
	withFrontEnds(t)
	for name, test := range map[string]func(*testing.T){
		"Calls": TestCalls, "Errors": TestErrors, "OtherUser": TestOtherUser, "Run": TestRun,
		"RunEndsWithItsConnection": TestRunEndsWithItsConnection, "SocketInUse": TestSocketInUse, "TCP": TestTCP,
		"Shim": TestShim, "ShimRefused": TestShimRefused, "RootWithoutRights": TestRootWithoutRights, "TCPWithoutToken": TestTCPWithoutToken,
		"RecordSnapshot": TestRecordSnapshot, "RecordStream": TestRecordStream, "StreamResumes": TestStreamResumesByEventID,
		"StreamsAreBounded": TestStreamsAreBounded, "PressureAsText": TestPressureAsText, "StreamOverTCP": TestStreamOverTCP,
	} {
		t.Run(name, test)
	}
}

// children lists the pids of this process's children.
func children(t *testing.T) (pids []int) {
	t.Helper()
	threads, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil || len(threads) == 0 {
		t.Fatalf("list children: %v", err)
	}
	for _, name := range threads {
		text, _ := os.ReadFile(name) // a thread may have ended
		for _, word := range strings.Fields(string(text)) {
			pid, _ := strconv.Atoi(word)
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// TestFrontEndsAreReplaced: when the front ends are killed, others take their place, and a
// run that was begun through one of them goes on until its caller ends it.
func TestFrontEndsAreReplaced(t *testing.T) {
	withFrontEnds(t)
	before := children(t)
	n := newFake()
	socket, stop := start(t, n)
	c := client.New(socket)
	run, err := c.Run(t.Context(), api.Run{Values: attr.Must("class=batch")})
	if err != nil {
		t.Fatal(err)
	}
	var fronts []int // the kernel's list may lack one for a moment, if the thread that started it ends
	eventually(t, "a front end for callers that may do everything and one for others", func() bool {
		fronts = slices.DeleteFunc(children(t), func(pid int) bool { return slices.Contains(before, pid) })
		return len(fronts) == 2
	})
	for _, pid := range fronts {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a new front end answers", func() bool {
		c := client.New(socket)
		defer c.Close()
		_, err := c.Status(t.Context())
		return err == nil
	})
	if n.run(os.Getpid()) == "" {
		t.Error("the run ended with the front end")
	}
	run.Close()
	eventually(t, "the end of the run", func() bool { return n.run(os.Getpid()) == "" })
	stop()
	eventually(t, "the front ends have ended", func() bool { return slices.Equal(children(t), before) })
}

// TestFrontEndThatHangs: a front end that does not answer is replaced.
func TestFrontEndThatHangs(t *testing.T) {
	withFrontEnds(t)
	before := children(t)
	socket := filepath.Join(t.TempDir(), "sock")
	s := newServer(newFake(), server.Config{Socket: socket})
	s.SetSilence(2 * time.Second)
	serve(t, s)
	var fronts []int
	eventually(t, "the front ends are started", func() bool {
		fronts = slices.DeleteFunc(children(t), func(pid int) bool { return slices.Contains(before, pid) })
		// Until it runs its own program a child has one thread, and this process waits for it.
		return len(fronts) == 2 && threads(fronts[0]) > 1 && threads(fronts[1]) > 1
	})
	for _, pid := range fronts {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the stopped ones are gone", func() bool {
		now := children(t)
		return !slices.Contains(now, fronts[0]) && !slices.Contains(now, fronts[1])
	})
	eventually(t, "another one answers", func() bool {
		c := client.New(socket)
		defer c.Close()
		_, err := c.Status(t.Context())
		return err == nil
	})
}

// TestFrontEndHasNoRights: a front end is of another user, without capabilities, and has
// no descriptors but its sockets.
func TestFrontEndHasNoRights(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: other users have no rights to drop, and may not look into the front end")
	}
	withFrontEnds(t)
	before := children(t)
	secret, err := os.Open("/etc/passwd") // a descriptor of the daemon
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	socket, _ := start(t, newFake())
	if _, err := client.New(socket).Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, pid := range children(t) {
		if slices.Contains(before, pid) {
			continue
		}
		status := func() string {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			return string(text)
		}
		eventually(t, "the front end is confined", func() bool { return strings.Contains(status(), "Seccomp:\t2\n") })
		for _, line := range []string{
			"Uid:\t65534\t65534\t65534\t65534\n", "Gid:\t65534\t65534\t65534\t65534\n", "Groups:\t \n",
			"CapInh:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapAmb:\t0000000000000000\n", "NoNewPrivs:\t1\n",
		} {
			if !strings.Contains(status(), line) {
				t.Errorf("front end: there is no line %q in\n%s", line, status())
			}
		}
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name())) // it may be closed by now
			own := func(prefix string) bool { return strings.HasPrefix(target, prefix) }
			if n, _ := strconv.Atoi(fd.Name()); n > 2 && !own("socket:") && !own("anon_inode:[event") && !own("/sys/fs/cgroup/") { // the last are of Go's runtime
				t.Errorf("the front end has descriptor %s: %s", fd.Name(), target)
			}
		}
	}
}

// TestConnectionsCostTokens: a user that connects without end, with requests that are
// never valid, is slowed down and refused. Root is answered meanwhile.
func TestConnectionsCostTokens(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	withFrontEnds(t)
	socket, _ := start(t, newFake())
	makeReachable(t, filepath.Dir(socket))
	answered := 0
	began := time.Now()
	asUser(t, 1000, func() {
		for range 2500 {
			c, err := net.DialTimeout("unix", socket, time.Second)
			if err != nil {
				continue
			}
			fmt.Fprint(c, "GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
			text := make([]byte, 12)
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			if n, _ := io.ReadFull(c, text); string(text[:n]) == "HTTP/1.1 404" {
				answered++
				if _, err := io.Copy(io.Discard, c); err != nil {
					t.Errorf("the connection is not closed after a request without a path: %v", err)
					break
				}
			}
			c.Close()
			if answered%500 == 499 {
				if _, err := client.New(socket).Status(t.Context()); err != nil {
					t.Errorf("root: %v", err)
				}
			}
		}
	})
	// The bucket holds 1000 connections, and 500 more a second.
	if most := 1000 + 500*time.Since(began).Seconds() + 100; float64(answered) > most {
		t.Errorf("%d requests were answered in %v, want at most %.0f", answered, time.Since(began), most)
	}
}

// threads returns the number of threads of a process.
func threads(pid int) int {
	all, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return len(all)
}
