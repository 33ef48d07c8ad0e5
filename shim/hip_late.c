/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#include "hip_late.h"

#include "hook.h"

enum {
  hipSuccess = 0,
  hipErrorHostMemoryAlreadyRegistered = 712,
  hipHostRegisterPortable = 1,
  hipHostRegisterMapped = 2,
  hipStreamWaitValueGte = 0,
  hipStreamCaptureModeRelaxed = 2,
};

extern struct gw_library gw_hip_library;

static struct {
  int (*hipHostRegister)(void *, size_t, uint32_t);
  int (*hipHostGetDevicePointer)(void **, void *, uint32_t);
  int (*hipStreamWaitValue32)(void *, void *, uint32_t, uint32_t, uint32_t);
  int (*hipStreamIsCapturing)(void *, int *);
  int (*hipThreadExchangeStreamCaptureMode)(int *);
} hip;

static bool find_functions(void) {
#define FIND(name) __atomic_store_n((void **)&hip.name, gw_library_symbol(&gw_hip_library, #name), __ATOMIC_RELAXED)
  FIND(hipHostRegister), FIND(hipHostGetDevicePointer), FIND(hipStreamWaitValue32);
  FIND(hipStreamIsCapturing), FIND(hipThreadExchangeStreamCaptureMode);
#undef FIND
  return hip.hipHostRegister && hip.hipHostGetDevicePointer && hip.hipStreamWaitValue32 && hip.hipStreamIsCapturing &&
         hip.hipThreadExchangeStreamCaptureMode;
}

/* hipHostRegister invalidates captures, unless this thread has chosen the relaxed mode. */
static uint64_t map(void *area) {
  void *address = NULL;
  int mode = hipStreamCaptureModeRelaxed;
  if (!find_functions() || gw_hip_own(hip.hipThreadExchangeStreamCaptureMode(&mode)) != hipSuccess) return 0;
  int result = gw_hip_own(hip.hipHostRegister(area, GW_LATE_AREA, hipHostRegisterPortable | hipHostRegisterMapped));
  bool registered = result == hipSuccess || result == hipErrorHostMemoryAlreadyRegistered;
  if (!registered || gw_hip_own(hip.hipHostGetDevicePointer(&address, area, 0)) != hipSuccess) address = NULL;
  hip.hipThreadExchangeStreamCaptureMode(&mode); /* the program's own */
  return (uint64_t)(uintptr_t)address;
}

/*
 * A stream that is captured gets no wait, and its request enters at once. ROCm's clr does not look:
 * it would stop the stream of a captured command that never runs there.
 *
 * HIP compares numbers without regard to wrapping. late_word.h sets the word to n - 1 first, so
 * that this makes no difference.
 */
static bool put_wait(void *stream, uint64_t word, uint32_t n) {
  int capturing = 0;
  if (!gw_hip_lock_captures()) return true;
  bool free = gw_hip_own(hip.hipStreamIsCapturing(stream, &capturing)) == hipSuccess && !capturing;
  bool ok = !free || gw_hip_own(hip.hipStreamWaitValue32(stream, (void *)(uintptr_t)word, n, hipStreamWaitValueGte, 0xffffffff)) == hipSuccess;
  gw_hip_unlock_captures();
  return ok;
}

static const struct gw_late_runtime runtime = {map, put_wait};

void gw_hip_late_forget(void *ctx) { gw_late_forget(&runtime, ctx); }

void gw_hip_late(enum gw_late_kind kind, void *ctx, void *stream, uint64_t key) {
  if (GW_READ(late_entry) == GW_LATE_AUTO) {
    gw_late_may_wait(); /* the setting may have been GW_LATE_ON */
    return;
  }
  gw_late_command(&runtime, kind, ctx, stream, key);
}
