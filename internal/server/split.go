package server

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/giveway/giveway/internal/proc"
	"golang.org/x/sys/unix"
)

// frontEndProcess is a front end in a process of its own, with the connections that it serves. A
// front end that dies is started again; its connections are lost, but not the runs and
// pages that were begun on them.
type frontEndProcess struct {
	s     *Server
	name  string
	queue chan *connection // to be passed on

	// unanswered is how many pings were sent since the front end last sent a message. Time is not
	// measured: the clock may be set, and the daemon itself may have been stopped.
	unanswered atomic.Int32

	mu    sync.Mutex
	last  uint64
	conns map[uint64]*servedConn
}

// pingID is the number of no connection: see wire.go.
const pingID = 0

// servedConn is a connection of a front end process.
type servedConn struct {
	*connection
	busy bool // a request of it is being answered
}

// Bounds of a front end process.
const (
	queueLength = 1024
	passTime    = 5 * time.Second  // for a front end to take a message
	silenceTime = 10 * time.Second // a front end that has answered no ping for so long is killed
	pingsEach   = 5                // pings in that time
	minRestart  = 100 * time.Millisecond
	maxRestart  = 5 * time.Second
)

// frontEnds returns the front ends: of callers that may do everything, of other users, of
// agents, and of TCP. A front end that a caller has taken over can act as the callers that are
// connected to it, so that these do not share one.
func (s *Server) frontEnds() (managers, users, agents, remote *frontEndProcess) {
	frontEnd := func(name string) *frontEndProcess {
		return &frontEndProcess{s: s, name: name, queue: make(chan *connection, queueLength), conns: map[uint64]*servedConn{}}
	}
	if s.cfg.TCP != "" {
		remote = frontEnd("tcp")
	}
	if s.cfg.Agent != "" {
		agents = frontEnd("agents")
	}
	return frontEnd("managers"), frontEnd("users"), agents, remote
}

// serveSplit serves with front ends in processes of their own until ctx is done.
func (s *Server) serveSplit(ctx context.Context) error {
	managers, users, agents, remote := s.frontEnds()
	running, stop := context.WithCancel(ctx)
	defer stop()
	var ended sync.WaitGroup
	for _, b := range []*frontEndProcess{managers, users, agents, remote} {
		if b != nil {
			ended.Go(func() { b.run(running) })
		}
	}
	failed := make(chan error, len(s.listeners))
	for _, listener := range s.listeners {
		go func() {
			failed <- s.acceptAll(listener, func(c *connection) {
				b := users
				switch {
				case !c.local:
					b = remote
				case c.agent:
					b = agents
				case s.manages(c.peer):
					b = managers
				}
				b.offer(c)
			})
		}()
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	}
	for _, listener := range s.listeners {
		listener.Close()
	}
	stop()
	s.endRuns()
	ended.Wait()
	return err
}

