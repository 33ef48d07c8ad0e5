package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/giveway/giveway/internal/clib"
	"github.com/giveway/giveway/internal/gpuwork"
)

// library is the name of the driver's library. The toolkit's libcuda.so is a stub.
const library = "libcuda.so.1"

var functions clib.Table

var (
	cuInit                     = functions.Bind("cuInit")
	cuDriverGetVersion         = functions.Bind("cuDriverGetVersion")
	cuGetErrorName             = functions.Bind("cuGetErrorName")
	cuGetErrorString           = functions.Bind("cuGetErrorString")
	cuDeviceGetCount           = functions.Bind("cuDeviceGetCount")
	cuDeviceGet                = functions.Bind("cuDeviceGet")
	cuDeviceGetName            = functions.Bind("cuDeviceGetName")
	cuDeviceGetUuid            = functions.Bind("cuDeviceGetUuid_v2", "cuDeviceGetUuid")
	cuDeviceGetAttribute       = functions.Bind("cuDeviceGetAttribute")
	cuDevicePrimaryCtxSetFlags = functions.Bind("cuDevicePrimaryCtxSetFlags_v2", "cuDevicePrimaryCtxSetFlags")
	cuDevicePrimaryCtxRetain   = functions.Bind("cuDevicePrimaryCtxRetain")
	cuCtxSetCurrent            = functions.Bind("cuCtxSetCurrent")
	cuModuleLoadDataEx         = functions.Bind("cuModuleLoadDataEx")
	cuModuleGetFunction        = functions.Bind("cuModuleGetFunction")
	cuOccupancyMaxActiveBlocks = functions.Bind("cuOccupancyMaxActiveBlocksPerMultiprocessor")
	cuLaunchKernel             = functions.Bind("cuLaunchKernel")
	cuStreamCreate             = functions.Bind("cuStreamCreate")
	cuStreamSynchronize        = functions.Bind("cuStreamSynchronize")
	cuEventCreate              = functions.Bind("cuEventCreate")
	cuEventRecord              = functions.Bind("cuEventRecord")
	cuEventSynchronize         = functions.Bind("cuEventSynchronize")
	cuEventQuery               = functions.Bind("cuEventQuery")
	cuEventElapsedTime         = functions.Bind("cuEventElapsedTime", "cuEventElapsedTime_v2")
	cuMemAlloc                 = functions.Bind("cuMemAlloc_v2")
	cuMemHostAlloc             = functions.Bind("cuMemHostAlloc")
	cuMemHostGetDevicePointer  = functions.Bind("cuMemHostGetDevicePointer_v2")
)

// Result codes (CUresult in cuda.h).
const (
	success  = 0
	notReady = 600 // CUDA_ERROR_NOT_READY: the work still runs
)

// driver is the loaded library.
type driver struct{ lib *clib.Library }

// load loads the library and initializes it.
func (d *driver) load(path string) (err error) {
	if d.lib, err = functions.Load(path); errors.Is(err, clib.ErrNotFound) {
		return fmt.Errorf("%w: is an NVIDIA driver installed?", err)
	}
	if err != nil {
		return err
	}
	return d.call(cuInit, 0)
}

// call calls a function and turns its result into an error. It is the only place
// that does. Memory that the arguments point to stays alive, and does not move,
// until call returns.
//
//go:uintptrescapes
func (d *driver) call(f clib.Function, args ...uintptr) error {
	if code := int32(d.lib.Call(f, args...)); code != success {
		return &gpuwork.Error{Call: functions.Name(f), Code: int(code), Name: d.textOf(cuGetErrorName, code), Text: d.textOf(cuGetErrorString, code)}
	}
	return nil
}

// textOf returns the library's static text for a result code.
func (d *driver) textOf(f clib.Function, code int32) string {
	text := new(*byte)
	if r := d.lib.Call(f, uintptr(code), uintptr(unsafe.Pointer(text))); r != success || *text == nil {
		return ""
	}
	return clib.String(unsafe.Slice(*text, 1<<10))
}
