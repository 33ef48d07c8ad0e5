package pagetest

import (
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Listen returns a socket on which another user listens, to which every user may connect. The
// test must run as root. The kernel takes the user from the thread that calls listen.
func Listen(t testing.TB, socket string, uid, backlog int) net.Listener {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), socket)
	defer f.Close()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := listenAs(fd, uid, backlog); err != nil {
		t.Fatalf("listen as user %d: %v", uid, err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// listenAs calls listen with another effective user, which this thread alone has.
func listenAs(fd, uid, backlog int) error {
	runtime.LockOSThread()
	before := os.Geteuid()
	if err := setThreadUser(uid); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err := unix.Listen(fd, backlog)
	if back := setThreadUser(before); back != nil {
		return back // the thread stays locked and ends with its goroutine
	}
	runtime.UnlockOSThread()
	return err
}

// setThreadUser sets the effective user of the calling thread. The functions of packages
// syscall and unix set that of all threads.
func setThreadUser(uid int) error {
	const unchanged = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, unchanged, uintptr(uid), unchanged); errno != 0 {
		return errno
	}
	return nil
}
