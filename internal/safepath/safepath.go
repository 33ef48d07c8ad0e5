// Package safepath opens folders and files that no other user can change. A user is
// another one if it is neither root nor the user of this process.
package safepath

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is how many symbolic links a path may have, as in the kernel.
const maxLinks = 40

// Folder is an open folder that only root and the user of this process can change.
// Names in it cannot be made to mean something else by changing its path.
type Folder struct{ file *os.File }

// OpenFolder opens a folder. It makes those that are missing, with mode 0755. It refuses
// the path if another user owns a folder or a link on it, or can write to one of the
// folders. A folder above the last one may be sticky, as /tmp is: there the next name,
// which is checked, can be changed by its owner only.
func OpenFolder(path string) (*Folder, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	w := walk{at: -1}
	defer w.close()
	if err := w.follow(path); err != nil {
		return nil, err
	}
	if err := w.st.check(w.path, false); err != nil {
		return nil, err
	}
	f := &Folder{os.NewFile(uintptr(w.at), path)}
	w.at = -1
	return f, nil
}

// At returns a path to a name in the folder, for calls that take no descriptor. It is
// valid in this process until the folder is closed.
func (f *Folder) At(name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", f.file.Fd(), name)
}

// Close closes the folder.
func (f *Folder) Close() error { return f.file.Close() }

// walk is a walk along a path, without following links in the kernel.
type walk struct {
	at    int // descriptor of the present folder; -1: none
	path  string
	st    status
	links int
}

func (w *walk) close() {
	if w.at >= 0 {
		_ = unix.Close(w.at)
	}
}

// move makes a descriptor the present folder.
func (w *walk) move(fd int, path string) {
	w.close()
	w.at, w.path = fd, path
}

// follow goes to an absolute path and checks every folder but the last.
func (w *walk) follow(path string) error {
	if err := w.root(); err != nil {
		return err
	}
	names := split(path)
	for len(names) > 0 {
		if err := w.st.check(w.path, true); err != nil {
			return err
		}
		target, err := w.enter(names[0])
		if err != nil {
			return err
		}
		names = names[1:]
		if target != "" {
			names = append(split(target), names...)
		}
		if filepath.IsAbs(target) {
			if err := w.root(); err != nil {
				return err
			}
		}
	}
	return nil
}

func split(path string) []string {
	return strings.FieldsFunc(path, func(c rune) bool { return c == '/' })
}

func (w *walk) root() error {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/", Err: err}
	}
	w.move(fd, "/")
	return w.st.read(fd, "/")
}

// enter goes to a folder in the present one, which it makes if there is none. If the name
// is a link, enter stays and returns its target.
func (w *walk) enter(name string) (target string, err error) {
	path := filepath.Join(w.path, name)
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(w.at, name, flags, 0)
	if errors.Is(err, unix.ENOENT) {
		if err = unix.Mkdirat(w.at, name, 0o755); err == nil || errors.Is(err, unix.EEXIST) {
			fd, err = unix.Openat(w.at, name, flags, 0)
		}
	}
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st status
	if err = st.read(fd, path); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		target, err = w.readLink(fd, path, st)
		_ = unix.Close(fd)
		return target, err
	}
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = &os.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
	}
	if err != nil {
		_ = unix.Close(fd)
		return "", err
	}
	w.move(fd, path)
	w.st = st
	return "", nil
}

func (w *walk) readLink(fd int, path string, st status) (string, error) {
	if err := st.checkOwner(path); err != nil {
		return "", err
	}
	if w.links++; w.links > maxLinks {
		return "", &os.PathError{Op: "open", Path: path, Err: unix.ELOOP}
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", &os.PathError{Op: "readlink", Path: path, Err: err}
	}
	return string(buf[:n]), nil
}

// status is what the kernel says about a file.
type status struct{ unix.Stat_t }

func (s *status) read(fd int, path string) error {
	if err := unix.Fstat(fd, &s.Stat_t); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return nil
}

// checkOwner returns an error if another user owns the file.
func (s *status) checkOwner(path string) error {
	if self := uint32(os.Geteuid()); s.Uid != 0 && s.Uid != self {
		trusted := "root is"
		if self != 0 {
			trusted = fmt.Sprintf("root and user %d are", self)
		}
		return fmt.Errorf("%s belongs to user %d, and only %s trusted; change its owner, or use another path", path, s.Uid, trusted)
	}
	return nil
}

// check returns an error if another user can change the file, or, in a folder that is
// sticky, a name that the user does not own.
func (s *status) check(path string, sticky bool) error {
	if err := s.checkOwner(path); err != nil {
		return err
	}
	if s.Mode&0o022 != 0 && !(sticky && s.Mode&unix.S_ISVTX != 0) {
		return fmt.Errorf("other users may write to %s; %s", path, s.remedy())
	}
	return nil
}

// remedy says what to do about a file that other users may write. Programs of other users
// may need a folder of root or a sticky one, such as /tmp, as it is.
func (s *status) remedy() string {
	if s.Mode&unix.S_IFMT == unix.S_IFDIR && (s.Uid == 0 || s.Mode&unix.S_ISVTX != 0) {
		return "use a path in a folder of your own, for example one made with: mkdir -m 700 ~/.giveway"
	}
	return "chmod go-w it, or use another path"
}

// ReadFile reads a regular file of at most that many bytes. It refuses a file that
// another user owns or can write and, if secret, one that another user can read.
func ReadFile(path string, most int64, secret bool) ([]byte, error) {
	return read(path, most, func(st *status) error {
		if err := st.check(path, false); err != nil {
			return err
		}
		if secret && st.Mode&0o077 != 0 {
			return fmt.Errorf("other users may read %s; chmod 600 it", path)
		}
		return nil
	})
}

// ReadUntrusted reads a regular file of at most that many bytes that no other user owns.
// Other users may be able to write it, so the caller must not trust what is in it.
func ReadUntrusted(path string, most int64) ([]byte, error) {
	return read(path, most, func(st *status) error { return st.checkOwner(path) })
}

// read reads a regular file that passes a check.
func read(path string, most int64, check func(*status) error) ([]byte, error) {
	// Opening a pipe must not wait for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st status
	if err := st.read(int(f.Fd()), path); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%s is not a plain file", path)
	}
	if err := check(&st); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", path, most)
	}
	return data, err
}
