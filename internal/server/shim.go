package server

import (
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/giveway/giveway/internal/proc"
)

// abi is the version of the shared memory: GW_ABI of shim/abi.h.
const abi = "1"

// switching is the response that goes with the descriptors.
const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: giveway-shim/" + abi + "\r\n\r\n"

// shim gives a process memory to share with the daemon. The process keeps it while its
// connection is open and silent and the process lives.
func (s *Server) shim(w http.ResponseWriter, r *http.Request) {
	c, process, err := s.shimCaller(r)
	if err != nil {
		s.refuse(w, err)
		return
	}
	defer process.Close()
	fds, leave, err := s.cfg.Pages.Admit(ShimProcess{PID: c.pid, UID: c.uid, Runtime: r.Header.Get("Giveway-Runtime")})
	if err != nil {
		s.refuse(w, err)
		return
	}
	s.runs.Add(1)
	defer s.runs.Done()
	defer leave()
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		defer conn.Close()
		// If the caller is still alive, what the node read about its pid is about it.
		if process.Exited() {
			err = syscall.ESRCH
		} else {
			err = sendDescriptors(c.conn.(*net.UnixConn), fds)
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
		_, _ = conn.Read(make([]byte, 1)) // the shim never sends anything more
		over <- struct{}{}
	}()
	go func() {
		process.WaitExit()
		over <- struct{}{}
	}()
	select {
	case <-over:
	case <-r.Context().Done():
	}
}

// shimCaller identifies a process that asks for shared memory and may have it.
func (s *Server) shimCaller(r *http.Request) (caller, *proc.Pidfd, error) {
	c, err := s.identify(r)
	if err != nil {
		return c, nil, err
	}
	conn, ok := c.conn.(*net.UnixConn)
	if s.cfg.Pages == nil || !ok || !c.local || c.pid <= 0 {
		return c, nil, Conflict("share memory: only on the daemon's unix socket, with a process that the daemon can see")
	}
	if got := r.Header.Get("Giveway-Abi"); got != abi {
		return c, nil, Conflict("share memory: this daemon has version %s of the shim's memory layout, not %s; use the shim of the same release", abi, clip(got))
	}
	process, err := peerProcess(conn, c.pid)
	if err != nil {
		return c, nil, NotFound("share memory with process %d: %w", c.pid, err)
	}
	return c, process, nil
}

// sendDescriptors sends the response and the descriptors in one message.
func sendDescriptors(conn *net.UnixConn, fds [3]int) error {
	if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, _, err := conn.WriteMsgUnix([]byte(switching), syscall.UnixRights(fds[:]...), nil); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}
