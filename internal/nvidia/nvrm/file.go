package nvrm

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// Handle names an object of an RM client, or the client itself.
type Handle uint32

func (h Handle) String() string { return fmt.Sprintf("%08x", uint32(h)) }

// Ioctler is an open /dev/nvidiactl. arg holds the bytes that the driver reads and
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
// first that opens. pattern is /dev/nvidia%d but in tests. While the file is open RM
// keeps the GPU initialised and lets this process make objects on it.
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
func (f *File) Ioctl(request uint32, arg []byte) error {
	return ioctl(f.f, request, arg)
}

// request returns the ioctl number of an escape: _IOWR('F', nr, size).
func request(nr, size uint32) uint32 { return 3<<30 | size<<16 | nvgpu.NV_IOCTL_MAGIC<<8 | nr }

// Sizes of the escapes' parameters, from nvos.h.
const (
	sizeNVOS00 = 16 // RM_FREE
	sizeNVOS21 = 32 // RM_ALLOC, the older form
	sizeNVOS54 = 32 // RM_CONTROL
	sizeNVOS57 = 24 // RM_SHARE
	sizeNVOS64 = 48 // RM_ALLOC
)

var le = binary.LittleEndian

// Control makes an RM control call: cmd on an object of a client. RM's answer is written
// to params. The error is the kernel's errno, or RM's Status.
func Control(f Ioctler, client, object Handle, cmd uint32, params []byte) error {
	// NVOS54_PARAMETERS: hClient 0, hObject 4, cmd 8, flags 12, params 16, paramsSize 24, status 28.
	arg := make([]byte, sizeNVOS54)
	le.PutUint32(arg[0:], uint32(client))
	le.PutUint32(arg[4:], uint32(object))
	le.PutUint32(arg[8:], cmd)
	var pin runtime.Pinner
	defer pin.Unpin()
	if len(params) > 0 {
		pin.Pin(&params[0])
		le.PutUint64(arg[16:], address(params))
		le.PutUint32(arg[24:], uint32(len(params)))
	}
	if err := f.Ioctl(request(nvgpu.NV_ESC_RM_CONTROL, sizeNVOS54), arg); err != nil {
		return fmt.Errorf("control %08x: %w", cmd, err)
	}
	if s := Status(le.Uint32(arg[28:])); s != OK {
		return fmt.Errorf("control %08x on %v: %w", cmd, object, s)
	}
	return nil
}

// Alloc makes an object and returns its handle. With a zero handle RM chooses one.
func Alloc(f Ioctler, client, parent, handle Handle, class uint32, params []byte) (Handle, error) {
	// NVOS64_PARAMETERS: hRoot 0, hObjectParent 4, hObjectNew 8, hClass 12, pAllocParms 16,
	// pRightsRequested 24, paramsSize 32, flags 36, status 40.
	arg := make([]byte, sizeNVOS64)
	le.PutUint32(arg[0:], uint32(client))
	le.PutUint32(arg[4:], uint32(parent))
	le.PutUint32(arg[8:], uint32(handle))
	le.PutUint32(arg[12:], class)
	var pin runtime.Pinner
	defer pin.Unpin()
	if len(params) > 0 {
		pin.Pin(&params[0])
		le.PutUint64(arg[16:], address(params))
		le.PutUint32(arg[32:], uint32(len(params)))
	}
	if err := f.Ioctl(request(nvgpu.NV_ESC_RM_ALLOC, sizeNVOS64), arg); err != nil {
		return 0, fmt.Errorf("allocate class %04x: %w", class, err)
	}
	if s := Status(le.Uint32(arg[40:])); s != OK {
		return 0, fmt.Errorf("allocate class %04x: %w", class, s)
	}
	return Handle(le.Uint32(arg[8:])), nil
}

// Free frees an object and the objects below it.
func Free(f Ioctler, client, parent, handle Handle) error {
	// NVOS00_PARAMETERS: hRoot 0, hObjectParent 4, hObjectOld 8, status 12.
	arg := make([]byte, sizeNVOS00)
	le.PutUint32(arg[0:], uint32(client))
	le.PutUint32(arg[4:], uint32(parent))
	le.PutUint32(arg[8:], uint32(handle))
	if err := f.Ioctl(request(nvgpu.NV_ESC_RM_FREE, sizeNVOS00), arg); err != nil {
		return fmt.Errorf("free %v: %w", handle, err)
	}
	if s := Status(le.Uint32(arg[12:])); s != OK {
		return fmt.Errorf("free %v: %w", handle, s)
	}
	return nil
}
