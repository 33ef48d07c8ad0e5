package hip

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestHeaders compiles the constants of this package, and a call of each function with the
// arguments' types, against HIP's own headers, where they are installed.
func TestHeaders(t *testing.T) {
	include := os.Getenv("HIP_INCLUDE")
	for _, dir := range []string{"/usr/include", "/opt/rocm/include"} {
		if _, err := os.Stat(filepath.Join(dir, "hip/hip_runtime_api.h")); err == nil && include == "" {
			include = dir
		}
	}
	cc, err := exec.LookPath("cc")
	if include == "" || err != nil {
		t.Skip("no HIP headers (Debian: libamdhip64-dev), or no C compiler")
	}
	var text strings.Builder
	fmt.Fprintln(&text, `#define __HIP_PLATFORM_AMD__ 1
#include <stddef.h>
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>`)
	for name, value := range map[string]int{
		"hipSuccess": success, "HIPRTC_SUCCESS": success, "hipErrorNotReady": notReady,
		"hipDeviceAttributeMultiprocessorCount": attrMultiprocessors, "hipStreamNonBlocking": streamNonBlocking,
		"hipEventBlockingSync": eventBlockingSync, "hipEventDisableTiming": eventDisableTiming,
		"hipHostMallocPortable": hostPortable, "hipHostMallocMapped": hostMapped, "hipHostMallocCoherent": hostCoherent,
		"hipDeviceScheduleSpin": 1, "hipDeviceScheduleBlockingSync": 4, "sizeof(hipUUID)": 16,
		"sizeof(((hipDeviceProp_t *)0)->gcnArchName)": archSize,
	} {
		fmt.Fprintf(&text, "_Static_assert(%s == %d, \"%s\");\n", name, value, name)
	}
	fmt.Fprintf(&text, `_Static_assert(offsetof(hipDeviceProp_t, gcnArchName) == %d || offsetof(hipDeviceProp_t, gcnArchName) == %d, "gcnArchName");
_Static_assert(sizeof(hipDeviceProp_t) < 65536, "size");
`, archInR0600, archInR0000)
	for name, signature := range map[string]string{
		"hipInit": "(unsigned)", "hipRuntimeGetVersion": "(int *)", "hipGetDeviceCount": "(int *)", "hipSetDevice": "(int)", "hipSetDeviceFlags": "(unsigned)",
		"hipDeviceGetName": "(char *, int, int)", "hipDeviceGetUuid": "(hipUUID *, int)", "hipDeviceGetAttribute": "(int *, hipDeviceAttribute_t, int)",
		"hipModuleLoadData": "(hipModule_t *, const void *)", "hipModuleGetFunction": "(hipFunction_t *, hipModule_t, const char *)",
		"hipModuleOccupancyMaxActiveBlocksPerMultiprocessor": "(int *, hipFunction_t, int, size_t)",
		"hipModuleLaunchKernel":                              "(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, hipStream_t, void **, void **)",
		"hipStreamCreateWithFlags":                           "(hipStream_t *, unsigned)", "hipStreamSynchronize": "(hipStream_t)",
		"hipEventCreateWithFlags": "(hipEvent_t *, unsigned)", "hipEventRecord": "(hipEvent_t, hipStream_t)", "hipEventSynchronize": "(hipEvent_t)",
		"hipEventQuery": "(hipEvent_t)", "hipEventElapsedTime": "(float *, hipEvent_t, hipEvent_t)", "hipMalloc": "(void **, size_t)",
		"hipHostMalloc": "(void **, size_t, unsigned)", "hipHostGetDevicePointer": "(void **, void *, unsigned)",
	} {
		fmt.Fprintf(&text, "hipError_t (*check_%s)%s = %s;\n", name, signature, name)
	}
	for name, signature := range map[string]string{
		"hiprtcCreateProgram":  "(hiprtcProgram *, const char *, const char *, int, const char **, const char **)",
		"hiprtcDestroyProgram": "(hiprtcProgram *)", "hiprtcCompileProgram": "(hiprtcProgram, int, const char **)",
		"hiprtcGetProgramLogSize": "(hiprtcProgram, size_t *)", "hiprtcGetProgramLog": "(hiprtcProgram, char *)",
		"hiprtcGetCodeSize": "(hiprtcProgram, size_t *)", "hiprtcGetCode": "(hiprtcProgram, char *)",
	} {
		fmt.Fprintf(&text, "hiprtcResult (*check_%s)%s = (hiprtcResult(*)%s)%s;\n", name, signature, signature, name)
	}
	file := filepath.Join(t.TempDir(), "check.c")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-std=gnu11", "-Wno-deprecated-declarations", "-Werror=incompatible-pointer-types", "-I", include, "-fsyntax-only", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\n%s", err, out, text.String())
	}
}
