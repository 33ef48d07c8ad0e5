package kfdtest

import (
	"testing"

	"github.com/giveway/giveway/internal/fusedev"
	"golang.org/x/sys/unix"
)

// Mount is a driver behind a path that any process may open.
type Mount struct{ *fusedev.Mount }

// Mounted mounts k as a file named kfd until the test is over. It skips the test where
// FUSE is not available.
func Mounted(t testing.TB, k *KFD) *Mount {
	t.Helper()
	return &Mount{fusedev.Mounted(t, "kfd", device{k})}
}

// device implements fusedev.Device.
type device struct{ k *KFD }

func (d device) Open(c fusedev.Caller) (fusedev.File, unix.Errno) {
	pid := d.k.cfg.Host.Leader(c.TID)
	if pid == 0 {
		return nil, unix.ESRCH
	}
	return mountedFile{d.k.Open(pid)}, 0
}

// mountedFile is a file that a real process has opened.
type mountedFile struct{ f *File }

func (m mountedFile) Ioctl(c fusedev.Caller, request uint32, arg []byte) (int32, unix.Errno) {
	return m.f.ioctl(caller{
		pid: m.f.kfd.cfg.Host.Leader(c.TID), tid: c.TID, memory: fusedev.Memory(c.TID), interrupted: c.Interrupted,
	}, request, arg)
}

func (m mountedFile) Release() { m.f.release() }
