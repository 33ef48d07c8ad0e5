package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/giveway/giveway/internal/safepath"
	"golang.org/x/sys/unix"
)

// maxSocketPath is the longest path of a unix socket: see unix(7).
const maxSocketPath = 107

// socketFolder is the folder of a unix socket, which no other user can change, and a lock
// that keeps two daemons from replacing the same dead socket.
type socketFolder struct {
	folder *safepath.Folder
	lock   *os.File
}

func (p *socketFolder) close() {
	if p.lock != nil {
		p.lock.Close()
	}
	p.folder.Close()
}

// Umasks of a socket: every user, or only its owner, may connect.
const (
	forAll   = 0o111
	forOwner = 0o177
)

// listenUnix listens on a unix socket, in a folder that only root and the daemon's user can
// change. It leaves a socket alone on which a daemon
// answers, and anything that is not a socket; it replaces one that a dead daemon left
// behind. The folder is to be closed after the listener.
func listenUnix(path string, umask int, locked bool) (*net.UnixListener, *socketFolder, error) {
	folder, at, err := openSocketFolder(path)
	if err != nil {
		return nil, nil, err
	}
	p := &socketFolder{folder: folder}
	if locked {
		if p.lock, err = lockFile(at + ".lock"); err != nil {
			folder.Close()
			return nil, nil, lockError(path, err)
		}
	}
	l, err := replaceSocket(at, umask)
	if err != nil {
		p.close()
		return nil, nil, err
	}
	return l, p, nil
}

// openSocketFolder opens the folder of a socket and returns the socket's path by the folder's descriptor.
func openSocketFolder(path string) (folder *safepath.Folder, at string, err error) {
	if len(path) > maxSocketPath {
		return nil, "", fmt.Errorf("the path has %d bytes, and the kernel allows %d: choose a shorter one", len(path), maxSocketPath)
	}
	if folder, err = safepath.OpenFolder(filepath.Dir(path)); err != nil {
		return nil, "", err
	}
	at = folder.At(filepath.Base(path))
	if err := onlySocket(at); err != nil { // before a file is made beside it
		folder.Close()
		return nil, "", err
	}
	return folder, at, nil
}

// lockError returns an error of lockFile as a user understands it: without the path by the folder's
// descriptor.
func lockError(path string, err error) error {
	if errors.As(err, new(*os.PathError)) {
		return fmt.Errorf("make %s.lock: %w; name a socket in a folder of your own with --socket, or run the daemon as root", path, errors.Unwrap(err))
	}
	return err
}

// checkSocket returns why listenUnix would fail, but for a daemon that listens there.
func checkSocket(path string, locked bool) error {
	folder, at, err := openSocketFolder(path)
	if err != nil {
		return err
	}
	defer folder.Close()
	if !locked {
		return nil
	}
	lock, err := lockFile(at + ".lock")
	if err == nil {
		lock.Close()
	}
	if errors.Is(err, errRunning) {
		return nil
	}
	return lockError(path, err)
}

func replaceSocket(path string, umask int) (*net.UnixListener, error) {
	if err := removeStale(path); err != nil {
		return nil, err
	}
	return bind(path, umask)
}

// bind makes a socket. Its mode comes from the umask at bind: there is no moment with another mode, and no chmod that could reach another
// file. The umask is that of a thread of its own, which ends here.
func bind(path string, umask int) (l *net.UnixListener, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err = unix.Unshare(unix.CLONE_FS); err != nil {
			err = fmt.Errorf("get a umask of its own for a thread: %w", err)
			return
		}
		unix.Umask(umask)
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	}()
	<-done
	return l, err
}

var errRunning = errors.New("another daemon listens there; stop it, or choose another socket")

// lockFile creates a file if there is none and locks it. The kernel releases the lock
// when the process ends.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errRunning
	}
	return nil, &os.PathError{Op: "lock", Path: path, Err: err}
}

// onlySocket returns an error if there is a file that is not a socket.
func onlySocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("a file that is not a socket is in its place: remove it, or use another path")
	}
	return nil
}

// removeStale removes a socket on which no daemon answers.
func removeStale(path string) error {
	if err := onlySocket(path); err != nil {
		return err
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		c.Close()
		return errRunning
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return fmt.Errorf("find out whether a daemon is running there: %w", err) // it may be too busy to answer
}

// readToken reads a token. It refuses a file that other users can read or change.
func readToken(path string) (*token, error) {
	data, err := safepath.ReadFile(path, maxToken, true)
	if err != nil {
		return nil, fmt.Errorf("read the token: %w", err)
	}
	return newToken(data, path)
}
