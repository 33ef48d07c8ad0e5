package amd

import (
	"errors"
	"fmt"

	"github.com/giveway/giveway/internal/amd/kfd"
	"github.com/giveway/giveway/internal/hal"
	"golang.org/x/sys/unix"
)

// batchMethod uses the ioctls of our driver patch.
type batchMethod struct{ driver *driver }

func (b *batchMethod) name() string { return "batch" }

func (b *batchMethod) prove(_ *gpu, t target) error {
	return batchError(kfd.MayUnmap(b.driver.file, t.pid))
}

func (b *batchMethod) stop(pid int, queues []*queue) []error {
	return b.call(pid, queues, func(keys []kfd.QueueKey) ([]error, error) {
		return kfd.BatchUnmap(b.driver.file, pid, keys, kfd.MinGrace)
	})
}

func (b *batchMethod) start(pid int, queues []*queue) []error {
	errs := b.remap(pid, queues)
	b.startIntoReserved(pid, queues, errs)
	return errs
}

func (b *batchMethod) remap(pid int, queues []*queue) []error {
	return b.call(pid, queues, func(keys []kfd.QueueKey) ([]error, error) { return kfd.FastRemap(b.driver.file, pid, keys) })
}

// call calls the driver, which identifies a process by its pid. It therefore checks before
// and after the call whether the process still lives. If the process exited meanwhile, the
// call may have reached a new process with the same pid, and is undone.
func (b *batchMethod) call(pid int, queues []*queue, do func([]kfd.QueueKey) ([]error, error)) []error {
	t := &queues[0].target
	if t.gone() {
		return forAll(queues, hal.ErrGone)
	}
	keys := make([]kfd.QueueKey, len(queues))
	for i, q := range queues {
		keys[i] = q.key()
	}
	errs, err := do(keys)
	if t.gone() {
		return forAll(queues, errors.Join(hal.ErrGone, b.release(pid)))
	}
	if err != nil {
		return forAll(queues, batchError(err))
	}
	for i := range errs {
		errs[i] = batchQueueError(errs[i])
	}
	return errs
}

func (b *batchMethod) release(pid int) error {
	err := batchError(kfd.RemapAll(b.driver.file, pid))
	if errors.Is(err, hal.ErrGone) || errors.Is(err, hal.ErrNotSupported) || errors.Is(err, unix.EBUSY) {
		return nil // none of its queues were unmapped by this process
	}
	return err
}

// batchError classifies the error of a whole call.
func batchError(err error) error {
	switch {
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%w: %w", err, hal.ErrGone)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: %w", err, hal.ErrNotSupported)
	}
	return err
}

// batchQueueError classifies the error of one queue.
func batchQueueError(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EBUSY): // EBUSY: it is being destroyed
		return fmt.Errorf("%w: %w", err, hal.ErrGone)
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w: the free hardware slots are reserved for higher priorities", err)
	}
	return err
}
