package nvrmtest

import (
	"testing"

	"github.com/giveway/giveway/internal/fusedev"
	"golang.org/x/sys/unix"
)

// Mount is an RM behind a path that any process may open.
type Mount struct{ *fusedev.Mount }

// Mounted puts rm behind a file named nvidiactl until the test ends. It skips the test
// where FUSE cannot be mounted.
func Mounted(t testing.TB, rm *RM) *Mount {
	t.Helper()
	return &Mount{fusedev.Mounted(t, "nvidiactl", device{rm})}
}

// NewMount puts rm behind path, an existing file. The file is visible again when the Mount
// is closed or this process exits.
func NewMount(path string, rm *RM) (*Mount, error) {
	m, err := fusedev.NewMount(path, device{rm})
	if err != nil {
		return nil, err
	}
	return &Mount{m}, nil
}

// device is a mounted RM.
type device struct{ rm *RM }

func (d device) Open(fusedev.Caller) (fusedev.File, unix.Errno) { return mountedFile{d.rm.Open()}, 0 }

// mountedFile is a File that another process has open.
type mountedFile struct{ f *File }

func (m mountedFile) Ioctl(c fusedev.Caller, request uint32, arg []byte) (int32, unix.Errno) {
	return 0, m.f.ioctl(fusedev.Memory(c.TID), request, arg)
}

func (m mountedFile) Release() { _ = m.f.Close() } // cannot fail: it is open
