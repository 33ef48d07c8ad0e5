package nvrmtest

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

// Mount is an RM behind a path, where any process may open it.
type Mount struct {
	Path string

	dev     *os.File
	served  chan struct{}
	janitor *janitor
	close   sync.Once
}

// Mounted puts rm behind a file named nvidiactl until the test is over. Where
// that cannot be, the test is skipped.
func Mounted(t testing.TB, rm *RM) *Mount {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvidiactl")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := NewMount(path, rm)
	if errors.Is(err, ErrNoFUSE) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// NewMount puts rm behind path, which is a file that exists. The file is there
// again when the Mount is closed, and when this process dies.
func NewMount(path string, rm *RM) (*Mount, error) {
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
	if err := unix.Mount("nvidiactl", path, "fuse.nvrmtest", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		janitor.dismiss()
		janitor.Close()
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENODEV) {
			err = fmt.Errorf("%w: %w", err, ErrNoFUSE)
		}
		return nil, fmt.Errorf("mount on %s: %w", path, err)
	}
	// The descriptor was not to be polled before: it is an error until there is a mount.
	m := &Mount{Path: path, dev: os.NewFile(uintptr(fd), "/dev/fuse"), served: make(chan struct{}), janitor: janitor}
	s := &server{dev: m.dev, rm: rm, files: make(map[uint64]*File)}
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
		m.dev.Close()
		<-m.served
		m.janitor.Close()
	})
}

// janitor is a process that unmounts when we are gone.
type janitor struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

func startJanitor(path string) (*janitor, error) {
	cmd := again(roleJanitor, path)
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