// acceptAll passes on every connection of a listener until that is closed. Accepting fails for
// a while when there are no descriptors left; the first failure of such a while is logged.
func (s *Server) acceptAll(listener net.Listener, take func(*connection)) error {
	failing := false
	for {
		c, err := listener.Accept()
		switch {
		case err == nil:
			failing = false
			take(c.(*connection))
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			if !failing {
				s.log.Error("no connection can be accepted; trying again", "error", err)
			}
			failing = true
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// offer takes a connection after its delay, or closes it if too many wait.
func (b *frontEndProcess) offer(c *connection) {
	if c.delay > 0 {
		time.AfterFunc(c.delay, func() { c.delay = 0; b.offer(c) })
		return
	}
	select {
	case b.queue <- c:
	default:
		c.Close()
	}
}

// run keeps a front end running until ctx is done.
func (b *frontEndProcess) run(ctx context.Context) {
	pause := minRestart
	for {
		began := time.Now()
		err := b.runChild(ctx)
		b.dropAll()
		if ctx.Err() != nil {
			return
		}
		b.s.log.Warn("front end ended and is started again; its connections are lost", "front_end", b.name, "error", err)
		if time.Since(began) > maxRestart {
			pause = minRestart
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, maxRestart)
	}
}

// dropAll closes all connections.
func (b *frontEndProcess) dropAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		c.Close()
	}
	clear(b.conns)
}

// runChild starts a front end and serves it until it ends or ctx is done.
func (b *frontEndProcess) runChild(ctx context.Context) error {
	child, err := startChild(b.s.cfg.FrontEnd)
	if err != nil {
		return err
	}
	defer child.end()
	b.unanswered.Store(0)
	gone := make(chan error, 1)
	go func() { gone <- b.readRequests(child) }()
	ping := time.NewTicker(b.s.silence / pingsEach)
	defer ping.Stop()
	for {
		select {
		case <-ping.C:
			if b.unanswered.Add(1) > pingsEach {
				return fmt.Errorf("it has answered no ping for %v", b.s.silence)
			}
			go child.send(pingID, reply{})
		case c := <-b.queue:
			if err := b.pass(child, c); err != nil {
				return err
			}
		case err := <-gone:
			return err
		case <-ctx.Done():
			child.conns.Close() // it answers what is under way, and ends
			select {
			case <-gone:
			case <-time.After(shutdownTime):
			}
			return nil
		}
	}
}

// pass passes a connection on to the front end.
func (b *frontEndProcess) pass(child *child, c *connection) error {
	conn, ok := c.Conn.(syscall.Conn)
	if !ok {
		c.Close()
		return nil
	}
	b.mu.Lock()
	b.last++
	id := b.last
	b.conns[id] = &servedConn{connection: c}
	b.mu.Unlock()
	number := binary.LittleEndian.AppendUint64(nil, id)
	_ = child.conns.SetWriteDeadline(time.Now().Add(child.patience)) // a unix socket has deadlines
	err := control(conn, func(fd int) error {
		_, _, err := child.conns.WriteMsgUnix(number, unix.UnixRights(fd), nil)
		return err
	})
	if errors.Is(err, net.ErrClosed) {
		// The connection was evicted, or the listener is closed, as readRequests reports. The
		// front end has not got the connection, so it will not report its end.
		b.closed(id)
		return nil
	}
	if err != nil {
		return fmt.Errorf("pass a connection on: %w", err)
	}
	return nil
}

// readRequests answers the requests of a front end until it is gone or sends what is not
// a request.
func (b *frontEndProcess) readRequests(child *child) error {
	in := bufio.NewReader(child.wire)
	for {
		message, err := readMessage(in, maxMessage)
		if err != nil {
			return err
		}
		b.unanswered.Store(0)
		id, r, err := parseRequest(message)
		if err != nil {
			return err
		}
		if r.op == opClosed {
			b.closed(id)
			continue
		}
		if r.op == opWritten {
			b.written(id)
			continue
		}
		c, err := b.begin(id)
		if err != nil {
			return err
		}
		if c == nil {
			// Not on a goroutine: a front end could send any number of such requests.
			child.send(id, errorReply(errClosed))
			continue
		}
		go func() { child.send(id, b.answer(c, r)) }()
	}
}

// begin marks a connection as busy. It returns nil if there is no such connection.
func (b *frontEndProcess) begin(id uint64) (*servedConn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.conns[id]
	if c == nil {
		return nil, nil
	}
	if c.busy {
		return nil, errors.New("the front end sent two requests of one connection at once")
	}
	c.busy = true
	return c, nil
}

func (b *frontEndProcess) answer(c *servedConn, r request) reply {
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		c.busy = false
	}()
	if err := r.check(); err != nil {
		return errorReply(err)
	}
	return b.s.answer(c.connection, r)
}

// closed forgets a connection that the front end has closed.
func (b *frontEndProcess) closed(id uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.conns[id]; c != nil {
		c.Close()
		delete(b.conns, id)
	}
}

// written notes that the front end has written a reply.
func (b *frontEndProcess) written(id uint64) {
	b.mu.Lock()
	c := b.conns[id]
	b.mu.Unlock()
	if c != nil {
		c.replyRead()
	}
}

// child is the process of a front end.
type child struct {
	cmd      *exec.Cmd
	conns    *net.UnixConn
	wire     *net.UnixConn
	patience time.Duration // for the front end to take a message
	sending  sync.Mutex    // one message is written to wire at a time, each with its own deadline
}

// startChild starts a front end. It gets two sockets, an empty environment and nothing
// else.
func startChild(command []string) (*child, error) {
	conns, theirConns, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, err
	}
	defer theirConns.Close()
	wire, theirWire, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		conns.Close()
		return nil, err
	}
	defer theirWire.Close()
	// Go's own descriptors are closed at exec; those that the daemon was started with may
	// not be. Kernels before 5.11 cannot do this.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.ExtraFiles = []*os.File{theirConns, theirWire} // descriptors frontConns and frontWire
	cmd.Env, cmd.Dir, cmd.Stderr = []string{"GIVEWAY_FRONT_END=1"}, "/", os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the terminal's signals are for the daemon
	if err := proc.Start(cmd); err != nil {
		conns.Close()
		wire.Close()
		return nil, fmt.Errorf("start a front end: %w", err)
	}
	return &child{cmd: cmd, conns: conns, wire: wire, patience: passTime}, nil
}

// socketPair returns two connected unix sockets: one of ours, and one for a child.
func socketPair(kind int) (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "front end"), os.NewFile(uintptr(fds[1]), "daemon")
	defer ours.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	return c.(*net.UnixConn), theirs, nil
}

// send sends a reply. A front end that does not take it in time is killed.
func (c *child) send(id uint64, a reply) {
	message := frame(func(b []byte) []byte { return appendReply(b, id, a) })
	c.sending.Lock()
	defer c.sending.Unlock()
	_ = c.wire.SetWriteDeadline(time.Now().Add(c.patience)) // a unix socket has deadlines
	if _, err := c.wire.Write(message); err != nil {
		c.wire.Close() // which ends readRequests, and so the front end
	}
}

// end ends the front end, if it has not ended, and waits for it.
func (c *child) end() {
	c.conns.Close()
	c.wire.Close()
	_ = c.cmd.Process.Kill() // it may have ended
	_ = c.cmd.Wait()         // killed or not, it is gone
}
