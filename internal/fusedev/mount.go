package fusedev

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// ErrNoFUSE is wrapped by errors that mean that FUSE cannot be mounted on this machine.
var ErrNoFUSE = errors.New("FUSE file systems cannot be mounted here")

// Mount is a Device behind a path that any process may open.
type Mount struct {
	Path string

	fuse      *os.File
	served    chan struct{}
	unmounter *unmounter
	close     sync.Once
}

// Mounted puts d behind a file of that name until the test ends. It skips the test where
// FUSE cannot be mounted.
func Mounted(t testing.TB, name string, d Device) *Mount {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} { // so that processes of any user may open it
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := NewMount(path, d)
	if errors.Is(err, ErrNoFUSE) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// NewMount puts d behind path, an existing file. The file is visible again when the Mount is
// closed or this process exits.
func NewMount(path string, d Device) (*Mount, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse: %w: %w", err, ErrNoFUSE)
	}
	u, err := startUnmounter(path)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	options := fmt.Sprintf("fd=%d,rootmode=100000,user_id=%d,group_id=%d,allow_other", fd, os.Getuid(), os.Getgid())
	if err := unix.Mount(filepath.Base(path), path, "fuse.fusedev", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		u.cancel()
		u.Close()
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENODEV) {
			err = fmt.Errorf("%w: %w", err, ErrNoFUSE)
		}
		return nil, fmt.Errorf("mount on %s: %w", path, err)
	}
	// os.NewFile polls the descriptor, which is an error before the mount.
	m := &Mount{Path: path, fuse: os.NewFile(uintptr(fd), "/dev/fuse"), served: make(chan struct{}), unmounter: u}
	s := &server{fuse: m.fuse, device: d, files: make(map[uint64]File), running: make(map[uint64]chan struct{})}
	go func() {
		defer close(m.served)
		s.serve()
	}()
	if err := m.refusePoll(); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// refusePoll makes the kernel learn that the file cannot be polled. The kernel asks the
// server once, at the first poll. If that were Go's own poller, which adds a file in a call
// that the Go scheduler does not know to block, a program with one processor would wait for
// its own server forever.
func (m *Mount) refusePoll() error {
	fd, err := unix.Open(m.Path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", m.Path, err)
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Close unmounts the file. Calls under way, and calls on files that are still open, fail. A
// second Close does nothing.
func (m *Mount) Close() {
	m.close.Do(func() {
		if unix.Unmount(m.Path, unix.MNT_DETACH) == nil {
			m.unmounter.cancel()
		}
		m.fuse.Close()
		<-m.served
		m.unmounter.Close()
	})
}

// The test binary acts as the unmounter when the environment says so. init checks that
// before any test or flag is read.
const envUnmount = "FUSEDEV_UNMOUNT"

func init() {
	if path := os.Getenv(envUnmount); path != "" {
		runUnmounter(path)
		os.Exit(0)
	}
}

// unmounter is a process that unmounts the file when this process exits.
type unmounter struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

func startUnmounter(path string) (*unmounter, error) {
	cmd := exec.Command("/proc/self/exe")
	// Without this a process under the race detector takes a second to exit.
	cmd.Env = append(os.Environ(), envUnmount+"="+path, "GORACE=atexit_sleep_ms=0")
	// A signal from the terminal must not end it together with the test.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the unmounter: %w", err)
	}
	return &unmounter{cmd, stdin}, nil
}

// cancel makes the unmounter exit without unmounting.
func (u *unmounter) cancel() { _, _ = u.stdin.Write([]byte{'\n'}) }

// Close makes it unmount, unless it was cancelled, and waits until it has exited.
func (u *unmounter) Close() error {
	u.stdin.Close()
	return u.cmd.Wait()
}

// runUnmounter unmounts path when standard input ends without a byte, as it does when the
// test process exits in any way.
func runUnmounter(path string) {
	if n, _ := io.Copy(io.Discard, os.Stdin); n == 0 {
		_ = unix.Unmount(path, unix.MNT_DETACH) // an error cannot be reported
	}
}
