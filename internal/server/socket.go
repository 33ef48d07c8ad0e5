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

// listenUnix listens on a socket that everybody may connect to, in a folder that
// only its owner may change. A socket that somebody answers on is left alone,
// and so is what is no socket; one that a dead daemon left behind is replaced.
//
// Between finding a socket dead and taking its place another daemon could do the
// same: the lock, held until the returned file is closed, sees to it that only
// one does.
func listenUnix(path string) (net.Listener, *os.File, error) {
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

var errRunning = errors.New("a daemon is running there already")

// removeStale removes a socket that nobody answers on.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("something that is not a socket is there already")
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
	return fmt.Errorf("is the socket there in use? %w", err) // too busy to answer is alive
}

// readToken reads a token, and refuses one that others can read or guess.
func readToken(path string) (*token, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the token: %w", err)
	case !info.Mode().IsRegular() || info.Size() > mostToken:
		return nil, fmt.Errorf("read the token: %s is not a plain file of up to %d bytes", path, mostToken)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("read the token: others may read %s too: chmod 600 it", path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the token: %w", err)
	}
	return newToken(data, path)
}
