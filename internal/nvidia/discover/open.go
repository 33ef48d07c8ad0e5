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
	for _, fd := range fds {
		f, err := copyControl(pidfd, fd, device)
		if err == nil {
			var o nvrm.Object
			if o, err = nvrm.Lookup(f, key.Client, key.Handle); err == nil && o.Class == nvrm.ClassChannelGroup {
				return f, nil
			}
			_ = f.Close()
		}
		if err != nil && !nvrm.IsGone(err) && !errors.Is(err, unix.EBADF) && !errors.Is(err, errNotControl) {
			failed = errors.Join(failed, fmt.Errorf("descriptor %d of process %d: %w", fd, p.PID, err))
		}
	}
	if failed != nil {
		return nil, failed
	}
	return nil, fmt.Errorf("process %d has no group %v of client %v: %w", p.PID, key.Handle, key.Client, hal.ErrGone)
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
