package server

import (
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// arrivals are connections that were accepted, and whose callers are not identified yet. The
// kernel has one queue for all callers of a socket, so a process that connects without end
// would keep every other waiting behind thousands of its connections, each of which takes long
// to identify and to refuse. So connections are accepted at once and wait here. Accounts have their
// turns one after the other, and so have the processes of each. A process that was refused is
// refused for a moment without being identified again.
type arrivals struct {
	most    int // connections that wait, in all; of one process half as many
	account func(uid uint32) uint32

	mu      sync.Mutex
	of      map[sender]*arrival
	users   []*userArrivals // with connections that wait, the next one first
	waiting int
	failed  error         // of accepting, and not reported yet
	ended   bool          // nothing more arrives
	changed chan struct{} // something waits, or failed, or ended
}

// sender is the process that connected, as the kernel has it, and the account of its user.
type sender struct {
	pid     int // zero: unknown
	account uint32
}

// userArrivals are the connections of an account's processes that wait.
type userArrivals struct {
	account uint32
	order   []sender // the processes, the next one first
	waiting int
}

// arrival is the connections of a process.
type arrival struct {
	conns []int     // descriptors
	until time.Time // before this time further ones are refused
}

const (
	refusalTime = 10 * time.Millisecond
	maxRefused  = 1024 // processes that are remembered because they were refused
)

// newArrivals returns arrivals without connections; account returns the user that a uid counts for.
func newArrivals(most int, account func(uid uint32) uint32) *arrivals {
	return &arrivals{most: max(2, most), account: account, of: map[sender]*arrival{}, changed: make(chan struct{}, 1)}
}

// accept accepts connections of a socket until that is closed. If there are no descriptors
// left it tries again after a while.
func (a *arrivals) accept(socket *os.File) {
	defer a.end()
	raw, err := socket.SyscallConn()
	for err == nil {
		conn, failed := -1, error(nil)
		err = raw.Read(func(fd uintptr) bool {
			conn, _, failed = unix.Accept4(int(fd), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			return failed != unix.EAGAIN
		})
		switch {
		case err != nil || failed == unix.EINTR || failed == unix.ECONNABORTED:
		case failed != nil:
			a.fail(os.NewSyscallError("accept", failed))
			time.Sleep(20 * time.Millisecond)
		default:
			a.put(a.senderOf(conn), conn, time.Now())
		}
	}
}

func (a *arrivals) senderOf(conn int) sender {
	peer, err := unix.GetsockoptUcred(conn, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return sender{account: noUser}
	}
	return sender{int(peer.Pid), a.account(peer.Uid)}
}

// user returns the account of a process, which has connections that wait or will have. a.mu is held.
func (a *arrivals) user(of sender) *userArrivals {
	for _, u := range a.users {
		if u.account == of.account {
			return u
		}
	}
	u := &userArrivals{account: of.account}
	a.users = append(a.users, u)
	return u
}

// put lets a connection of a process wait, or closes it. If too many wait, one of the account that
// has most is closed: the last one of its process that has most, or of its last such process.
func (a *arrivals) put(from sender, conn int, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.of[from]
	if p == nil {
		p = &arrival{}
		a.of[from] = p
	}
	if a.ended || now.Before(p.until) || len(p.conns) >= max(1, a.most/2) {
		_ = unix.Close(conn)
		return
	}
	u := a.user(from)
	if p.conns = append(p.conns, conn); len(p.conns) == 1 {
		u.order = append(u.order, from)
	}
	u.waiting++
	if a.waiting++; a.waiting > a.most {
		most := slices.MaxFunc(a.users, func(x, y *userArrivals) int { return x.waiting - y.waiting })
		longest := most.order[len(most.order)-1]
		for _, s := range slices.Backward(most.order) {
			if len(a.of[s].conns) > len(a.of[longest].conns) {
				longest = s
			}
		}
		a.drop(longest, len(a.of[longest].conns)-1)
	}
	a.change()
}

// drop closes the connections of a process from the n-th on. a.mu is held.
func (a *arrivals) drop(from sender, n int) {
	p := a.of[from]
	for _, conn := range p.conns[n:] {
		_ = unix.Close(conn)
	}
	a.leave(from, len(p.conns)-n)
	if p.conns = p.conns[:n]; n == 0 {
		a.forget(from)
	}
}

// leave counts n connections of a process as no longer waiting. If it has no others, its account
// and it have no turn any more. a.mu is held, and the connections are still listed.
func (a *arrivals) leave(from sender, n int) {
	if n == 0 {
		return
	}
	u := a.user(from)
	u.waiting, a.waiting = u.waiting-n, a.waiting-n
	if len(a.of[from].conns) == n {
		u.order = slices.DeleteFunc(u.order, func(s sender) bool { return s == from })
	}
	if u.waiting == 0 {
		a.users = slices.DeleteFunc(a.users, func(o *userArrivals) bool { return o == u })
	}
}

// forget drops a process without connections, unless it was refused just now. a.mu is held.
func (a *arrivals) forget(from sender) {
	if p := a.of[from]; p != nil && len(p.conns) == 0 && time.Now().After(p.until) {
		delete(a.of, from)
	}
}

// next waits for a connection and returns it: the oldest of the process whose turn it is, of the
// account whose turn it is.
func (a *arrivals) next() (from sender, c net.Conn, err error) {
	for {
		from, conn, err := a.take()
		if err != nil {
			return from, nil, err
		}
		if conn >= 0 {
			f := os.NewFile(uintptr(conn), "connection")
			defer f.Close()
			c, err := net.FileConn(f)
			return from, c, err
		}
		<-a.changed
	}
}

// take returns a connection that waits, or why none can be accepted, or -1.
func (a *arrivals) take() (from sender, conn int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case len(a.users) > 0:
		u := a.users[0]
		a.users = append(slices.Delete(a.users, 0, 1), u)
		from = u.order[0]
		u.order = append(slices.Delete(u.order, 0, 1), from)
		p := a.of[from]
		conn = p.conns[0]
		a.leave(from, 1)
		p.conns = slices.Delete(p.conns, 0, 1)
		a.forget(from)
		return from, conn, nil
	case a.failed != nil:
		err, a.failed = a.failed, nil
	case a.ended:
		err = net.ErrClosed
		a.change() // for the next call
	}
	return from, -1, err
}

// refuse closes all connections of a process that wait or come in the next moment.
func (a *arrivals) refuse(from sender, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.of) > maxRefused {
		for other := range a.of {
			a.forget(other)
		}
	}
	if a.of[from] == nil {
		a.of[from] = &arrival{}
	}
	a.of[from].until = now.Add(refusalTime)
	a.drop(from, 0)
}

// fail reports an error of accepting.
func (a *arrivals) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = err
	a.change()
}

// end closes all connections that wait.
func (a *arrivals) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	for len(a.users) > 0 {
		a.drop(a.users[0].order[0], 0)
	}
	a.change()
}

func (a *arrivals) change() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}
