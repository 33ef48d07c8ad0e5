package server

import (
	"errors"
	"os"
	"syscall"
)

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
