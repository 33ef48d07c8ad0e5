package kfd

import (
	"os"

	"golang.org/x/sys/unix"
)

// Ioctler is an open /dev/kfd. The bytes are those that the driver sees; where
// they hold an address, it is one of the caller's memory. What the call returns
// is a count for some requests: more than zero is no error.
type Ioctler interface {
	Ioctl(request uint32, arg []byte) (int, error)
}

// File is a descriptor of /dev/kfd. It is of use in this process only, and having
// it makes this process one of KFD's.
type File struct{ f *os.File }

// Open opens /dev/kfd, or what stands for it.
func Open(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &File{f}, nil
}

// Close closes the descriptor.
func (f *File) Close() error { return f.f.Close() }

// Ioctl implements Ioctler.
func (f *File) Ioctl(request uint32, arg []byte) (int, error) { return ioctl(f.f, request, arg) }
