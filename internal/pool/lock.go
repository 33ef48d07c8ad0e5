package pool

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockTime is how long a member waits for the others that join. Starting a control daemon
// takes 0.06 s on an H200.
const lockTime = 20 * time.Second

// lock takes the pool's lock. Closing the file releases it.
func (p *Pool) lock() (*os.File, error) {
	f, err := os.OpenFile(p.folder.At("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(lockTime); !tryLock(f); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			f.Close()
			return nil, fmt.Errorf("another process has held the lock of the pool in %s for %v; end it", p.dir, lockTime)
		}
	}
	return f, nil
}

// tryLock locks a file, unless another open file has the lock.
func tryLock(f *os.File) bool { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil }
