package nvrm

import (
	"encoding/hex"
	"errors"
	"fmt"

	"gvisor.dev/gvisor/pkg/abi/nvgpu"
)

// Classes of objects that are used here.
const (
	ClassDevice       = nvgpu.NV01_DEVICE_0
	ClassSubdevice    = nvgpu.NV20_SUBDEVICE_0
	ClassChannelGroup = nvgpu.KEPLER_CHANNEL_GROUP_A
)

// IsChannel reports whether a class is a GPFIFO channel of any GPU generation. Their
// numbers end in 6f.
func IsChannel(class uint32) bool { return class&0xff == 0x6f && class > 0xa000 }

// IsCompute reports whether a class is a compute engine object. Their numbers end in c0.
func IsCompute(class uint32) bool { return class&0xff == 0xc0 && class > 0xa000 }

// Object is an object of a client.
type Object struct {
	Handle Handle
	Parent Handle
	Class  uint32
}

// NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO, from ctrl0000client.h.
const (
	cmdGetHandleInfo = 0xd02 // {u32 hObject, u32 index, u64 result}
	indexParent      = 1
	indexClass       = 2
)

// Lookup asks RM for the class and the parent of a handle.
func Lookup(f Ioctler, client, handle Handle) (Object, error) {
	class, err := handleInfo(f, client, handle, indexClass)
	if err != nil {
		return Object{}, err
	}
	parent, err := handleInfo(f, client, handle, indexParent)
	return Object{Handle: handle, Parent: Handle(parent), Class: uint32(class)}, err
}

func handleInfo(f Ioctler, client, handle Handle, index uint32) (uint64, error) {
	params := make([]byte, 16)
	le.PutUint32(params[0:], uint32(handle))
	le.PutUint32(params[4:], index)
	err := Control(f, client, client, cmdGetHandleInfo, params)
	return le.Uint64(params[8:]), err
}

// firstObject is the first handle that CUDA gives to an object. The following ones are
// small increments, the same in every run.
const firstObject = 0x5c000000

// Objects looks up the first n handles that CUDA gives out and returns those in use.
func Objects(f Ioctler, client Handle, n int) ([]Object, error) {
	var found []Object
	for i := range n {
		o, err := Lookup(f, client, firstObject+Handle(i))
		switch {
		case err == nil:
			found = append(found, o)
		case IsGone(err) && !errors.Is(err, ErrInvalidClient) && !errors.Is(err, ErrGPUIsLost): // not in use
		default:
			return found, err
		}
	}
	return found, nil
}

// UUID returns the identity of the GPU of a subdevice, as nvidia-smi writes it.
func UUID(f Ioctler, client, subdevice Handle) (string, error) {
	// NV2080_CTRL_GPU_GET_GID_INFO_PARAMS: index 0, flags 4, length 8, data 12 [256].
	// From ctrl2080gpu.h. Flags 2 requests the binary form.
	params := make([]byte, 12+256)
	le.PutUint32(params[4:], 2)
	if err := Control(f, client, subdevice, nvgpu.NV2080_CTRL_CMD_GPU_GET_GID_INFO, params); err != nil {
		return "", err
	}
	if n := le.Uint32(params[8:]); n != 16 {
		return "", fmt.Errorf("GPU identity: got %d bytes, want 16", n)
	}
	h := hex.EncodeToString(params[12:28])
	return "GPU-" + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:], nil
}
