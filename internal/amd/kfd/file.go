package kfd

import (
	"os"

	"golang.org/x/sys/unix"
)

// Ioctler is an open /dev/kfd. arg holds the bytes that the driver sees; addresses in it
// are in the memory of the calling process. Some requests return a count instead of 0.
type Ioctler interface {
	Ioctl(request uint32, arg []byte) (int, error)
}

// File is a descriptor of /dev/kfd. Opening it registers this process with KFD.
type File struct{ f *os.File }

// Open opens /dev/kfd, or a test double of it.
func Open(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &File{f}, nil
}

// Close closes the descriptor. The driver then undoes what was done through it.
func (f *File) Close() error { return f.f.Close() }

// Ioctl implements Ioctler.
func (f *File) Ioctl(request uint32, arg []byte) (int, error) { return ioctl(f.f, request, arg) }
