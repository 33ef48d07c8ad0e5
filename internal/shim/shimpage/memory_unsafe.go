package shimpage

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memory is a piece of memory that can be given to others: mapped here, and with a
// size that nobody can change.
type memory struct {
	bytes []byte
	fd    int // not an os.File: those are made blocking, which their other owners share
}

// Seals that every piece has. Who shrinks a file that somebody has mapped makes
// them fault.
const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

func newMemory(name string, size int, seals int) (memory, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return memory{}, os.NewSyscallError("memfd_create", err)
	}
	m := memory{fd: fd}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return memory{}, errors.Join(os.NewSyscallError("ftruncate", err), m.close())
	}
	if m.bytes, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return memory{}, errors.Join(os.NewSyscallError("mmap", err), m.close())
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return memory{}, errors.Join(fmt.Errorf("seal %s: %w", name, err), m.close())
	}
	return m, nil
}

func (m *memory) close() error {
	err := unix.Close(m.fd)
	if m.bytes != nil {
		err = errors.Join(err, unix.Munmap(m.bytes))
		m.bytes = nil
	}
	return err
}

func (m *memory) page() *page   { return (*page)(unsafe.Pointer(&m.bytes[0])) }
func (m *memory) board() *board { return (*board)(unsafe.Pointer(&m.bytes[0])) }

// wakeAll wakes every thread, of whatever process, that waits on a futex.
func wakeAll(word *atomic.Uint32) {
	const futexWake = 1 // FUTEX_WAKE: not private, the waiters are another process's
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32, 0, 0, 0)
}

const forever = time.Duration(math.MaxInt64)

// epollWait waits for d at most, to the nanosecond where the kernel can.
func epollWait(epoll int, events []unix.EpollEvent, d time.Duration) (int, error) {
	if d == forever {
		return unix.EpollWait(epoll, events, -1)
	}
	ts := unix.NsecToTimespec(int64(d))
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epoll),
		uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), uintptr(unsafe.Pointer(&ts)), 0, 0)
	switch errno {
	case 0:
		return int(n), nil
	case unix.ENOSYS, unix.EPERM: // before Linux 5.11, or a filter that knows nothing newer
		return unix.EpollWait(epoll, events, int((d+time.Millisecond-1)/time.Millisecond))
	}
	return 0, errno
}
