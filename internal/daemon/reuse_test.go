package daemon

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/proc"
	"github.com/giveway/giveway/internal/shim/shimpage"
	"github.com/giveway/giveway/sched"
)

// connectAndExit connects to a socket, passes the connection on through descriptor 3 and exits.
func connectAndExit(socket string) {
	c, err := net.Dial("unix", socket)
	if err == nil {
		f, _ := c.(*net.UnixConn).File()
		err = unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(f.Fd())), nil, 0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// leftConnection returns a connection to a socket, and the pid of the process that made it and has
// exited.
func leftConnection(t *testing.T, socket string) (c net.Conn, pid int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	theirs := os.NewFile(uintptr(pair[1]), "theirs")
	defer theirs.Close()
	cmd := exec.Command(os.Args[0], socket)
	cmd.Env, cmd.ExtraFiles, cmd.Stderr = append(os.Environ(), "DAEMON_TEST=caller"), []*os.File{theirs}, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	data, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[0], data, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		t.Fatalf("got %d messages, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "connection")
	defer f.Close()
	if c, err = net.FileConn(f); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, cmd.Process.Pid
}

// startShimAs starts a process with a shim that has a certain pid.
func startShimAs(t *testing.T, pid int, socket string) *shimProcess {
	t.Helper()
	for range 50 { // another process may take the pid
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil {
			t.Skipf("pids cannot be chosen: %v", err)
		}
		p := startShim(t, socket, "opencl")
		if p.Process.Pid == pid {
			return p
		}
		_ = p.Process.Kill()
	}
	t.Skipf("pid %d was not free", pid)
	return nil
}

// TestPageOfExitedCaller: a process has connected, left its connection to another one and exited. A
// request for a page on that connection is refused, and does not take the page of the process that
// has the same pid now. Since Linux 6.16 the kernel returns a pidfd of a process that has exited.
func TestPageOfExitedCaller(t *testing.T) {
	d := newShimDaemon()
	socket, _ := serve(t, d)
	c, pid := leftConnection(t, socket)
	p := startShimAs(t, pid, socket)
	fmt.Fprint(c, "POST /v1/shim HTTP/1.1\r\nHost: giveway\r\nContent-Length: 0\r\nGiveway-Abi: 1\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusNotFound {
		t.Errorf("a process that has exited asked for a page: got status %d, want %d", res.StatusCode, http.StatusNotFound)
	}
	p.send("hint %d %d", shimpage.HintClass, sched.Batch)
	eventually(t, "the page of the living process is read", func() bool { return p.described(d).Attrs.Class() == sched.Batch })
}

// TestEarlierProcessIsNotAdded: what a backend reports late of a process that has exited does not
// displace the process that has its pid now.
func TestEarlierProcessIsNotAdded(t *testing.T) {
	d, s := newTestDaemon(), newSlowProc()
	d.procs = s
	now := s.add(proc.Process{PID: 10_000, Start: 2, Parent: 1})
	known := d.lockProcess(now)
	d.mu.Unlock()
	earlier := d.lockProcess(proc.Process{PID: 10_000, Start: 1, Parent: 1})
	d.mu.Unlock()
	if earlier == known || d.processByID(now.ID()) != known {
		t.Error("a process that has exited displaced the one that has its pid now")
	}
	later := d.lockProcess(proc.Process{PID: 10_000, Start: 3, Parent: 1})
	d.mu.Unlock()
	if d.processByID(proc.ID{PID: 10_000, Start: 3}) != later {
		t.Error("a later process with the same pid was not added")
	}
}
