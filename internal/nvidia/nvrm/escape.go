package nvrm

import (
	"encoding/binary"
	"fmt"
	"runtime"

	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

var le = binary.LittleEndian

// Sizes of the parameters of RM_FREE and of both forms of RM_ALLOC, from nvos.h.
const (
	SizeNVOS00 = 16
	SizeNVOS21 = 32 // the older form of RM_ALLOC
	SizeNVOS64 = 48
)

// escape is an ioctl of RM: its number and the layout of its parameters.
type escape struct {
	nr, size           uint32
	params, paramsSize int // offsets of the address and the size of further parameters
	status             int // offset of RM's answer
}

// The escapes, from nvos.h and nv-unix-nvos-params-wrappers.h.
var (
	// NVOS00_PARAMETERS: hRoot 0, hObjectParent 4, hObjectOld 8, status 12.
	escFree = escape{nr: nvgpu.NV_ESC_RM_FREE, size: SizeNVOS00, status: 12}
	// nv_ioctl_nvos33_parameters_with_fd: hClient 0, hDevice 4, hMemory 8, offset 16,
	// length 24, pLinearAddress 32, status 40, flags 44, fd 48.
	escMap = escape{nr: nvgpu.NV_ESC_RM_MAP_MEMORY, size: 56, status: 40}
	// NVOS34_PARAMETERS: hClient 0, hDevice 4, hMemory 8, pLinearAddress 16, status 24,
	// flags 28.
	escUnmap = escape{nr: nvgpu.NV_ESC_RM_UNMAP_MEMORY, size: 32, status: 24}
	// NVOS54_PARAMETERS: hClient 0, hObject 4, cmd 8, flags 12, params 16, paramsSize 24,
	// status 28.
	escControl = escape{nvgpu.NV_ESC_RM_CONTROL, 32, 16, 24, 28}
	// NVOS57_PARAMETERS: hClient 0, hObject 4, sharePolicy 8, status 20.
	escShare = escape{nr: nvgpu.NV_ESC_RM_SHARE, size: 24, status: 20}
	// NVOS64_PARAMETERS: hRoot 0, hObjectParent 4, hObjectNew 8, hClass 12, pAllocParms 16,
	// pRightsRequested 24, paramsSize 32, flags 36, status 40.
	escAlloc = escape{nvgpu.NV_ESC_RM_ALLOC, SizeNVOS64, 16, 32, 40}
)

// arg returns parameters that begin with the given handles.
func (e escape) arg(handles ...Handle) []byte {
	arg := make([]byte, e.size)
	for i, h := range handles {
		le.PutUint32(arg[4*i:], uint32(h))
	}
	return arg
}

// call makes the escape. RM's answer is written to arg and params. The error is the
// kernel's errno, or RM's Status.
func (e escape) call(f Ioctler, arg, params []byte) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	if len(params) > 0 {
		pin.Pin(&params[0])
		le.PutUint64(arg[e.params:], address(params))
		le.PutUint32(arg[e.paramsSize:], uint32(len(params)))
	}
	request := 3<<30 | e.size<<16 | nvgpu.NV_IOCTL_MAGIC<<8 | e.nr // _IOWR('F', nr, size)
	if err := f.Ioctl(request, arg); err != nil {
		return err
	}
	if s := Status(le.Uint32(arg[e.status:])); s != OK {
		return s
	}
	return nil
}

// Control makes an RM control call: cmd on an object of a client. RM's answer is written
// to params.
func Control(f Ioctler, client, object Handle, cmd uint32, params []byte) error {
	arg := escControl.arg(client, object)
	le.PutUint32(arg[8:], cmd)
	if err := escControl.call(f, arg, params); err != nil {
		return fmt.Errorf("control %08x on %v: %w", cmd, object, err)
	}
	return nil
}

// Alloc makes an object and returns its handle. With a zero handle RM chooses one.
func Alloc(f Ioctler, client, parent, handle Handle, class uint32, params []byte) (Handle, error) {
	arg := escAlloc.arg(client, parent, handle)
	le.PutUint32(arg[12:], class)
	if err := escAlloc.call(f, arg, params); err != nil {
		return 0, fmt.Errorf("allocate class %04x: %w", class, err)
	}
	return Handle(le.Uint32(arg[8:])), nil
}

// Free frees an object and the objects below it.
func Free(f Ioctler, client, parent, handle Handle) error {
	if err := escFree.call(f, escFree.arg(client, parent, handle), nil); err != nil {
		return fmt.Errorf("free %v: %w", handle, err)
	}
	return nil
}

// mapReadOnly requests a mapping that can only be read: NVOS33_FLAGS_ACCESS, from nvos.h.
const mapReadOnly = 1

// MapMemory prepares a memory object for one read-only mmap of offset 0 on fd. fd is a
// descriptor of the control file without another mapping: an open file holds one. device
// is the parent of the object, which is the client itself for memory that belongs to no
// device. UnmapMemory takes the value that MapMemory returns.
func MapMemory(f Ioctler, client, device, memory Handle, length uint64, fd int) (linear uint64, err error) {
	arg := escMap.arg(client, device, memory)
	le.PutUint64(arg[24:], length)
	le.PutUint32(arg[44:], mapReadOnly)
	le.PutUint32(arg[48:], uint32(int32(fd)))
	if err := escMap.call(f, arg, nil); err != nil {
		return 0, fmt.Errorf("map %v: %w", memory, err)
	}
	return le.Uint64(arg[32:]), nil
}

// UnmapMemory undoes MapMemory. The caller has unmapped the memory before.
func UnmapMemory(f Ioctler, client, device, memory Handle, linear uint64) error {
	arg := escUnmap.arg(client, device, memory)
	le.PutUint64(arg[16:], linear)
	if err := escUnmap.call(f, arg, nil); err != nil {
		return fmt.Errorf("unmap %v: %w", memory, err)
	}
	return nil
}
