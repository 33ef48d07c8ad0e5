package nvidia

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/giveway/giveway/internal/proc"
)

// errClaimed means that another daemon controls the GPUs. Two daemons with sockets of their own
// would take each other's changes for the state to restore, and each would run a queue with the
// minimum slice: two such queues make no progress.
var errClaimed = errors.New("another daemon controls the NVIDIA GPUs")

// claim locks the control device for one daemon. The kernel releases the lock when the file is
// closed, so also when the daemon dies. Every user may lock the device, so that a lock does not keep
// root's daemon out unless another process of root has it; the file is then nil.
func claim(control string) (*os.File, error) {
	f, err := os.Open(control)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, nil
	}
	defer f.Close()
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, os.NewSyscallError("flock", err)
	}
	holder, known := proc.LockHolder(f)
	switch {
	case os.Geteuid() == 0 && (!known || holder.UID != 0):
		return nil, nil
	case known:
		return nil, fmt.Errorf("%w: process %d of user %d", errClaimed, holder.PID, holder.UID)
	}
	return nil, errClaimed
}
