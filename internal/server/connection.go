package server

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/quota"
)

// connection is a connection of a caller, as the daemon has it.
type connection struct {
	net.Conn
	peer
	tcp *tcpConnections // nil: it is not over TCP
	// delay is how long the connection waits for its first request to be read, because its
	// account has used up its tokens. Only a front end process applies it.
	delay time.Duration

	closed sync.Once
	mu     sync.Mutex
	uses   int    // by the front end, and by a run or page; it stays zero once it is
	leave  func() // called once, when uses becomes zero; nil: nothing
	unread func() // called once, when the last reply is read; nil: nothing
	gone   bool   // the front end has closed it
}

// Close ends the front end's use of the connection.
func (c *connection) Close() error {
	err := c.Conn.Close()
	c.closed.Do(func() {
		c.mu.Lock()
		c.gone = true
		c.mu.Unlock()
		c.replyRead()
		c.release()
	})
	return err
}

func (c *connection) release() {
	c.mu.Lock()
	c.uses--
	last := c.uses == 0
	c.mu.Unlock()
	if last && c.leave != nil {
		c.leave()
	}
}

// socket is a connection with a descriptor: a net.UnixConn or net.TCPConn.
type socket interface {
	net.Conn
	syscall.Conn
}

// hold returns a copy of the connection that stays open when the front end closes its own.
// The connection counts until release is called.
func (c *connection) hold() (socket, error) {
	u, ok := c.Conn.(socket)
	if !ok {
		return nil, errNoPeer
	}
	c.mu.Lock()
	open := c.uses > 0
	if open {
		c.uses++ // before copying, so that leave is not called in between
	}
	c.mu.Unlock()
	if !open {
		return nil, net.ErrClosed
	}
	own, err := copyConn(u)
	if err != nil {
		c.release()
	}
	return own, err
}

// copyConn returns another descriptor of the same connection.
func copyConn(c syscall.Conn) (socket, error) {
	copied := -1
	err := control(c, func(fd int) (err error) {
		copied, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(copied), "connection")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	own, ok := conn.(socket)
	if !ok {
		conn.Close()
		return nil, errNoPeer
	}
	return own, nil
}

// shutDown ends the connection for all descriptors of it, also the front end's.
func (c *connection) shutDown() {
	if s, ok := c.Conn.(interface { // a net.TCPConn or net.UnixConn
		CloseRead() error
		CloseWrite() error
	}); ok {
		_, _ = s.CloseRead(), s.CloseWrite() // it may be over already
	}
	c.Close()
}

// Limits on open connections, most of which are runs and pages: of one account, and of
// all accounts but root's. Callers that may do everything have no limit.
const (
	maxOfAccount = 512
	maxOfUsers   = 4096
	// descriptorsEach is how many descriptors of the daemon a connection may take: the
	// connection itself, and the page, its doorbell and the process for a page.
	descriptorsEach = 4
)

// admission counts open connections on the unix socket.
type admission struct {
	quota quota.Quota // of all accounts but root's

	mu    sync.Mutex
	open  map[uint32]int // by account
	users int            // open connections of all that do not manage the daemon
}

// newAdmission returns an admission that leaves half of the daemon's descriptors to
// devices and to callers that may do everything.
func newAdmission() *admission {
	most := maxOfUsers
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		most = int(min(maxOfUsers, limit.Cur/2/descriptorsEach))
	}
	return &admission{quota: quota.Quota{All: most, Each: maxOfAccount}, open: map[uint32]int{}}
}

// enter counts a connection, or reports that the account or all of them have too many.
func (a *admission) enter(account uint32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.quota.Allows(a.open[account], a.users, 1) {
		return false
	}
	a.users++
	a.open[account]++
	return true
}

func (a *admission) leave(account uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.users--
	if a.open[account]--; a.open[account] == 0 {
		delete(a.open, account)
	}
}

// wantedFiles is the limit on open descriptors that the daemon asks for.
const wantedFiles = 65536

// RaiseFileLimit raises the process's limit on open descriptors as far as it may.
func RaiseFileLimit() {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur >= wantedFiles {
		return
	}
	hard := limit.Max
	if limit.Cur, limit.Max = wantedFiles, max(hard, wantedFiles); unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		return
	}
	limit.Cur, limit.Max = min(wantedFiles, hard), hard // without CAP_SYS_RESOURCE
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)      // the limits on connections follow the one in force
}

// localListener is the unix socket. It identifies callers and admits them.
type localListener struct {
	net.Listener
	socket   *os.File // the same socket: a net.Listener cannot be waited for without accepting
	s        *Server
	start    sync.Once
	arrivals *arrivals
}

func (s *Server) newLocalListener(l *net.UnixListener) (*localListener, error) {
	socket, err := l.File()
	return &localListener{Listener: l, socket: socket, s: s, arrivals: newArrivals(s.admission.quota.All/2, s.accounts.of)}, err
}

func (d *localListener) Accept() (net.Conn, error) {
	d.start.Do(func() { go d.arrivals.accept(d.socket) })
	for {
		from, c, err := d.arrivals.next()
		if err != nil {
			return nil, err
		}
		if conn := d.s.admitLocal(c); conn != nil {
			return conn, nil
		}
		c.Close()
		d.arrivals.refuse(from, time.Now())
	}
}

// Close implements net.Listener.
func (d *localListener) Close() error { return errors.Join(d.Listener.Close(), d.socket.Close()) }

// admitLocal identifies the process that connected and returns its connection, or nil if
// there are too many.
func (s *Server) admitLocal(c net.Conn) *connection {
	conn := &connection{Conn: c, uses: 1}
	p := &conn.peer
	*p = peerOf(c)
	p.account = s.accounts.of(p.uid)
	if u, ok := c.(*net.UnixConn); ok && (p.uid == 0 || p.uid == s.owner) {
		p.confined = s.rights.confinement(u, p.pid)
	}
	if s.manages(*p) {
		return conn
	}
	pod, registered := "", false
	if s.cfg.Registry != nil && p.err == nil {
		ok := false
		if p.containers, ok = s.containersOf(c, p.pid); !ok {
			return nil
		}
		if pod, registered = s.podOf(p.containers); registered {
			p.account = s.pods.enter(pod, time.Now())
		}
	}
	leavePod := func() {
		if registered {
			s.pods.leave(pod, time.Now())
		}
	}
	if !s.admission.enter(p.account) {
		s.audit(caller{peer: *p}, request{op: opConnect}, outcome{uid: noUser}, TooMany("user %d has too many connections", p.account))
		leavePod()
		return nil
	}
	conn.leave = func() {
		s.admission.leave(p.account)
		leavePod()
	}
	ok := false
	if conn.delay, ok = s.budgets.spend(p.account, connectCost, budgetRate*budgetWait.Seconds(), time.Now()); !ok {
		s.audit(caller{peer: *p}, request{op: opConnect}, outcome{uid: noUser}, TooMany("user %d connects too often", p.account))
		conn.leave()
		return nil
	}
	return conn
}
