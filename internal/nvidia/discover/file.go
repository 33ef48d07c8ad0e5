package discover

import (
	"errors"

	"golang.org/x/sys/unix"
)

// sameFile reports whether descriptors of two processes are the same open file. known is
// false if the kernel cannot tell.
func sameFile(pid1, fd1, pid2, fd2 int) (same, known bool) {
	const kcmpFile = 0 // KCMP_FILE, from linux/kcmp.h
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid1), uintptr(pid2), kcmpFile, uintptr(fd1), uintptr(fd2), 0)
	return errno == 0 && r == 0, errno == 0
}

// device identifies a device file by its number, whatever its name: in a container, or behind
// a bind mount, it has another path and another inode. Another kind of file, such as a test's
// control device, is identified by its inode.
type device struct {
	kind       uint16
	filesystem [2]uint32
	inode      uint64
	number     [2]uint32
}

// deviceAt identifies a file, relative to a directory. It makes no request to the file's
// filesystem: the server of a FUSE filesystem could leave it without an answer.
func deviceAt(dir int, name string, flags int) (device, error) {
	var s unix.Statx_t
	var err error
	for again := true; again; again = errors.Is(err, unix.EINTR) { // a signal came, such as those of Go's scheduler
		err = unix.Statx(dir, name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT|flags, unix.STATX_TYPE|unix.STATX_INO, &s)
	}
	if err != nil {
		return device{}, err
	}
	if s.Mode&unix.S_IFMT == unix.S_IFCHR {
		return device{kind: unix.S_IFCHR, number: [2]uint32{s.Rdev_major, s.Rdev_minor}}, nil
	}
	return device{kind: s.Mode & unix.S_IFMT, filesystem: [2]uint32{s.Dev_major, s.Dev_minor}, inode: s.Ino}, nil
}

// isDevice reports whether a descriptor is of the control device.
func isDevice(fd int, control string) bool {
	have, err1 := deviceAt(fd, "", unix.AT_EMPTY_PATH)
	want, err2 := deviceAt(unix.AT_FDCWD, control, 0)
	return err1 == nil && err2 == nil && have == want
}
