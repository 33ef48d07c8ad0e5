package nvtrace

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/giveway/giveway/internal/nvidia/nvrm"
)

// ErrRefused says that this driver, GPU or user does not get the record, and
// that trying again changes nothing. Err is the driver's last word.
type ErrRefused struct {
	Reason string // for people
	Err    error
}

func (e ErrRefused) Error() string {
	return fmt.Sprintf("GPU switch record refused: %s: %v", e.Reason, e.Err)
}

func (e ErrRefused) Unwrap() error { return e.Err }

// refusal makes an ErrRefused of an error that is one by itself, and leaves
// others as they are.
func refusal(err error) error {
	var already ErrRefused
	switch {
	case err == nil || errors.As(err, &already):
		return err
	case errors.Is(err, fs.ErrPermission), errors.Is(err, nvrm.ErrInsufficientPermissions): // EPERM, EACCES
		return ErrRefused{"it takes root, or the right to open and to call the NVIDIA device files", err}
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.ENOSYS):
		return ErrRefused{"a sandbox does not let this driver call through", err}
	}
	return err
}

// bindRefusal says why no bind was taken. reason is the first that V2 gave.
func bindRefusal(reason uint32, err error) error {
	var text string
	switch reason {
	case reasonTooOld:
		text = "this GPU is too old to keep one"
	case reasonNotEnabledGPU:
		text = "this GPU keeps none: confidential computing without its developer mode, or a virtual GPU"
	case reasonNotEnabled:
		text = "the driver keeps none"
	case reasonNeedAdmin:
		text = "it takes an administrator (CAP_SYS_ADMIN)"
	case reasonNeedCapability:
		text = "it takes a profiling capability: with MIG, that of the device or of a GPU instance"
	default:
		err := refusal(err)
		var already ErrRefused
		if errors.As(err, &already) {
			return err
		}
		text = "the driver does not bind it; with MIG it needs a GPU instance"
	}
	return ErrRefused{text, err}
}
