package kfd

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Version is the version of KFD's ioctl interface.
type Version struct{ Major, Minor uint32 }

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// debugVersion is the first version with DBG_TRAP: Linux 6.5.
var debugVersion = Version{1, 13}

// Features says what a driver offers. An error says why it does not offer the feature.
type Features struct {
	Version Version
	Debug   error // DBG_TRAP
	Batch   error // the ioctls of our patch
}

// Probe asks the driver what it offers and changes nothing. It returns an error if the
// driver does not answer.
func Probe(f Ioctler) (Features, error) {
	arg := make([]byte, sizeVersion)
	if _, err := f.Ioctl(ReqGetVersion, arg); err != nil {
		return Features{}, fmt.Errorf("get the version of KFD: %w", err)
	}
	have := Features{Version: Version{le.Uint32(arg), le.Uint32(arg[4:])}}
	// Another major version is another interface.
	if v := have.Version; v.Major != debugVersion.Major || v.Minor < debugVersion.Minor {
		have.Debug = fmt.Errorf("KFD is %v, %v is needed", v, debugVersion)
	}
	if have.Version.Major != debugVersion.Major {
		have.Batch = have.Debug
		return have, nil
	}
	switch err := MayUnmap(f, 0); {
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL): // EINVAL: ROCm's own module
		have.Batch = errors.New("the driver does not have the batch ioctls: it is a stock driver")
	case err != nil:
		have.Batch = fmt.Errorf("the driver's batch ioctls do not work: %w", err)
	}
	return have, nil
}
