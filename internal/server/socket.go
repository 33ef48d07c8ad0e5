package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// maxSocketPath is the longest path of a unix socket: see unix(7).
const maxSocketPath = 107

// listenUnix listens on a unix socket that every user may connect to, in a folder that
// only its owner may change. It leaves a socket alone on which a daemon answers, and
// anything that is not a socket; it replaces one that a dead daemon left behind.
//
// The lock, which is held until the returned file is closed, keeps two daemons from
// replacing the same dead socket.
func listenUnix(path string) (net.Listener, *os.File, error) {
	if len(path) > maxSocketPath {
		return nil, nil, fmt.Errorf("the path has %d bytes; the kernel allows %d", len(path), maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, nil, err
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, nil, err
	}
	l, err := replaceSocket(path)
	if err != nil {
		lock.Close()
		return nil, nil, err
	}
	return l, lock, nil
}

func replaceSocket(path string) (net.Listener, error) {
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

var errRunning = errors.New("another daemon listens there; stop it, or choose another socket")

// lockFile creates a file if there is none and locks it. The kernel releases the lock
// when the process ends.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errRunning
	}
	return nil, &os.PathError{Op: "lock", Path: path, Err: err}
}

// removeStale removes a socket on which no daemon answers.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("a file that is not a socket is in its place: remove it, or use another path")
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		c.Close()
		return errRunning
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return fmt.Errorf("find out whether a daemon is running there: %w", err) // it may be too busy to answer
}

// readToken reads a token. It refuses a file that other users can read.
func readToken(path string) (*token, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the token: %w", err)
	case !info.Mode().IsRegular() || info.Size() > maxToken:
		return nil, fmt.Errorf("read the token: %s is not a regular file of up to %d bytes", path, maxToken)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("read the token: other users may read %s: chmod 600 it", path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the token: %w", err)
	}
	return newToken(data, path)
}
