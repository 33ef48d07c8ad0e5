package hip

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/giveway/giveway/internal/clib"
	"github.com/giveway/giveway/internal/gpuwork"
)

// libraries are the names of the runtime, the newest first. ROCm's own packages do not
// always put their folder into the loader's path.
var libraries = []string{
	"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "/opt/rocm/lib/libamdhip64.so",
}

var functions, compiler clib.Table

var (
	hipInit                     = functions.Bind("hipInit")
	hipRuntimeGetVersion        = functions.Bind("hipRuntimeGetVersion")
	hipGetErrorName             = functions.Bind("hipGetErrorName")
	hipGetErrorString           = functions.Bind("hipGetErrorString")
	hipGetDeviceCount           = functions.Bind("hipGetDeviceCount")
	hipSetDevice                = functions.Bind("hipSetDevice")
	hipSetDeviceFlags           = functions.Bind("hipSetDeviceFlags")
	hipDeviceGetName            = functions.Bind("hipDeviceGetName")
	hipDeviceGetUUID            = functions.Bind("hipDeviceGetUuid")
	hipDeviceGetAttribute       = functions.Bind("hipDeviceGetAttribute")
	hipGetPropertiesR0600       = functions.BindOptional("hipGetDevicePropertiesR0600") // HIP 6
	hipGetProperties            = functions.BindOptional("hipGetDeviceProperties")      // with the struct of HIP 5
	hipModuleLoadData           = functions.Bind("hipModuleLoadData")
	hipModuleGetFunction        = functions.Bind("hipModuleGetFunction")
	hipOccupancyMaxActiveBlocks = functions.Bind("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor")
	hipModuleLaunchKernel       = functions.Bind("hipModuleLaunchKernel")
	hipStreamCreateWithFlags    = functions.Bind("hipStreamCreateWithFlags")
	hipStreamSynchronize        = functions.Bind("hipStreamSynchronize")
	hipEventCreateWithFlags     = functions.Bind("hipEventCreateWithFlags")
	hipEventRecord              = functions.Bind("hipEventRecord")
	hipEventSynchronize         = functions.Bind("hipEventSynchronize")
	hipEventQuery               = functions.Bind("hipEventQuery")
	hipEventElapsedTime         = functions.Bind("hipEventElapsedTime")
	hipMalloc                   = functions.Bind("hipMalloc")
	hipHostMalloc               = functions.Bind("hipHostMalloc")
	hipHostGetDevicePointer     = functions.Bind("hipHostGetDevicePointer")

	hiprtcCreateProgram     = compiler.Bind("hiprtcCreateProgram")
	hiprtcDestroyProgram    = compiler.Bind("hiprtcDestroyProgram")
	hiprtcCompileProgram    = compiler.Bind("hiprtcCompileProgram")
	hiprtcGetProgramLogSize = compiler.Bind("hiprtcGetProgramLogSize")
	hiprtcGetProgramLog     = compiler.Bind("hiprtcGetProgramLog")
	hiprtcGetCodeSize       = compiler.Bind("hiprtcGetCodeSize")
	hiprtcGetCode           = compiler.Bind("hiprtcGetCode")
	hiprtcGetErrorString    = compiler.Bind("hiprtcGetErrorString")
)

// Constants of the headers.
const (
	success  = 0   // hipSuccess, HIPRTC_SUCCESS
	notReady = 600 // hipErrorNotReady: the work still runs

	attrMultiprocessors = 63 // hipDeviceAttributeMultiprocessorCount

	streamNonBlocking = 0x01 // hipStreamNonBlocking: the stream does not wait for others

	eventBlockingSync  = 0x01 // hipEventBlockingSync
	eventDisableTiming = 0x02 // hipEventDisableTiming

	hostPortable = 0x01       // hipHostMallocPortable
	hostMapped   = 0x02       // hipHostMallocMapped
	hostCoherent = 0x40000000 // hipHostMallocCoherent: the GPU does not cache the memory

	archInR0600 = 1160 // offset of gcnArchName in hipDeviceProp_tR0600
	archInR0000 = 396  // and in the hipDeviceProp_t of HIP 5
	archSize    = 256
)

// loaded is the loaded libraries.
type loaded struct{ lib, rtc *clib.Library }

// load loads both libraries and initializes the runtime.
func (r *loaded) load(files []string) (err error) {
	if r.lib, err = functions.Load(files...); errors.Is(err, clib.ErrNotFound) {
		return fmt.Errorf("%w: is AMD's ROCm installed?", err)
	}
	if err != nil {
		return err
	}
	// The compiler of the same version, or the runtime itself: HIP 5 has it inside.
	dir, name := filepath.Split(r.lib.Path)
	r.rtc, err = compiler.Load(dir + strings.Replace(name, "libamdhip64", "libhiprtc", 1))
	if errors.Is(err, clib.ErrNotFound) {
		r.rtc, err = compiler.Find(r.lib)
	}
	if err != nil {
		return fmt.Errorf("HIP's run-time compiler: %w", err)
	}
	if err := r.call(hipInit, 0); err != nil {
		return fmt.Errorf("%w: is there an AMD GPU, and may this user open /dev/kfd?", err)
	}
	return nil
}

// call calls a function of the runtime and turns its result into an error. Memory that
// the arguments point to stays alive, and does not move, until call returns.
//
//go:uintptrescapes
func (r *loaded) call(f clib.Function, args ...uintptr) error {
	code := int32(r.lib.Call(f, args...))
	if code == success {
		return nil
	}
	return &gpuwork.Error{
		Call: functions.Name(f), Code: int(code), Name: r.lib.Text(hipGetErrorName, uintptr(code)), Text: r.lib.Text(hipGetErrorString, uintptr(code)),
	}
}

// compile calls a function of the compiler and turns its result into an error.
//
//go:uintptrescapes
func (r *loaded) compile(f clib.Function, args ...uintptr) error {
	code := int32(r.rtc.Call(f, args...))
	if code == success {
		return nil
	}
	text := r.rtc.Text(hiprtcGetErrorString, uintptr(code))
	return &gpuwork.Error{Call: compiler.Name(f), Code: int(code), Name: text, Text: "see hiprtc.h"}
}
