package amd

import (
	"errors"
	"fmt"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
	"golang.org/x/sys/unix"
)

// ErrNoSlot is wrapped by errors that mean that a queue stays stopped because the
// slots that are left are reserved.
var ErrNoSlot = errors.New("the slots that are left are reserved")

// batchWay is our patch.
type batchWay struct{ driver *Driver }

func (b *batchWay) name() string { return "batch" }

func (b *batchWay) prove(_ *Device, t Target) error {
	return batchError(kfd.MayUnmap(b.driver.file, t.PID))
}

func (b *batchWay) stop(pid int, queues []*queue) []error {
	return b.do(pid, queues, func(keys []kfd.QueueKey) ([]error, error) {
		return kfd.BatchUnmap(b.driver.file, pid, keys, queues[0].device.grace())
	})
}

func (b *batchWay) start(pid int, queues []*queue) []error {
	return b.do(pid, queues, func(keys []kfd.QueueKey) ([]error, error) { return kfd.FastRemap(b.driver.file, pid, keys) })
}

// do makes a call. The driver goes by number, so the process is looked at before
// and after: if it ended meanwhile, whoever has its number now is left alone again.
func (b *batchWay) do(pid int, queues []*queue, call func([]kfd.QueueKey) ([]error, error)) []error {
	t := &queues[0].target
	if t.gone() {
		return all(queues, hal.ErrGone)
	}
	keys := make([]kfd.QueueKey, len(queues))
	for i, q := range queues {
		keys[i] = q.key()
	}
	errs, err := call(keys)
	if t.gone() {
		return all(queues, errors.Join(hal.ErrGone, b.leave(pid)))
	}
	if err != nil {
		return all(queues, batchError(err))
	}
	for i := range errs {
		errs[i] = entryError(errs[i])
	}
	return errs
}

func (b *batchWay) leave(pid int) error {
	_, err := kfd.RemapAll(b.driver.file, pid)
	err = batchError(err)
	if errors.Is(err, hal.ErrGone) || errors.Is(err, hal.ErrNotSupported) || errors.Is(err, unix.EBUSY) {
		return nil // nothing of it is ours
	}
	return err
}

// batchError says what the failure of a whole call means.
func batchError(err error) error {
	switch {
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%w: %w", err, hal.ErrGone)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: %w", err, hal.ErrNotSupported)
	}
	return err
}

// entryError says what became of one queue.
func entryError(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EBUSY): // EBUSY: it is being destroyed
		return fmt.Errorf("%w: %w", err, hal.ErrGone)
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w: %w", err, ErrNoSlot)
	}
	return err
}
