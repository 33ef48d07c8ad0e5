/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#include "hip_late.h"

#include "hook.h"

enum { hipSuccess = 0, hipErrorHostMemoryAlreadyRegistered = 712, hipHostRegisterPortableMapped = 3, hipStreamWaitValueGte = 0 };

extern struct gw_library gw_hip_library;

static struct {
  int (*hipHostRegister)(void *, size_t, uint32_t);
  int (*hipHostGetDevicePointer)(void **, void *, uint32_t);
  int (*hipStreamWaitValue32)(void *, void *, uint32_t, uint32_t, uint32_t);
} hip;

static uint64_t map(void *area) {
#define FIND(name) __atomic_store_n((void **)&hip.name, gw_library_symbol(&gw_hip_library, #name), __ATOMIC_RELAXED)
  FIND(hipHostRegister), FIND(hipHostGetDevicePointer), FIND(hipStreamWaitValue32);
#undef FIND
  if (!hip.hipHostRegister || !hip.hipHostGetDevicePointer || !hip.hipStreamWaitValue32) return 0;
  void *address = NULL;
  int result = hip.hipHostRegister(area, GW_LATE_AREA, hipHostRegisterPortableMapped);
  if (result != hipSuccess && result != hipErrorHostMemoryAlreadyRegistered) return 0;
  return hip.hipHostGetDevicePointer(&address, area, 0) == hipSuccess ? (uint64_t)(uintptr_t)address : 0;
}

/* HIP compares numbers without regard to wrapping. late_word.h sets the word to n - 1 first, so
 * that this makes no difference. */
static bool put_wait(void *stream, uint64_t word, uint32_t n) {
  return hip.hipStreamWaitValue32(stream, (void *)(uintptr_t)word, n, hipStreamWaitValueGte, 0xffffffff) == hipSuccess;
}

static const struct gw_late_runtime runtime = {map, put_wait};

void gw_hip_late(enum gw_late_kind kind, void *ctx, void *stream, uint64_t key) {
  if (GW_READ(late_entry) == GW_LATE_AUTO) {
    gw_late_may_wait(); /* the setting may have been GW_LATE_ON */
    return;
  }
  gw_late_command(&runtime, kind, ctx, stream, key);
}
