package nvrm

import (
	"fmt"

	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// MapReadOnly requests a mapping that can only be read: NVOS33_FLAGS_ACCESS, from
// nvos.h.
const MapReadOnly = 1

// Sizes of the mapping escapes' parameters, from nvos.h and
// nv-unix-nvos-params-wrappers.h.
const (
	sizeNVOS33 = 56 // RM_MAP_MEMORY, with the descriptor
	sizeNVOS34 = 32 // RM_UNMAP_MEMORY
)

// MapMemory prepares a memory object for one mmap of offset 0 on fd. fd is a descriptor
// of /dev/nvidiactl without another mapping: an open file holds one. device is the parent
// of the object, which is the client itself for memory that belongs to no device.
// UnmapMemory takes the value that MapMemory returns.
func MapMemory(f Ioctler, client, device, memory Handle, length uint64, flags uint32, fd int) (uint64, error) {
	// nv_ioctl_nvos33_parameters_with_fd: hClient 0, hDevice 4, hMemory 8, offset 16, length 24,
	// pLinearAddress 32, status 40, flags 44, fd 48.
	arg := make([]byte, sizeNVOS33)
	le.PutUint32(arg[0:], uint32(client))
	le.PutUint32(arg[4:], uint32(device))
	le.PutUint32(arg[8:], uint32(memory))
	le.PutUint64(arg[24:], length)
	le.PutUint32(arg[44:], flags)
	le.PutUint32(arg[48:], uint32(int32(fd)))
	if err := f.Ioctl(request(nvgpu.NV_ESC_RM_MAP_MEMORY, sizeNVOS33), arg); err != nil {
		return 0, fmt.Errorf("map %v: %w", memory, err)
	}
	if s := Status(le.Uint32(arg[40:])); s != OK {
		return 0, fmt.Errorf("map %v: %w", memory, s)
	}
	return le.Uint64(arg[32:]), nil
}

// UnmapMemory undoes MapMemory. The caller has unmapped the memory before.
func UnmapMemory(f Ioctler, client, device, memory Handle, linear uint64) error {
	// NVOS34_PARAMETERS: hClient 0, hDevice 4, hMemory 8, pLinearAddress 16, status 24, flags 28.
	arg := make([]byte, sizeNVOS34)
	le.PutUint32(arg[0:], uint32(client))
	le.PutUint32(arg[4:], uint32(device))
	le.PutUint32(arg[8:], uint32(memory))
	le.PutUint64(arg[16:], linear)
	if err := f.Ioctl(request(nvgpu.NV_ESC_RM_UNMAP_MEMORY, sizeNVOS34), arg); err != nil {
		return fmt.Errorf("unmap %v: %w", memory, err)
	}
	if s := Status(le.Uint32(arg[24:])); s != OK {
		return fmt.Errorf("unmap %v: %w", memory, s)
	}
	return nil
}
