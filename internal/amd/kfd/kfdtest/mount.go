package kfdtest

import (
	"testing"

	"github.com/giveway/giveway/internal/fusedev"
	"golang.org/x/sys/unix"
)

// Mount is a driver behind a path, where any process may open it.
type Mount struct{ *fusedev.Mount }

// Mounted puts k behind a file named kfd until the test is over. Where that
// cannot be, the test is skipped.
func Mounted(t testing.TB, k *KFD) *Mount {
	t.Helper()
	return &Mount{fusedev.Mounted(t, "kfd", device{k})}
}

// device is the driver as it is mounted.
type device struct{ k *KFD }

func (d device) Open(c fusedev.Caller) (fusedev.File, unix.Errno) {
	pid := d.k.cfg.Host.Leader(c.TID)
	if pid == 0 {
		return nil, unix.ESRCH
	}
	return mounted{d.k.open(pid)}, 0
}

// mounted is an open file of another process.
type mounted struct{ f *File }

func (m mounted) Ioctl(c fusedev.Caller, request uint32, arg []byte) (int32, unix.Errno) {
	return m.f.ioctl(caller{
		pid: m.f.kfd.cfg.Host.Leader(c.TID), tid: c.TID, memory: fusedev.Memory(c.TID), interrupted: c.Interrupted,
	}, request, arg)
}

func (m mounted) Release() { m.f.release() }
