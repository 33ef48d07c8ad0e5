package discover

import "golang.org/x/sys/unix"

// sameFile reports whether descriptors of two processes are the same open file. known is
// false if the kernel cannot tell.
func sameFile(pid1, fd1, pid2, fd2 int) (same, known bool) {
	const kcmpFile = 0 // KCMP_FILE, from linux/kcmp.h
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid1), uintptr(pid2), kcmpFile, uintptr(fd1), uintptr(fd2), 0)
	return errno == 0 && r == 0, errno == 0
}

// isDevice reports whether a descriptor is of the control device. In a container the device
// file is another inode with the same device number.
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
