package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/proc"
)

// takeoverTime is how long a daemon that is told to end may take.
const takeoverTime = 20 * time.Second

// endOther ends the daemon that listens on a socket, if there is one, and returns its pid when
// it has exited. The other daemon undoes its changes, and its orders are in the journal, so between
// the two daemons every process runs as it would without Giveway.
func endOther(ctx context.Context, socket string) (pid int, err error) {
	other, pid, err := listenerOf(ctx, socket)
	if err != nil || other == nil {
		return 0, err
	}
	defer other.Close()
	if err := unix.PidfdSendSignal(other.Fd(), unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return 0, fmt.Errorf("end the daemon that listens on %s: %w", socket, err)
	}
	exited := make(chan struct{})
	go func() {
		if other.WaitExit() {
			close(exited)
		}
	}()
	ctx, stop := context.WithTimeout(ctx, takeoverTime)
	defer stop()
	select {
	case <-exited:
		return pid, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("the daemon that listens on %s has not ended: %w; see its log", socket, ctx.Err())
	}
}

// listenerOf returns the process that listens on a socket and its pid, or nil if none does. It must be of
// our own user. A process that listens after the pidfd was opened is the one of the pidfd.
func listenerOf(ctx context.Context, socket string) (p *proc.Pidfd, pid int, err error) {
	first, err := peer(ctx, socket)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("find the daemon that listens on %s: %w", socket, err)
	}
	if first.Uid != uint32(os.Geteuid()) {
		return nil, 0, fmt.Errorf("take over from the daemon that listens on %s: it belongs to user %d, not to %d", socket, first.Uid, os.Geteuid())
	}
	if int(first.Pid) == os.Getpid() {
		return nil, 0, nil
	}
	fd, err := unix.PidfdOpen(int(first.Pid), 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("open process %d, which listens on %s: %w", first.Pid, socket, err)
	}
	p, err = proc.NewPidfd(fd)
	if err != nil {
		return nil, 0, err
	}
	if second, err := peer(ctx, socket); err != nil || second.Pid != first.Pid {
		p.Close() // it ends already
		return nil, 0, nil
	}
	return p, int(first.Pid), nil
}

// peer returns the credentials of the process that listens on a socket.
func peer(ctx context.Context, socket string) (*unix.Ucred, error) {
	d := net.Dialer{Timeout: 2 * time.Second}
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	failed := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(failed, err)
}
