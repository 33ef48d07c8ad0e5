package cuda

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// library is the name of the driver's library. The toolkit's libcuda.so is a stub.
const library = "libcuda.so.1"

// function is a function of the library, as an index into symbols and driver.at.
type function int

// symbols lists the library's names of each function, the preferred one first.
var symbols [][]string

// bind declares a function. The suffix of a name is the ABI version that this package's
// arguments have.
func bind(names ...string) function {
	symbols = append(symbols, names)
	return function(len(symbols) - 1)
}

var (
	cuInit                     = bind("cuInit")
	cuDriverGetVersion         = bind("cuDriverGetVersion")
	cuGetErrorName             = bind("cuGetErrorName")
	cuGetErrorString           = bind("cuGetErrorString")
	cuDeviceGetCount           = bind("cuDeviceGetCount")
	cuDeviceGet                = bind("cuDeviceGet")
	cuDeviceGetName            = bind("cuDeviceGetName")
	cuDeviceGetUuid            = bind("cuDeviceGetUuid_v2", "cuDeviceGetUuid")
	cuDeviceGetAttribute       = bind("cuDeviceGetAttribute")
	cuDevicePrimaryCtxSetFlags = bind("cuDevicePrimaryCtxSetFlags_v2", "cuDevicePrimaryCtxSetFlags")
	cuDevicePrimaryCtxRetain   = bind("cuDevicePrimaryCtxRetain")
	cuCtxSetCurrent            = bind("cuCtxSetCurrent")
	cuModuleLoadDataEx         = bind("cuModuleLoadDataEx")
	cuModuleGetFunction        = bind("cuModuleGetFunction")
	cuOccupancyMaxActiveBlocks = bind("cuOccupancyMaxActiveBlocksPerMultiprocessor")
	cuLaunchKernel             = bind("cuLaunchKernel")
	cuStreamCreate             = bind("cuStreamCreate")
	cuStreamSynchronize        = bind("cuStreamSynchronize")
	cuEventCreate              = bind("cuEventCreate")
	cuEventRecord              = bind("cuEventRecord")
	cuEventSynchronize         = bind("cuEventSynchronize")
	cuEventQuery               = bind("cuEventQuery")
	cuEventElapsedTime         = bind("cuEventElapsedTime", "cuEventElapsedTime_v2")
	cuMemAlloc                 = bind("cuMemAlloc_v2")
	cuMemHostAlloc             = bind("cuMemHostAlloc")
	cuMemHostGetDevicePointer  = bind("cuMemHostGetDevicePointer_v2")
)

// driver is the loaded library.
type driver struct {
	at []uintptr // address of each function
}

// load loads the library and initializes it. It is never unloaded.
func (d *driver) load(path string) error {
	// dlerror is per thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		// The missing file may also be a library that this one needs.
		if text := err.Error(); strings.Contains(text, path) && strings.Contains(text, "No such file") {
			return fmt.Errorf("%s: not found: is an NVIDIA driver installed?", path)
		}
		return fmt.Errorf("load %s: %w", path, err)
	}
	d.at = make([]uintptr, len(symbols))
	for f, names := range symbols {
		for _, name := range names {
			if at, err := purego.Dlsym(handle, name); err == nil {
				d.at[f] = at
				break
			}
		}
		if d.at[f] == 0 {
			return fmt.Errorf("%s has no %s: the driver is too old or the library is not NVIDIA's", path, names[0])
		}
	}
	return d.call(cuInit, 0)
}

// call calls a function and turns its result into an error. It is the only place
// that does. Memory that the arguments point to stays alive, and does not move,
// until call returns.
//
//go:uintptrescapes
func (d *driver) call(f function, args ...uintptr) error {
	r, _, _ := purego.SyscallN(d.at[f], args...)
	if code := int32(r); code != success {
		return &Error{Call: symbols[f][0], Code: int(code), Name: d.textOf(cuGetErrorName, code), Text: d.textOf(cuGetErrorString, code)}
	}
	return nil
}

// textOf returns the library's static text for a result code.
func (d *driver) textOf(f function, code int32) string {
	text := new(*byte)
	if r, _, _ := purego.SyscallN(d.at[f], uintptr(code), uintptr(unsafe.Pointer(text))); r != success || *text == nil {
		return ""
	}
	return cString(unsafe.Slice(*text, 1<<10))
}

// cString returns the bytes before the first zero byte. It reads no further, unlike
// bytes.IndexByte: memory after the library's text may not be mapped.
func cString(b []byte) string {
	for i := range b {
		if b[i] == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
