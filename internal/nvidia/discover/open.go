package discover

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/hal"
	"github.com/giveway/giveway/internal/nvidia/nvrm"
	"github.com/giveway/giveway/internal/proc"
)

// Open returns a copy of the descriptor through which a process made a group that is known
// already. RM finds the group only on that descriptor. The error wraps hal.ErrGone if the
// process, or the group, no longer exists.
func Open(c Config, p proc.ID, key Key) (*nvrm.File, error) {
	fs := procfs{proc.FS(cmp.Or(c.Proc, string(proc.System)))}
	control := cmp.Or(c.Control, nvrm.ControlPath)
	pidfd, err := fs.OpenPidfd(p.PID, p.Start)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) || errors.Is(err, proc.ErrReplaced) {
		return nil, fmt.Errorf("process %d has exited: %w", p.PID, hal.ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer pidfd.Close()
	device, err := deviceAt(unix.AT_FDCWD, control, 0)
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", control, err)
	}
	fds, err := fs.controls(p.PID, control)
	if err != nil && pidfd.Exited() {
		return nil, fmt.Errorf("process %d has exited: %w", p.PID, hal.ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("list the descriptors of process %d: %w", p.PID, err)
	}
	var failed error
	look := groupLook{Key: key, clients: clientList{open: func() (controlFile, error) { return nvrm.Open(control) }}}
	for _, fd := range fds {
		f, err := copyControl(pidfd, fd, device)
		if err == nil {
			var found bool
			if found, err = look.at(f); found {
				return f, nil
			}
			_ = f.Close()
		}
		if err != nil && !nvrm.IsGone(err) && !errors.Is(err, unix.EBADF) && !errors.Is(err, errNotControl) {
			failed = errors.Join(failed, fmt.Errorf("descriptor %d of process %d: %w", fd, p.PID, err))
		}
		if errors.Is(err, errTooManyGuesses) {
			break
		}
	}
	if failed != nil {
		return nil, failed
	}
	return nil, fmt.Errorf("process %d has no group %v of client %v: %w", p.PID, key.Handle, key.Client, hal.ErrGone)
}

// groupLook looks for a group on several descriptors. Its client may have been freed, and each
// control that names it then adds a line to the kernel's log, so OwnerOf is asked first. Where
// that does not work the number of such controls is limited.
type groupLook struct {
	Key
	clients clientList
	wrong   int // controls that named a client of another file, or of none
}

var errTooManyGuesses = fmt.Errorf("neither it nor the further ones were looked at, for %d others do not lead to the client", maxGuesses)

// at reports whether a descriptor leads to the group.
func (l *groupLook) at(f nvrm.Ioctler) (bool, error) {
	owner, err := l.clients.ownerOf(f, l.Client)
	switch {
	case err == nil && owner != nvrm.ThisFile:
		return false, nil
	case err != nil && l.wrong == maxGuesses:
		return false, errTooManyGuesses
	}
	o, err := nvrm.Lookup(f, l.Client, l.Handle)
	if errors.Is(err, nvrm.ErrInvalidClient) {
		l.wrong++
	}
	return err == nil && o.Class == nvrm.ClassChannelGroup, err
}

var errNotControl = errors.New("it is not of the control device")

// copyControl copies a descriptor of a process if it is of the control device.
func copyControl(p *proc.Pidfd, fd int, control device) (*nvrm.File, error) {
	copied, err := unix.PidfdGetfd(p.Fd(), fd, 0) // sets close-on-exec
	if err != nil {
		return nil, err
	}
	have, err := deviceAt(copied, "", unix.AT_EMPTY_PATH)
	if err == nil && have != control {
		err = errNotControl
	}
	if err != nil {
		_ = unix.Close(copied)
		return nil, err
	}
	return nvrm.NewFile(copied), nil
}
