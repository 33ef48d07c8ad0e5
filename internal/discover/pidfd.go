package discover

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

var errReplaced = errors.New("the pid belongs to another process now")

// openProcess returns a pidfd of the process of that pid and start time. The
// start time is read after the pidfd is open: if it is still the same, the pidfd
// is that process's.
func (p procfs) openProcess(pid int, start uint64) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK) // close-on-exec by itself
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.PidfdOpen(pid, 0) // before Linux 5.10
		if err == nil {
			err = unix.SetNonblock(fd, true)
		}
	}
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	f := os.NewFile(uintptr(fd), "pidfd") // nonblocking: waits in the runtime's poller
	s, err := p.stat(pid)
	if err == nil && s.start != start {
		err = errReplaced
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// waitExit returns true when the process has gone, false when f was closed.
func waitExit(f *os.File) bool {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	return conn.Read(func(fd uintptr) bool { return hasExited(int(fd)) }) == nil
}

// hasExited asks without waiting.
func hasExited(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// sameFile reports whether two descriptors of two processes are the same open
// file, and whether the kernel could tell.
func sameFile(pid1, fd1, pid2, fd2 int) (same, known bool) {
	const kcmpFile = 0 // KCMP_FILE, from linux/kcmp.h
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid1), uintptr(pid2), kcmpFile, uintptr(fd1), uintptr(fd2), 0)
	return errno == 0 && r == 0, errno == 0
}

// isDevice reports whether an open descriptor is of the control device. Inside a
// container the node is another inode, with the same number.
func isDevice(fd int, control string) bool {
	var have, want unix.Stat_t
	if unix.Fstat(fd, &have) != nil || unix.Stat(control, &want) != nil {
		return false
	}
	if have.Mode&unix.S_IFMT != want.Mode&unix.S_IFMT {
		return false
	}
	if want.Mode&unix.S_IFMT == unix.S_IFCHR {
		return have.Rdev == want.Rdev
	}
	return have.Dev == want.Dev && have.Ino == want.Ino
}
