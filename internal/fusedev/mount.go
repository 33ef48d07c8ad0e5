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

// ErrNoFUSE is wrapped by errors that mean that nothing can be mounted here.
var ErrNoFUSE = errors.New("FUSE file systems cannot be mounted here")

// Mount is a Device behind a path, where any process may open it.
type Mount struct {
	Path string

	fuse    *os.File
	served  chan struct{}
	janitor *janitor
	close   sync.Once
}

// Mounted puts d behind a file of that name until the test is over. Where that
// cannot be, the test is skipped.
func Mounted(t testing.TB, name string, d Device) *Mount {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} { // it is for any user's process
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

// NewMount puts d behind path, which is a file that exists. The file is there
// again when the Mount is closed, and when this process dies.
func NewMount(path string, d Device) (*Mount, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse: %w: %w", err, ErrNoFUSE)
	}
	janitor, err := startJanitor(path)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	options := fmt.Sprintf("fd=%d,rootmode=100000,user_id=%d,group_id=%d,allow_other", fd, os.Getuid(), os.Getgid())
	if err := unix.Mount(filepath.Base(path), path, "fuse.fusedev", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		janitor.dismiss()
		janitor.Close()
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENODEV) {
			err = fmt.Errorf("%w: %w", err, ErrNoFUSE)
		}
		return nil, fmt.Errorf("mount on %s: %w", path, err)
	}
	// The descriptor was not to be polled before: it is an error until there is a mount.
	m := &Mount{Path: path, fuse: os.NewFile(uintptr(fd), "/dev/fuse"), served: make(chan struct{}), janitor: janitor}
	s := &server{fuse: m.fuse, device: d, files: make(map[uint64]File), underway: make(map[uint64]chan struct{})}
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

// refusePoll has the kernel learn that the file is not to be polled. It asks
// once, and when that is because Go adds a file to its poller it asks from where
// the scheduler cannot take the processor away: with one processor only, the
// server would never answer.
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

// Close takes the mount away. Calls that are under way, and those on files that
// are still open, fail. Twice equals once.
func (m *Mount) Close() {
	m.close.Do(func() {
		if unix.Unmount(m.Path, unix.MNT_DETACH) == nil {
			m.janitor.dismiss()
		}
		m.fuse.Close()
		<-m.served
		m.janitor.Close()
	})
}

// The test's own binary is the janitor when the environment says so. That is
// seen to before any test, or flag, is looked at.
const envJanitor = "FUSEDEV_UNMOUNT"

func init() {
	if path := os.Getenv(envJanitor); path != "" {
		tidy(path)
		os.Exit(0)
	}
}

// janitor is a process that unmounts when we are gone.
type janitor struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

func startJanitor(path string) (*janitor, error) {
	cmd := exec.Command("/proc/self/exe")
	// Under the race detector a program dawdles for a second before it ends.
	cmd.Env = append(os.Environ(), envJanitor+"="+path, "GORACE=atexit_sleep_ms=0")
	// What ends the test from the terminal is not to end it too.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start what unmounts: %w", err)
	}
	return &janitor{cmd, stdin}, nil
}

// dismiss tells it that there is nothing left to do.
func (j *janitor) dismiss() { _, _ = j.stdin.Write([]byte{'\n'}) }

// Close has it unmount, unless it was dismissed, and waits for it.
func (j *janitor) Close() error {
	j.stdin.Close()
	return j.cmd.Wait()
}

// tidy is the janitor's life. Its standard input ends when we do, however we do.
func tidy(path string) {
	if n, _ := io.Copy(io.Discard, os.Stdin); n == 0 {
		_ = unix.Unmount(path, unix.MNT_DETACH) // nobody is left to tell
	}
}
