package shimpage

import (
	"errors"
	"fmt"
	"math"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memory is a memfd whose size is sealed, and its mapping in this process.
type memory struct {
	bytes []byte
	fd    int // not an os.File, which would make the shared description blocking
}

// sizeSeals are the seals of all shared memory. Without them a process could shrink the
// file, and an access by the daemon would fault.
const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

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

const forever = time.Duration(math.MaxInt64)

// epollWait waits for at most d, with nanosecond precision where the kernel has it.
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
	case unix.ENOSYS, unix.EPERM: // before Linux 5.11, or a seccomp filter that does not know the call
		return unix.EpollWait(epoll, events, int((d+time.Millisecond-1)/time.Millisecond))
	}
	return 0, errno
}
