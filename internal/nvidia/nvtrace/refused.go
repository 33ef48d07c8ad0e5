package nvtrace

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// RefusedError means that this driver, GPU or user cannot have the trace, and that a second
// attempt will fail too.
type RefusedError struct {
	Reason string // for the user
	Err    error  // of the driver
}

func (e RefusedError) Error() string {
	return fmt.Sprintf("context-switch trace refused: %s: %v", e.Reason, e.Err)
}

func (e RefusedError) Unwrap() error { return e.Err }

// asRefused returns a RefusedError for an error that means one, and other errors unchanged.
func asRefused(err error) error {
	var already RefusedError
	switch {
	case err == nil || errors.As(err, &already):
		return err
	case errors.Is(err, fs.ErrPermission), errors.Is(err, nvrm.ErrInsufficientPermissions): // EPERM, EACCES
		return RefusedError{"it needs root, or the right to open and to call the NVIDIA device files", err}
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.ENOSYS):
		return RefusedError{"a sandbox blocks this driver call", err}
	}
	return err
}

// bindRefused returns the RefusedError for failed binds. reason is the first that V2 gave.
func bindRefused(reason uint32, err error) error {
	var text string
	switch reason {
	case reasonTooOld:
		text = "this GPU is too old to have one"
	case reasonNotEnabledGPU:
		text = "this GPU has none: confidential computing without its developer mode, or a virtual GPU"
	case reasonNotEnabled:
		text = "it is turned off in the driver"
	case reasonNeedAdmin:
		text = "it needs an administrator (CAP_SYS_ADMIN)"
	case reasonNeedCapability:
		text = "it needs a profiling capability: with MIG, that of the device or of a GPU instance"
	default:
		err := asRefused(err)
		var already RefusedError
		if errors.As(err, &already) {
			return err
		}
		text = "the driver does not bind it; with MIG, a GPU instance is needed"
	}
	return RefusedError{text, err}
}
