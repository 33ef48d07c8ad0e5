package kfd

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrNotSupported is wrapped by errors that mean that the driver here cannot do
// what was asked, and will not on a second try.
var ErrNotSupported = errors.New("not supported by the driver")

// Version is of KFD's ioctl interface.
type Version struct{ Major, Minor uint32 }

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// VersionError says that KFD is too old.
type VersionError struct{ Have, Need Version }

func (e *VersionError) Error() string { return fmt.Sprintf("KFD is %v, %v is needed", e.Have, e.Need) }
func (e *VersionError) Unwrap() error { return ErrNotSupported }

// PatchError says that the driver has not our patch, or that it is of no use.
type PatchError struct{ Cause error }

func (e *PatchError) Error() string {
	if errors.Is(e.Cause, unix.ENOTTY) {
		return "the driver has no batch ioctls: it is a stock one"
	}
	return fmt.Sprintf("the driver's batch ioctls are of no use: %v", e.Cause)
}
func (e *PatchError) Unwrap() []error { return []error{ErrNotSupported, e.Cause} }

// debugVersion is the first with DBG_TRAP: Linux 6.5.
var debugVersion = Version{1, 13}

// Features is what a driver offers. Each error is nil if it does.
type Features struct {
	Version Version
	Debug   error // DBG_TRAP
	Batch   error // our patch
}

// Probe asks the driver what it offers. It changes nothing. The error is for a
// driver that cannot be asked.
func Probe(f Ioctler) (Features, error) {
	arg := make([]byte, sizeVersion)
	if _, err := f.Ioctl(ReqGetVersion, arg); err != nil {
		return Features{}, fmt.Errorf("ask KFD for its version: %w", err)
	}
	have := Features{Version: Version{le.Uint32(arg), le.Uint32(arg[4:])}}
	// A new major version is a new interface.
	if v := have.Version; v.Major != debugVersion.Major || v.Minor < debugVersion.Minor {
		have.Debug = &VersionError{v, debugVersion}
	}
	if have.Version.Major != debugVersion.Major {
		have.Batch = have.Debug
	} else if err := MayUnmap(f, 0); err != nil {
		have.Batch = &PatchError{err}
	}
	return have, nil
}
