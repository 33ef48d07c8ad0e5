package nvtrace

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// ErrRefused is matched by errors which mean that this driver, GPU or user cannot have the
// trace.
var ErrRefused = errors.New("context-switch trace refused")

// refusedError means that this driver, GPU or user cannot have the trace. A second attempt
// fails too.
type refusedError struct {
	reason string // for the user
	err    error  // of the driver
}

func (e refusedError) Error() string {
	return fmt.Sprintf("%v: %s: %v", ErrRefused, e.reason, e.err)
}

// Is makes errors.Is match ErrRefused.
func (e refusedError) Is(target error) bool { return target == ErrRefused }

func (e refusedError) Unwrap() error { return e.err }

// asRefused returns a refusedError for an error that means one, and other errors unchanged.
func asRefused(err error) error {
	switch {
	case errors.As(err, new(refusedError)):
		return err
	case errors.Is(err, fs.ErrPermission), errors.Is(err, nvrm.ErrInsufficientPermissions): // EPERM, EACCES
		return refusedError{"it needs root, or the right to open and to call the NVIDIA device files", err}
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.ENOSYS):
		return refusedError{"a sandbox blocks this driver call", err}
	}
	return err
}

// bindReasons are the reasons for which the newer form of the bind control fails:
// NV2080_CTRL_GR_FECS_BIND_REASON_CODE_*, from ctrl2080gr.h.
var bindReasons = map[uint32]string{
	1: "this GPU is too old to have one",
	2: "this GPU has none: confidential computing without its developer mode, or a virtual GPU",
	3: "it is turned off in the driver",
	4: "it needs an administrator (CAP_SYS_ADMIN)",
	5: "it needs a profiling capability: with MIG, that of the device or of a GPU instance",
}

// bindRefused returns the refusedError for failed binds. reason is the first that the
// driver gave.
func bindRefused(reason uint32, err error) error {
	if text := bindReasons[reason]; text != "" {
		return refusedError{text, err}
	}
	if err := asRefused(err); errors.As(err, new(refusedError)) {
		return err
	}
	return refusedError{"the driver does not bind it; with MIG, a GPU instance is needed", err}
}
