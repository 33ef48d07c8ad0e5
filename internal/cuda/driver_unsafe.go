package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// library is the name of the driver's library. The toolkit's libcuda.so is a stub.
const library = "libcuda.so.1"

// function is a function of the library, as an index into Driver.
type function int

const (
	cuInit function = iota
	cuDriverGetVersion
	cuGetErrorName
	cuGetErrorString
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetUuid
	cuDeviceGetAttribute
	cuDevicePrimaryCtxSetFlags
	cuDevicePrimaryCtxRetain
	cuCtxSetCurrent
	cuModuleLoadDataEx
	cuModuleGetFunction
	cuOccupancyMaxActiveBlocksPerMultiprocessor
	cuLaunchKernel
	cuStreamCreate
	cuStreamSynchronize
	cuEventCreate
	cuEventRecord
	cuEventSynchronize
	cuEventQuery
	cuEventElapsedTime
	cuMemAlloc
	cuMemHostAlloc
	cuMemHostGetDevicePointer
	functions // number of functions
)

// symbols lists the library's names of each function, the preferred one first. The
// suffix is the ABI version that this package's arguments have.
var symbols = [functions][]string{
	cuInit:                     {"cuInit"},
	cuDriverGetVersion:         {"cuDriverGetVersion"},
	cuGetErrorName:             {"cuGetErrorName"},
	cuGetErrorString:           {"cuGetErrorString"},
	cuDeviceGetCount:           {"cuDeviceGetCount"},
	cuDeviceGet:                {"cuDeviceGet"},
	cuDeviceGetName:            {"cuDeviceGetName"},
	cuDeviceGetUuid:            {"cuDeviceGetUuid_v2", "cuDeviceGetUuid"},
	cuDeviceGetAttribute:       {"cuDeviceGetAttribute"},
	cuDevicePrimaryCtxSetFlags: {"cuDevicePrimaryCtxSetFlags_v2", "cuDevicePrimaryCtxSetFlags"},
	cuDevicePrimaryCtxRetain:   {"cuDevicePrimaryCtxRetain"},
	cuCtxSetCurrent:            {"cuCtxSetCurrent"},
	cuModuleLoadDataEx:         {"cuModuleLoadDataEx"},
	cuModuleGetFunction:        {"cuModuleGetFunction"},
	cuOccupancyMaxActiveBlocksPerMultiprocessor: {"cuOccupancyMaxActiveBlocksPerMultiprocessor"},
	cuLaunchKernel:            {"cuLaunchKernel"},
	cuStreamCreate:            {"cuStreamCreate"},
	cuStreamSynchronize:       {"cuStreamSynchronize"},
	cuEventCreate:             {"cuEventCreate"},
	cuEventRecord:             {"cuEventRecord"},
	cuEventSynchronize:        {"cuEventSynchronize"},
	cuEventQuery:              {"cuEventQuery"},
	cuEventElapsedTime:        {"cuEventElapsedTime", "cuEventElapsedTime_v2"},
	cuMemAlloc:                {"cuMemAlloc_v2"},
	cuMemHostAlloc:            {"cuMemHostAlloc"},
	cuMemHostGetDevicePointer: {"cuMemHostGetDevicePointer_v2"},
}

// Driver is the loaded library.
type Driver struct {
	at [functions]uintptr
}

// Open loads the driver library and initializes it. It is never unloaded.
func Open() (*Driver, error) { return open(library) }

func open(path string) (*Driver, error) {
	// dlerror is per thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		// The missing file may also be a library that this one needs.
		if text := err.Error(); strings.Contains(text, path) && strings.Contains(text, "No such file") {
			return nil, fmt.Errorf("%s: not found: is an NVIDIA driver installed?", path)
		}
		return nil, fmt.Errorf("load %s: %w", path, err)
	}
	d := &Driver{}
	for f, names := range symbols {
		for _, name := range names {
			if at, err := purego.Dlsym(handle, name); err == nil {
				d.at[f] = at
				break
			}
		}
		if d.at[f] == 0 {
			return nil, fmt.Errorf("%s has no %s: the driver is too old or the library is not NVIDIA's", path, names[0])
		}
	}
	if err := d.call(cuInit, 0); err != nil {
		return nil, err
	}
	return d, nil
}

// call calls a function and turns its result into an error. It is the only place
// that does. Memory that the arguments point to stays alive, and does not move,
// until call returns.
//
//go:uintptrescapes
func (d *Driver) call(f function, args ...uintptr) error {
	r, _, _ := purego.SyscallN(d.at[f], args...)
	if code := int32(r); code != success {
		return d.explain(symbols[f][0], code)
	}
	return nil
}

func (d *Driver) explain(call string, code int32) error {
	return &Error{
		Call: call,
		Code: int(code),
		Name: d.describe(cuGetErrorName, code),
		Text: d.describe(cuGetErrorString, code),
	}
}

// describe returns the library's static text for a result code.
func (d *Driver) describe(f function, code int32) string {
	text := new(*byte)
	if r, _, _ := purego.SyscallN(d.at[f], uintptr(code), uintptr(unsafe.Pointer(text))); r != success || *text == nil {
		return ""
	}
	return cString(unsafe.Slice(*text, 1<<10))
}

// cString returns the bytes before the first zero byte, and reads no further.
func cString(b []byte) string {
	for i := range b {
		if b[i] == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// done turns the result of a query into whether the work is finished.
func done(err error) (bool, error) {
	if e := (*Error)(nil); errors.As(err, &e) && e.Code == notReady {
		return false, nil
	}
	return err == nil, err
}

// Version returns the newest CUDA version that the driver supports: 13000 is 13.0.
func (d *Driver) Version() (int, error) {
	var v int32
	err := d.call(cuDriverGetVersion, uintptr(unsafe.Pointer(&v)))
	return int(v), err
}
