package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// connectTime is how long a client tries to connect, and connectPace how long it waits
// before the next attempt. The kernel refuses a connection at once if too many wait to be
// accepted.
const (
	connectTime = 5 * time.Second
	connectPace = 20 * time.Millisecond
)

// overflowUser is the uid that the kernel shows for a user that has no number in this
// user namespace.
const overflowUser = 65534

// maxSocketPath is the longest path of a unix socket: see unix(7).
const maxSocketPath = 107

// errAbsent means that no daemon listens on a socket.
var errAbsent = errors.New("no daemon listens there")

// Dial connects to the daemon at a socket. It refuses a listener that another user
// started: any user can make a socket in a folder such as /tmp, and a program would send
// it requests and wait for its answers.
func Dial(ctx context.Context, path string) (*net.UnixConn, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("the path of the socket has %d bytes, and the kernel allows %d: choose a shorter one for the daemon's --socket and GIVEWAY_SOCKET", len(path), maxSocketPath)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "unix", path)
		switch {
		case err == nil:
			c := conn.(*net.UnixConn)
			if err := checkPeer(c, path); err != nil {
				c.Close()
				return nil, err
			}
			return c, nil
		case errors.Is(err, syscall.ECONNREFUSED) && !isSocket(path):
			return nil, fmt.Errorf("%s is not a socket: set GIVEWAY_SOCKET to the socket of a daemon", path)
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
			return nil, fmt.Errorf("%w: %w", errAbsent, err)
		case errors.Is(err, fs.ErrPermission):
			return nil, fmt.Errorf("you may not use the socket %s or its folder: run the command as the daemon's user or root, or set GIVEWAY_SOCKET to another socket", path)
		case !errors.Is(err, syscall.EAGAIN):
			return nil, err
		}
		select {
		case <-time.After(connectPace):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// isSocket reports whether a file is a socket, or is gone.
func isSocket(path string) bool {
	info, err := os.Stat(path)
	return err != nil || info.Mode().Type() == fs.ModeSocket
}

// checkPeer returns an error unless root or the user of this process started the
// listener. In a user namespace root may have no number; only the machine's socket is then
// taken for root's, because only root can make it.
func checkPeer(c *net.UnixConn, path string) error {
	uid, err := peerUser(c)
	if err != nil {
		return fmt.Errorf("find out which user listens on %s: %w", path, err)
	}
	self := uint32(os.Geteuid())
	if uid == 0 || uid == self || uid == overflowUser && path == SystemSocket {
		return nil
	}
	return fmt.Errorf("user %d listens on %s, and only a daemon of root or of user %d is trusted; use a socket in a folder that no other user can change", uid, path, self)
}

// dial connects to the first socket on which a daemon listens.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	for _, path := range c.sockets {
		conn, err := Dial(ctx, path)
		switch {
		case err == nil:
			return conn, nil
		case !errors.Is(err, errAbsent):
			return nil, err
		}
	}
	todo := fmt.Sprintf("start one with '%s'", StartCommand())
	if os.Getenv("GIVEWAY_SOCKET") == "" {
		todo += ", or set GIVEWAY_SOCKET if it listens elsewhere"
	}
	return nil, fmt.Errorf("%w at %s: %s", ErrNoDaemon, strings.Join(c.sockets, " or "), todo)
}
