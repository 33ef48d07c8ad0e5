package server

import (
	"fmt"
	"net"
	"syscall"

	"github.com/giveway/giveway/internal/proc"
	"golang.org/x/sys/unix"
)

// switching is the response that goes with the descriptors, for a version of the page.
const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: giveway-shim/%d\r\n\r\n"

// beginShim gives a process memory to share with the daemon. The process keeps it while
// its connection is open and silent and the process lives.
func (s *Server) beginShim(c *connection, by caller, r request) error {
	process, err := s.shimProcess(c, by, r)
	if err != nil {
		return err
	}
	version := s.pageVersions.Common(r.shimVersions)
	fds, leave, err := s.cfg.Pages.Admit(ShimProcess{
		PID: by.pid, UID: by.uid, Account: by.account, All: by.all, Runtime: r.shimRuntime, PageVersion: version, Exited: process.Exited,
	})
	if err != nil {
		process.Close()
		return err
	}
	defer func() {
		for _, fd := range fds {
			_ = syscall.Close(fd)
		}
	}()
	h := &held{end: leave, process: process, events: unix.POLLIN | unix.POLLRDHUP}
	return s.hold(c, h, func(conn socket) error {
		_, _, err := conn.(*net.UnixConn).WriteMsgUnix(fmt.Appendf(nil, switching, version), syscall.UnixRights(fds[:]...), nil)
		return err
	})
}

// shimProcess returns the process that asks for shared memory, if it may have it.
func (s *Server) shimProcess(c *connection, by caller, r request) (*proc.Pidfd, error) {
	conn, ok := c.Conn.(*net.UnixConn)
	if s.cfg.Pages == nil || !ok || !by.local || by.pid <= 0 {
		return nil, Conflict("share memory: only on the daemon's unix socket, with a process that the daemon can see")
	}
	if s.pageVersions.Common(r.shimVersions) == 0 {
		return nil, Conflict("share memory: this daemon has version %v of the shim's memory layout, the shim %v; use the shim of the same release", s.pageVersions, r.shimVersions)
	}
	process, err := peerProcess(conn, by.pid)
	if err != nil {
		return nil, NotFound("share memory with process %d: %w", by.pid, err)
	}
	return process, nil
}
