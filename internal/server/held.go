package server

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"time"

	"github.com/giveway/giveway/api"
	"github.com/giveway/giveway/internal/proc"
	"golang.org/x/sys/unix"
)

// Connections that outlive their request: a run, a page and a stream last until their
// connection ends. The daemon answers on its own copy of the connection, keeps that and watches it, so
// the front end has no part in it any more.

// runHeader begins the response to a run, which has no end of its own.
const runHeader = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"

// beginRun begins a run of the caller's process. It lasts until the caller closes its end.
func (s *Server) beginRun(c *connection, by caller, r request) error {
	if !by.local || by.pid <= 0 {
		return Conflict("begin a run: it must be begun on the daemon's unix socket, by a process that the daemon can see")
	}
	// A connection can outlive the process that made it, and the pid be reused.
	if uid, ok := ownerOf(by.pid); !ok || uid != by.uid && !by.all {
		return NotFound("begin a run: process %d, the caller, has exited", by.pid)
	}
	if conn, ok := c.Conn.(*net.UnixConn); ok {
		process, err := peerProcess(conn, by.pid)
		if err == nil {
			defer process.Close()
		}
		if err == nil && process.Exited() || err != nil && !errors.Is(err, net.ErrClosed) {
			return NotFound("begin a run: process %d, the caller, has exited", by.pid)
		}
	}
	started, end, err := s.node.BeginRun(by.public(), api.Run{Values: r.values})
	if err != nil {
		return err
	}
	h := &held{end: end, events: unix.POLLRDHUP}
	return s.hold(c, h, func(conn socket) error {
		text, err := json.Marshal(started)
		if err == nil {
			_, err = conn.Write(append([]byte(runHeader), append(text, '\n')...))
		}
		return err
	})
}

// held is a run, a page or a stream.
type held struct {
	end     func()
	process *proc.Pidfd // it ends with this process; nil: with the connection only
	events  int16       // of poll(2): what on the connection ends it
}

// hold sends an answer on a copy of the connection and keeps that until its end. If hold
// returns an error, h has ended.
func (s *Server) hold(c *connection, h *held, send func(socket) error) error {
	conn, err := s.startHolding(c)
	if err == nil {
		if err = conn.SetWriteDeadline(time.Now().Add(time.Second)); err == nil {
			err = send(conn)
		}
		if err != nil {
			s.stopHolding(c, conn)
		}
	}
	if err != nil {
		h.close()
		return Conflict("keep the connection: %w", err)
	}
	go func() {
		defer s.stopHolding(c, conn)
		defer h.close()
		h.wait(s.over, conn)
	}()
	return nil
}

func (s *Server) startHolding(c *connection) (socket, error) {
	s.holding.Lock()
	defer s.holding.Unlock()
	if s.over.Err() != nil {
		return nil, errStopping
	}
	conn, err := c.hold()
	if err == nil {
		s.runs.Add(1)
	}
	return conn, err
}

func (s *Server) stopHolding(c *connection, conn socket) {
	conn.Close()
	c.release()
	s.runs.Done()
}

func (h *held) close() {
	h.end()
	if h.process != nil {
		h.process.Close()
	}
}

// wait returns when the other end is closed, the process has exited or ctx is done.
func (h *held) wait(ctx context.Context, conn socket) {
	wake := func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) } // a unix socket has deadlines
	defer context.AfterFunc(ctx, wake)()
	if h.process != nil {
		go func() {
			if h.process.WaitExit() {
				wake()
			}
		}()
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool { // until there is such an event, or the deadline
		return pollFor(int(fd), h.events)
	})
}

// pollFor reports whether a descriptor has one of the events, or is closed at the other
// end.
func pollFor(fd int, events int16) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, 0)
		if err != unix.EINTR {
			return n > 0
		}
	}
}
