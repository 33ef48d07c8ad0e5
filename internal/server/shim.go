package server

import (
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"
)

// abi is the version of the shared memory that we speak: GW_ABI of shim/abi.h.
const abi = "1"

// welcome is all that a program is told besides its descriptors.
const welcome = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: giveway-shim/" + abi + "\r\n\r\n"

// shim takes a program in: it gets memory to share, and keeps it for as long as the
// connection is open and silent and the process that made it lives.
func (s *Server) shim(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		s.reply(w, r, nil, http.MethodPost)
		return
	}
	c, life, err := s.visitor(r)
	if err != nil {
		s.refuse(w, err)
		return
	}
	defer life.close()
	fds, leave, err := s.cfg.Pages.Admit(Visitor{PID: c.pid, UID: c.uid, Runtime: r.Header.Get("Giveway-Runtime")})
	if err != nil {
		s.refuse(w, err)
		return
	}
	s.runs.Add(1)
	defer s.runs.Done()
	defer leave()
	taken, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		defer taken.Close()
		// What the node has read of this pid is of the process that called, if
		// that is alive still.
		if life.over() {
			err = syscall.ESRCH
		} else {
			err = greet(c.conn.(*net.UnixConn), fds)
		}
	}
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
	if err != nil {
		return
	}
	over := make(chan struct{}, 2)
	go func() {
		_, _ = taken.Read(make([]byte, 1)) // who is not silent is not one of ours
		over <- struct{}{}
	}()
	go func() {
		life.wait()
		over <- struct{}{}
	}()
	select {
	case <-over:
	case <-r.Context().Done():
	}
}

// visitor finds out who asks for memory and may have it, and how to know when it
// has gone.
func (s *Server) visitor(r *http.Request) (caller, *life, error) {
	c, err := s.who(r)
	if err != nil {
		return c, nil, err
	}
	conn, ok := c.conn.(*net.UnixConn)
	if s.cfg.Pages == nil || !ok || !c.local || c.pid <= 0 {
		return c, nil, fmt.Errorf("memory is shared on the daemon's own socket, with a process it can see: %w", ErrConflict)
	}
	if got := r.Header.Get("Giveway-Abi"); got != abi {
		return c, nil, fmt.Errorf("this daemon speaks version %s of the shim's memory, not %s: %w", abi, clip(got), ErrConflict)
	}
	l, err := lifeOf(conn, c.pid)
	if err != nil {
		return c, nil, fmt.Errorf("process %d, which asked for memory: %w: %w", c.pid, ErrNotFound, err)
	}
	return c, l, nil
}

// greet sends the answer and the descriptors, in one message.
func greet(conn *net.UnixConn, fds [3]int) error {
	if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, _, err := conn.WriteMsgUnix([]byte(welcome), syscall.UnixRights(fds[:]...), nil); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}
