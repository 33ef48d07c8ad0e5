package nvrmtest

import (
	"testing"

	"github.com/giveway/giveway/internal/fusedev"
	"golang.org/x/sys/unix"
)

// Mount is an RM behind a path, where any process may open it.
type Mount struct{ *fusedev.Mount }

// Mounted puts rm behind a file named nvidiactl until the test is over. Where
// that cannot be, the test is skipped.
func Mounted(t testing.TB, rm *RM) *Mount {
	t.Helper()
	return &Mount{fusedev.Mounted(t, "nvidiactl", device{rm})}
}

// NewMount puts rm behind path, which is a file that exists. The file is there
// again when the Mount is closed, and when this process dies.
func NewMount(path string, rm *RM) (*Mount, error) {
	m, err := fusedev.NewMount(path, device{rm})
	if err != nil {
		return nil, err
	}
	return &Mount{m}, nil
}

// device is the RM as it is mounted.
type device struct{ rm *RM }

func (d device) Open(fusedev.Caller) (fusedev.File, unix.Errno) { return mounted{d.rm.Open()}, 0 }

// mounted is a File of the RM in another process.
type mounted struct{ f *File }

func (m mounted) Ioctl(c fusedev.Caller, request uint32, arg []byte) (int32, unix.Errno) {
	return 0, m.f.ioctl(fusedev.Memory(c.TID), request, arg)
}

func (m mounted) Release() { _ = m.f.Close() } // it was open
