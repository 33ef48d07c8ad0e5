package nvrm

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Handle names an object of an RM client, or the client itself.
type Handle uint32

func (h Handle) String() string { return fmt.Sprintf("%08x", uint32(h)) }

// ControlPath is the control file of the driver, GPUPattern the device files of the GPUs.
const (
	ControlPath = "/dev/nvidiactl"
	GPUPattern  = "/dev/nvidia%d"
)

// Ioctler is an open control file. arg holds the bytes that the driver reads and
// writes. Addresses in it are addresses of the caller's memory.
type Ioctler interface {
	Ioctl(request uint32, arg []byte) error
}

// File is a descriptor of /dev/nvidiactl.
type File struct{ f *os.File }

// NewFile returns a File that owns the descriptor fd.
func NewFile(fd int) *File { return &File{os.NewFile(uintptr(fd), "nvidiactl")} }

// Open opens the control file at path.
func Open(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &File{f}, nil
}

// OpenGPU opens the device file of a GPU: number index, or with an index of -1 the
// first that opens. pattern is GPUPattern but in tests. While the file is open RM keeps
// the GPU initialised and lets this process make objects on it.
func OpenGPU(pattern string, index int) (*os.File, error) {
	first, last := index, index
	if index < 0 {
		first, last = 0, maxDevices-1
	}
	var firstErr error // the first that is not "no such file", if there is one
	for i := first; i <= last; i++ {
		f, err := os.OpenFile(fmt.Sprintf(pattern, i), os.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil {
			return f, nil
		}
		if firstErr == nil || os.IsNotExist(firstErr) {
			firstErr = err
		}
	}
	return nil, firstErr
}

// Fd returns the descriptor. The File keeps it.
func (f *File) Fd() int { return int(f.f.Fd()) }

// Close closes the descriptor.
func (f *File) Close() error { return f.f.Close() }

// Ioctl implements Ioctler.
func (f *File) Ioctl(request uint32, arg []byte) error { return ioctl(f.f, request, arg) }
