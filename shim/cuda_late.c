/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/* Late entry for CUDA: the wait is a stream memory operation, which the device's host engine
 * carries out without the context's compute engine. */
#include "cuda.h"
#include "env.h"
#include "late.h"
#include "park.h"

#include <string.h>

#define CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED 712

/* How commands behave. All others may wait, or are not known: they release. The first argument of
 * every quiet command is its destination. */
static const uint8_t kinds[HOOKS] = {
#define BOTH(symbol, suffix, kind) [HOOK_##symbol] = kind, [HOOK_##symbol##suffix] = kind
    BOTH(cuLaunchKernel, _ptsz, GW_LATE_KERNEL),
    BOTH(cuLaunchKernelEx, _ptsz, GW_LATE_KERNEL),
    BOTH(cuLaunchCooperativeKernel, _ptsz, GW_LATE_KERNEL),
    /* A graph needs one launch, and the program may wait for a host function without a call. */
    BOTH(cuGraphLaunch, _ptsz, GW_LATE_BARS),
    BOTH(cuGraphUpload, _ptsz, GW_LATE_BARS),
    BOTH(cuLaunchHostFunc, _ptsz, GW_LATE_BARS),
    BOTH(cuLaunchHostFunc_v2, _ptsz, GW_LATE_BARS),
    BOTH(cuStreamAddCallback, _ptsz, GW_LATE_BARS),
    [HOOK_cuLaunchCooperativeKernelMultiDevice] = GW_LATE_BARS,
    /* Quiet, unless their memory is the host's: kind_by_memory. */
    BOTH(cuMemcpyHtoDAsync_v2, _ptsz, GW_LATE_QUIET),
    BOTH(cuMemcpyDtoHAsync_v2, _ptsz, GW_LATE_QUIET),
    BOTH(cuMemcpyAsync, _ptsz, GW_LATE_QUIET),
    BOTH(cuMemcpyDtoDAsync_v2, _ptsz, GW_LATE_QUIET),
    BOTH(cuMemcpyDtoD_v2, _ptds, GW_LATE_QUIET),
    BOTH(cuMemsetD8Async, _ptsz, GW_LATE_QUIET),
    BOTH(cuMemsetD16Async, _ptsz, GW_LATE_QUIET),
    BOTH(cuMemsetD32Async, _ptsz, GW_LATE_QUIET),
    BOTH(cuMemsetD2D8Async, _ptsz, GW_LATE_QUIET),
    BOTH(cuMemsetD2D16Async, _ptsz, GW_LATE_QUIET),
    BOTH(cuMemsetD2D32Async, _ptsz, GW_LATE_QUIET),
    BOTH(cuMemsetD8_v2, _ptds, GW_LATE_QUIET),
    BOTH(cuMemsetD16_v2, _ptds, GW_LATE_QUIET),
    BOTH(cuMemsetD32_v2, _ptds, GW_LATE_QUIET),
    BOTH(cuMemcpyHtoD_v2, _ptds, GW_LATE_WAITS),
    BOTH(cuMemcpyDtoH_v2, _ptds, GW_LATE_WAITS),
    BOTH(cuMemcpyHtoA_v2, _ptds, GW_LATE_WAITS),
    BOTH(cuMemcpyAtoH_v2, _ptds, GW_LATE_WAITS),
    BOTH(cuMemcpy2D_v2, _ptds, GW_LATE_WAITS),
    BOTH(cuMemcpy2DUnaligned_v2, _ptds, GW_LATE_WAITS),
    BOTH(cuMemcpy3D_v2, _ptds, GW_LATE_WAITS),
    [HOOK_cuMemcpyHtoD] = GW_LATE_WAITS,
    [HOOK_cuMemcpyDtoH] = GW_LATE_WAITS,
    [HOOK_cuMemcpyHtoA] = GW_LATE_WAITS,
    [HOOK_cuMemcpyAtoH] = GW_LATE_WAITS,
#undef BOTH
};

static struct {
  int (*cuMemHostRegister_v2)(void *, size_t, unsigned);
  int (*cuMemHostGetDevicePointer_v2)(uint64_t *, void *, unsigned);
  int (*cuStreamWaitValue32)(void *, uint64_t, uint32_t, unsigned);
  int (*cuPointerGetAttributes)(unsigned, const int *, void **, uint64_t);
} driver;

/* The second form of the call, since CUDA 11.7, works on every device and needs no option of the
 * kernel module. The first needs one that is off by default, and fails without it. */
static bool find_driver(void) {
  void *wait = gw_library_symbol(&gw_cuda_library, "cuStreamWaitValue32_v2");
  if (!wait) wait = gw_library_symbol(&gw_cuda_library, "cuStreamWaitValue32");
  /* Other threads may be using what was found earlier, which is the same. */
#define STORE(field, symbol) __atomic_store_n((void **)&driver.field, symbol, __ATOMIC_RELAXED)
  STORE(cuMemHostRegister_v2, gw_library_symbol(&gw_cuda_library, "cuMemHostRegister_v2"));
  STORE(cuMemHostGetDevicePointer_v2, gw_library_symbol(&gw_cuda_library, "cuMemHostGetDevicePointer_v2"));
  STORE(cuStreamWaitValue32, wait);
  STORE(cuPointerGetAttributes, gw_library_symbol(&gw_cuda_library, "cuPointerGetAttributes"));
#undef STORE
  return driver.cuMemHostRegister_v2 && driver.cuMemHostGetDevicePointer_v2 && driver.cuStreamWaitValue32 &&
         driver.cuPointerGetAttributes;
}

