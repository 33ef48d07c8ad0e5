package server

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// The front end in a process of its own: it parses HTTP and JSON, and has no rights. The
// daemon gives it descriptors of connections, and answers the requests on them.

// Descriptors with which the process is started.
const (
	frontConns = 3 // packets: the number of a connection, and its descriptor
	frontWire  = 4 // stream: requests and replies
)

// RunFrontEnd parses requests for the daemon that started this process, until the daemon
// closes the descriptors.
func RunFrontEnd(log *slog.Logger) error {
	conns, err := inherited(frontConns)
	if err != nil {
		return err
	}
	conn, err := inherited(frontWire)
	if err != nil {
		return err
	}
	w := &wire{conn: conn, waiting: map[uint64]chan reply{}}
	f := frontEnd{log: log, ask: w.ask, written: w.written}
	srv := f.server(context.Background())
	gone := make(chan error, 1)
	go func() { gone <- w.readReplies() }()
	go func() {
		_ = srv.Serve(&passed{conns, w}) // until the daemon closes its end
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTime-time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx) // what is not answered by then is lost
		conn.Close()
	}()
	if err := <-gone; !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// inherited returns a connection that this process was started with.
func inherited(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "from the daemon")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("use descriptor %d: %w; the daemon starts this command", fd, err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("descriptor %d is not a unix socket; the daemon starts this command", fd)
	}
	return u, nil
}

// passed is the listener that returns the connections which the daemon passes on.
type passed struct {
	*net.UnixConn
	wire *wire
}

// Accept returns the next connection. One whose descriptor did not arrive, because this process
// has no number free for it, is reported to the daemon as closed.
func (p *passed) Accept() (net.Conn, error) {
	number, oob := make([]byte, 8), make([]byte, syscall.CmsgSpace(4))
	for {
		n, m, _, _, err := p.ReadMsgUnix(number, oob)
		if err != nil {
			return nil, err
		}
		if n != len(number) {
			return nil, io.EOF
		}
		id := binary.LittleEndian.Uint64(number)
		c, err := receivedConn(oob[:m])
		if err == nil {
			return &passedConn{Conn: c, id: id, wire: p.wire}, nil
		}
		if err := p.wire.send(id, request{op: opClosed}); err != nil {
			return nil, err
		}
	}
}

// receivedConn returns the connection whose descriptor came with a message.
func receivedConn(oob []byte) (net.Conn, error) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return nil, errNoDescriptor
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errNoDescriptor
	}
	f := os.NewFile(uintptr(fds[0]), "connection")
	defer f.Close()
	return net.FileConn(f)
}

var errNoDescriptor = errors.New("the message has no descriptor")

// Addr implements net.Listener.
func (p *passed) Addr() net.Addr { return p.LocalAddr() }

// passedConn is a connection that the daemon has passed on.
type passedConn struct {
	net.Conn
	id     uint64
	wire   *wire
	closed sync.Once
}

func (c *passedConn) Close() error {
	err := c.Conn.Close()
	c.closed.Do(func() { _ = c.wire.send(c.id, request{op: opClosed}) }) // or the daemon is gone
	return err
}

// wire is the front end's end of the stream of requests and replies.
type wire struct {
	conn *net.UnixConn

	mu      sync.Mutex
	waiting map[uint64]chan reply // requests without a reply, by connection; nil: the daemon is gone
}

var errDaemonGone = errors.New("the daemon has stopped")

// ask sends a request and waits for the reply. A connection has one request at a time.
func (w *wire) ask(c net.Conn, r request) reply {
	p, ok := c.(*passedConn)
	if !ok {
		return errorReply(errNoPeer)
	}
	answer := make(chan reply, 1)
	w.mu.Lock()
	if w.waiting != nil {
		w.waiting[p.id] = answer
	}
	gone := w.waiting == nil
	w.mu.Unlock()
	if gone || w.send(p.id, r) != nil {
		return errorReply(errDaemonGone)
	}
	a, ok := <-answer
	if !ok {
		return errorReply(errDaemonGone)
	}
	return a
}

// written reports to the daemon that a reply was written.
func (w *wire) written(c net.Conn) {
	if p, ok := c.(*passedConn); ok {
		_ = w.send(p.id, request{op: opWritten}) // or the daemon is gone
	}
}

func (w *wire) send(id uint64, r request) error {
	message := frame(func(b []byte) []byte { return appendRequest(b, id, r) })
	_, err := w.conn.Write(message) // whole: Write does not interleave
	return err
}

// readReplies passes replies on until the daemon is gone.
func (w *wire) readReplies() error {
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, answer := range w.waiting {
			close(answer)
		}
		w.waiting = nil
	}()
	in := bufio.NewReader(w.conn)
	for {
		message, err := readMessage(in, maxReply)
		if err != nil {
			return err
		}
		id, a, err := parseReply(message)
		if err != nil {
			return err
		}
		if id == pingID {
			if err := w.send(pingID, request{op: opClosed}); err != nil {
				return err
			}
			continue
		}
		w.mu.Lock()
		answer := w.waiting[id]
		delete(w.waiting, id)
		w.mu.Unlock()
		if answer != nil {
			answer <- a
		}
	}
}
