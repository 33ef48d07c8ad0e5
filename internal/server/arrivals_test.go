package server

import (
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// arrive puts a connection of a process into arrivals and returns its other end. Processes have
// the same user up to number 100, and from there on a user each.
func arrive(t *testing.T, a *arrivals, pid int, now time.Time) (other int) {
	t.Helper()
	from := sender{pid: pid}
	if pid > 100 {
		from.account = uint32(pid)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	a.put(from, fds[0], now)
	return fds[1]
}

// eachItsOwn is for users without subordinate uids.
func eachItsOwn(uid uint32) uint32 { return uid }

// open counts the ends of connections whose other end is open.
func open(ends []int) (n int) {
	for _, fd := range ends {
		if _, err := unix.Read(fd, make([]byte, 1)); err == unix.EAGAIN {
			n++
		}
	}
	return n
}

func nextPID(t *testing.T, a *arrivals) int {
	t.Helper()
	from, c, err := a.next()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	return from.pid
}

// TestProcessesConnectInTurn: a process that has many connections waiting does not delay the
// connection of another.
func TestProcessesConnectInTurn(t *testing.T) {
	a, now := newArrivals(1000, eachItsOwn), time.Now()
	for range 100 {
		arrive(t, a, 1, now)
	}
	arrive(t, a, 2, now)
	arrive(t, a, 2, now)
	for i, want := range []int{1, 2, 1, 2, 1, 1} {
		if got := nextPID(t, a); got != want {
			t.Errorf("turn %d: got process %d, want %d", i, got, want)
		}
	}
	if a.waiting != 96 || len(a.of) != 1 {
		t.Errorf("%d connections of %d processes wait, want 96 of one", a.waiting, len(a.of))
	}
	a.end()
}

// TestUsersConnectInTurn: a user that has many processes does not delay the connection of another
// user, and if too many wait, the newest of its processes loses its connection.
func TestUsersConnectInTurn(t *testing.T) {
	a, now := newArrivals(20, eachItsOwn), time.Now()
	var many []int
	for pid := range 25 {
		many = append(many, arrive(t, a, 1+pid, now))
	}
	if open(many[:20]) != 20 || open(many) != 20 {
		t.Errorf("of 25 processes %d wait, of which %d came first; want 20", open(many), open(many[:20]))
	}
	others := []int{arrive(t, a, 101, now), arrive(t, a, 102, now)}
	if open(others) != 2 || open(many) != 18 {
		t.Errorf("%d connections of others and %d of the user wait, want 2 and 18", open(others), open(many))
	}
	for i, want := range []int{1, 101, 102, 2, 3, 4} {
		if got := nextPID(t, a); got != want {
			t.Errorf("turn %d: got process %d, want %d", i, got, want)
		}
	}
	a.end()
	if open(many) != 0 || a.waiting != 0 || len(a.users) != 0 {
		t.Errorf("after the end %d are open, %d wait, of %d users", open(many), a.waiting, len(a.users))
	}
}

// TestArrivalsAreBounded: if too many wait, those of the process with most are closed.
func TestArrivalsAreBounded(t *testing.T) {
	a, now := newArrivals(20, eachItsOwn), time.Now()
	var first, others []int
	for range 50 {
		first = append(first, arrive(t, a, 1, now))
	}
	if got := open(first); got != 10 || a.waiting != 10 {
		t.Errorf("one process: %d connections are open and %d wait, want 10", got, a.waiting)
	}
	for pid := range 15 {
		others = append(others, arrive(t, a, 10+pid, now))
	}
	if got := open(others); got != 15 || open(first) != 5 || a.waiting != 20 {
		t.Errorf("15 other processes: %d of theirs, %d of the first are open, %d wait; want 15, 5 and 20", got, open(first), a.waiting)
	}
	a.end()
	if got := open(others) + open(first); got != 0 || a.waiting != 0 {
		t.Errorf("after the end %d are open and %d wait", got, a.waiting)
	}
}

// TestRefusedProcess: of a process that was refused, the connections that wait are closed, and
// those that come in the next moment. Afterwards it is heard again.
func TestRefusedProcess(t *testing.T) {
	a, now := newArrivals(100, eachItsOwn), time.Now()
	ends := []int{arrive(t, a, 1, now), arrive(t, a, 1, now), arrive(t, a, 2, now)}
	a.refuse(sender{pid: 1}, now)
	ends = append(ends, arrive(t, a, 1, now.Add(refusalTime/2)))
	if got := open(ends); got != 1 || nextPID(t, a) != 2 {
		t.Errorf("%d connections are open, want that of the other process", got)
	}
	arrive(t, a, 1, now.Add(2*refusalTime))
	if got := nextPID(t, a); got != 1 {
		t.Errorf("got process %d, want 1 again", got)
	}
	for pid := range 3 * maxRefused {
		a.refuse(sender{pid: pid}, now.Add(-time.Second))
	}
	if len(a.of) > maxRefused+1 {
		t.Errorf("%d processes are remembered, want at most %d", len(a.of), maxRefused+1)
	}
}

// TestArrivalsEnd: an error of accepting is reported once, and the end every time.
func TestArrivalsEnd(t *testing.T) {
	a := newArrivals(10, eachItsOwn)
	a.fail(unix.EMFILE)
	if _, _, err := a.next(); !errors.Is(err, unix.EMFILE) {
		t.Errorf("got %v, want EMFILE", err)
	}
	a.end()
	for range 2 {
		if _, _, err := a.next(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want the end", err)
		}
	}
	if end := arrive(t, a, 1, time.Now()); open([]int{end}) != 0 {
		t.Error("a connection that came after the end is open")
	}
}

// TestSubordinateUidsConnectInTurn: connections of 100 subordinate uids of one user delay that of
// another user by one turn.
func TestSubordinateUidsConnectInTurn(t *testing.T) {
	dir := t.TempDir()
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	file, err := socket.File()
	if err != nil {
		t.Fatal(err)
	}
	uid := uint32(0) // of the next connection: the kernel's is always ours
	a := newArrivals(1000, func(uint32) uint32 {
		if uid++; uid <= 100 {
			return 1000
		}
		return uid
	})
	ended := make(chan struct{})
	go func() { a.accept(file); close(ended) }()
	for range 101 {
		c, err := net.Dial("unix", filepath.Join(dir, "s"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for waiting := 0; waiting < 101; time.Sleep(time.Millisecond) {
		a.mu.Lock()
		waiting = a.waiting
		a.mu.Unlock()
	}
	for i, want := range []uint32{1000, 101, 1000} {
		from, c, err := a.next()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if from.account != want {
			t.Errorf("turn %d: got account %d, want %d", i, from.account, want)
		}
	}
	file.Close()
	<-ended
}