static uint64_t map(void *area) {
  uint64_t address = 0;
  if (!find_driver()) return 0;
  int captures = cuda_leave_captures();
  int result = driver.cuMemHostRegister_v2(area, GW_LATE_AREA, 3 /* portable, mapped */);
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) {
    if (driver.cuMemHostGetDevicePointer_v2(&address, area, 0) != CUDA_SUCCESS) address = 0;
  }
  cuda_restore_captures(captures);
  return address;
}

/* A stream that is captured gets no wait, which would become a part of the graph: its request enters at
 * once. The gate does not know of every capture. */
static bool put_wait(void *stream, uint64_t word, uint32_t n) {
  void *to = cuda_driver_handle(stream);
  if (!to) return false;
  if (!cuda_runtime.markable(NULL, stream)) return true;
  if (to == LEGACY) to = NULL; /* what every driver takes for it */
  return driver.cuStreamWaitValue32(to, word, n, 0 /* CU_STREAM_WAIT_VALUE_GEQ */) == CUDA_SUCCESS;
}

static const struct gw_late_runtime runtime = {map, put_wait};

void cuda_late_forget(void *ctx) { gw_late_forget(&runtime, ctx); }

enum memory { PAGEABLE, HOST, DEVICE };

/* HOST is pinned or managed memory, of which the program sees what the device writes. Memory that
 * the driver does not know is pageable. */
static enum memory memory_at(uintptr_t address) {
  uint64_t type = 0, managed = 0; /* the driver writes 32 bits */
  const int what[] = {2 /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */, 8 /* CU_POINTER_ATTRIBUTE_IS_MANAGED */};
  void *values[] = {&type, &managed};
  if (!driver.cuPointerGetAttributes || driver.cuPointerGetAttributes(2, what, values, address) != CUDA_SUCCESS || !type) return PAGEABLE;
  return managed || type == 1 /* CU_MEMORYTYPE_HOST */ ? HOST : DEVICE;
}

/*
 * How a quiet command behaves with its memory, while a wait is pending.
 *
 * A copy of pageable memory may wait for the stream. Copies between host and host do, even with an
 * Async call, and so do memsets on HOST memory without a stream ("API synchronization behavior" in
 * CUDA's manual). The others that write to HOST memory release because the program may watch it,
 * with one exception: requests usually end with a copy from the device to pinned memory, for which
 * the program then waits by a call.
 */
static enum gw_late_kind kind_by_memory(int hook, const uintptr_t *a) {
  enum memory to = memory_at(a[0]);
  bool quiet = to != HOST; /* else it is the device's, even if the driver does not know the address */
  switch (hook) {
  case HOOK_cuMemcpyHtoDAsync_v2:
  case HOOK_cuMemcpyHtoDAsync_v2_ptsz: quiet &= a[2] <= CUDA_STAGED_BYTES || memory_at(a[1]) != PAGEABLE; break;
  case HOOK_cuMemcpyDtoHAsync_v2:
  case HOOK_cuMemcpyDtoHAsync_v2_ptsz:
  case HOOK_cuMemcpyAsync:
  case HOOK_cuMemcpyAsync_ptsz: {
    enum memory from = memory_at(a[1]);
    quiet = to == DEVICE ? from != PAGEABLE : to == HOST && from == DEVICE;
    break;
  }
  }
  return quiet ? GW_LATE_QUIET : GW_LATE_RELEASES;
}

static enum gw_late_kind kind_of(int hook, const uintptr_t *a) {
  if (kinds[hook] == GW_LATE_WAITS && cuda_copy_of(hook, a) != CUDA_COPY_OVER) return GW_LATE_RELEASES;
  if (kinds[hook] != GW_LATE_QUIET) return kinds[hook];
  /* Such a copy may be what the program waits for, whether the request has entered late or not. */
  bool to_host = hook == HOOK_cuMemcpyDtoHAsync_v2 || hook == HOOK_cuMemcpyDtoHAsync_v2_ptsz;
  if (to_host && __atomic_load_n(&gw_late_active, __ATOMIC_RELAXED) && memory_at(a[0]) == PAGEABLE) return GW_LATE_WAITS;
  return __atomic_load_n(&gw_late_pending.armed, __ATOMIC_RELAXED) ? kind_by_memory(hook, a) : GW_LATE_QUIET;
}

/* Requests are alike if they begin with the same kernel and grid. */
static uint64_t key_of(int hook, const uintptr_t *a) {
  uint64_t key = a[0];
  if (hook == HOOK_cuLaunchKernelEx || hook == HOOK_cuLaunchKernelEx_ptsz) {
    unsigned shape[3] = {0};
    if (a[0]) memcpy(shape, (const void *)a[0], sizeof shape);
    key = a[1];
    for (int i = 0; i < 3; i++) key = key * 0x9e3779b97f4a7c15ull + shape[i];
    return key;
  }
  for (int i = 1; i < 4; i++) key = key * 0x9e3779b97f4a7c15ull + a[i];
  return key;
}

void cuda_late(int hook, const gw_pass *pass, const uintptr_t *arguments) {
  if (gw_env()->launches_block) return; /* a launch behind the wait would not return until it is released */
  enum gw_late_kind kind = kind_of(hook, arguments);
  if (kind == GW_LATE_KERNEL && __atomic_load_n(&cuda_parked, __ATOMIC_RELAXED)) {
    kind = GW_LATE_BARS; /* the device was taken for this request ahead of time */
  }
  gw_late_command(&runtime, kind, pass->ctx, pass->stream, kind == GW_LATE_KERNEL ? key_of(hook, arguments) : 0);
}
