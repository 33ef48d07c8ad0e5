/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/* The CUDA driver's calls that put work on a stream, and how programs find them. */
#include "cuda.h"
#include "late.h"
#include "park.h"

#include <stddef.h>
#include <string.h>

typedef void *P;
typedef unsigned long long D;
typedef unsigned D1;
typedef size_t Z;
typedef unsigned U;
typedef int I;
typedef unsigned short H;
typedef unsigned char B;

/* CUlaunchConfig: grid and block of three words each, shared memory, then the stream. */
static void *stream_of_config(const void *config) {
  struct {
    unsigned shape[7];
    void *stream;
  } c = {0};
  if (config) memcpy(&c, config, sizeof c);
  return c.stream;
}

/* The same for cuLaunchKernelEx, whose attributes may record events. */
static void *stream_of_launch(const void *config) {
  enum { PROGRAMMATIC_EVENT = 7, LAUNCH_COMPLETION_EVENT = 12 }; /* CUlaunchAttributeID */
  struct attribute { /* CUlaunchAttribute, of 72 bytes */
    int id;
    union {
      void *event; /* the first field of both values */
      char size[64];
    } value;
  };
  struct {
    unsigned shape[7];
    void *stream;
    const struct attribute *attributes;
    unsigned count;
  } c = {0};
  if (config) memcpy(&c, config, sizeof c);
  for (unsigned i = 0; c.attributes && i < c.count; i++) {
    int id = c.attributes[i].id;
    if (id == PROGRAMMATIC_EVENT || id == LAUNCH_COMPLETION_EVENT) cuda_event_recorded_elsewhere(c.attributes[i].value.event);
  }
  return c.stream;
}

/* CUDA_LAUNCH_PARAMS: the function, then the same. It launches on several devices, and passes
 * the gate once, for the first of them. */
static void *stream_of_first(const void *list, unsigned devices) {
  return list && devices ? stream_of_config((const char *)list + sizeof(void *)) : NULL;
}

/* Parameter and argument lists a1, a2, ... */
#define COUNT(...) COUNT_(__VA_ARGS__, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1)
#define COUNT_(a, b, c, d, e, f, g, h, i, j, k, n, ...) n
#define GLUE(a, b) GLUE_(a, b)
#define GLUE_(a, b) a##b
#define PARAMS(...) GLUE(PARAMS_, COUNT(__VA_ARGS__))(__VA_ARGS__)
#define PARAMS_1(a) a a1
#define PARAMS_2(a, b) PARAMS_1(a), b a2
#define PARAMS_3(a, b, c) PARAMS_2(a, b), c a3
#define PARAMS_4(a, b, c, d) PARAMS_3(a, b, c), d a4
#define PARAMS_5(a, b, c, d, e) PARAMS_4(a, b, c, d), e a5
#define PARAMS_6(a, b, c, d, e, f) PARAMS_5(a, b, c, d, e), f a6
#define PARAMS_7(a, b, c, d, e, f, g) PARAMS_6(a, b, c, d, e, f), g a7
#define PARAMS_8(a, b, c, d, e, f, g, h) PARAMS_7(a, b, c, d, e, f, g), h a8
#define PARAMS_9(a, b, c, d, e, f, g, h, i) PARAMS_8(a, b, c, d, e, f, g, h), i a9
#define PARAMS_10(a, b, c, d, e, f, g, h, i, j) PARAMS_9(a, b, c, d, e, f, g, h, i), j a10
#define PARAMS_11(a, b, c, d, e, f, g, h, i, j, k) PARAMS_10(a, b, c, d, e, f, g, h, i, j), k a11
#define ARGS(...) GLUE(ARGS_, COUNT(__VA_ARGS__))
#define ARGS_1 a1
#define ARGS_2 ARGS_1, a2
#define ARGS_3 ARGS_2, a3
#define ARGS_4 ARGS_3, a4
#define ARGS_5 ARGS_4, a5
#define ARGS_6 ARGS_5, a6
#define ARGS_7 ARGS_6, a7
#define ARGS_8 ARGS_7, a8
#define ARGS_9 ARGS_8, a9
#define ARGS_10 ARGS_9, a10
#define ARGS_11 ARGS_10, a11
#define WORDS(...) GLUE(WORDS_, COUNT(__VA_ARGS__))
#define WORDS_1 (uintptr_t)a1
#define WORDS_2 WORDS_1, (uintptr_t)a2
#define WORDS_3 WORDS_2, (uintptr_t)a3
#define WORDS_4 WORDS_3, (uintptr_t)a4
#define WORDS_5 WORDS_4, (uintptr_t)a5
#define WORDS_6 WORDS_5, (uintptr_t)a6
#define WORDS_7 WORDS_6, (uintptr_t)a7
#define WORDS_8 WORDS_7, (uintptr_t)a8
#define WORDS_9 WORDS_8, (uintptr_t)a9
#define WORDS_10 WORDS_9, (uintptr_t)a10
#define WORDS_11 WORDS_10, (uintptr_t)a11

/* Before a command, if late entry is on. */
#define LATE(symbol, ...) \
  if (gw_late_wanted()) cuda_late(HOOK_##symbol, &pass, (const uintptr_t[]){WORDS(__VA_ARGS__)})

/* CUDA_MEMCPY2D and CUDA_MEMCPY3D: where the types of memory are. */
static bool is_to_host(uintptr_t descriptor, size_t from, size_t to) {
  enum { HOST_MEMORY = 1, DEVICE_MEMORY, ARRAY }; /* CUmemorytype */
  unsigned types[2];
  if (!descriptor) return false;
  memcpy(&types[0], (const char *)descriptor + from, sizeof types[0]);
  memcpy(&types[1], (const char *)descriptor + to, sizeof types[1]);
  return (types[0] == DEVICE_MEMORY || types[0] == ARRAY) && types[1] == HOST_MEMORY;
}

enum cuda_copy cuda_copy_of(int hook, const uintptr_t *a) {
  switch (hook) {
  case HOOK_cuMemcpyHtoD:
  case HOOK_cuMemcpyHtoD_v2:
  case HOOK_cuMemcpyHtoD_v2_ptds: return a[2] > CUDA_STAGED_BYTES ? CUDA_COPY_OVER : CUDA_COPY_TAKEN;
  case HOOK_cuMemcpyHtoA:
  case HOOK_cuMemcpyHtoA_v2:
  case HOOK_cuMemcpyHtoA_v2_ptds: return a[3] > CUDA_STAGED_BYTES ? CUDA_COPY_OVER : CUDA_COPY_TAKEN;
  case HOOK_cuMemcpy2D_v2:
  case HOOK_cuMemcpy2D_v2_ptds:
  case HOOK_cuMemcpy2DUnaligned_v2:
  case HOOK_cuMemcpy2DUnaligned_v2_ptds: return is_to_host(a[0], 16, 72) ? CUDA_COPY_OVER : CUDA_COPY_RUNS;
  case HOOK_cuMemcpy3D_v2:
  case HOOK_cuMemcpy3D_v2_ptds: return is_to_host(a[0], 32, 120) ? CUDA_COPY_OVER : CUDA_COPY_RUNS;
  }
  return CUDA_COPY_OVER;
}

/* Whether a command is a kernel or a graph. For others, such as copies and functions of the host, the
 * device's compute engine does not switch contexts. */
#define BEGINS_WITH(symbol, name) (__builtin_strncmp(#symbol, name, sizeof name - 1) == 0)
#define IS_KERNEL(symbol) \
  ((BEGINS_WITH(symbol, "cuLaunch") && !BEGINS_WITH(symbol, "cuLaunchHost")) || BEGINS_WITH(symbol, "cuGraphLaunch"))

/* COMMAND: the command may still run when the call returns. COPY: see cuda_copy_of. */
#define COMMAND(symbol, if_null, stream, ...)                                                   \
  EXPORTED int symbol(PARAMS(__VA_ARGS__)) {                                                    \
    int (*real)(__VA_ARGS__) = REAL(symbol);                                                    \
    gw_pass pass;                                                                               \
    void *ctx = cuda_context_for((void *)(stream));                                             \
    if (!real) return CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;                                \
    if (!gw_enter(&pass, &cuda_runtime, ctx, cuda_stream((void *)(stream), if_null)))           \
      return real(ARGS(__VA_ARGS__));                                                           \
    LATE(symbol, __VA_ARGS__);                                                                  \
    cuda_launching(IS_KERNEL(symbol));                                                          \
    int result = real(ARGS(__VA_ARGS__));                                                       \
    cuda_launched(ctx, IS_KERNEL(symbol));                                                      \
    gw_leave(&pass, result == CUDA_SUCCESS);                                                    \
    return result;                                                                              \
  }
#define COPY(symbol, if_null, ...)                                                          \
  EXPORTED int symbol(PARAMS(__VA_ARGS__)) {                                                \
    int (*real)(__VA_ARGS__) = REAL(symbol);                                                \
    void *ctx = cuda_context(), *stream = cuda_stream(NULL, if_null);                       \
    gw_pass pass;                                                                           \
    if (!real) return CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;                            \
    if (!gw_enter(&pass, &cuda_runtime, ctx, stream)) return real(ARGS(__VA_ARGS__));       \
    uint64_t ticket = gw_ticket(&cuda_runtime, ctx, GW_ALL);                                \
    enum cuda_copy copy = cuda_copy_of(HOOK_##symbol, (uintptr_t[]){WORDS(__VA_ARGS__)});   \
    LATE(symbol, __VA_ARGS__);                                                              \
    cuda_unpark();                                                                          \
    int result = real(ARGS(__VA_ARGS__));                                                   \
    if (copy == CUDA_COPY_RUNS) gw_leave(&pass, result == CUDA_SUCCESS);                    \
    else gw_leave_done(&pass, result == CUDA_SUCCESS);                                      \
    if (result == CUDA_SUCCESS && copy == CUDA_COPY_OVER) cuda_copied(ctx, stream, ticket); \
    return result;                                                                          \
  }

#define ASYNC(symbol, name, since, stream, ...) \
  COMMAND(symbol, LEGACY, stream, __VA_ARGS__) COMMAND(symbol##_ptsz, PER_THREAD, stream, __VA_ARGS__)
#define SYNC(symbol, name, since, stream, ...) \
  COMMAND(symbol, LEGACY, stream, __VA_ARGS__) COMMAND(symbol##_ptds, PER_THREAD, stream, __VA_ARGS__)
#define HOST(symbol, name, since, stream, ...) \
  COPY(symbol, LEGACY, __VA_ARGS__) COPY(symbol##_ptds, PER_THREAD, __VA_ARGS__)
#define OLD_ASYNC(symbol, name, since, stream, ...) COMMAND(symbol, LEGACY, stream, __VA_ARGS__)
#define OLD_SYNC OLD_ASYNC
#define OLD_HOST(symbol, name, since, stream, ...) COPY(symbol, LEGACY, __VA_ARGS__)
#define OTHER(symbol, name, since, per_thread) int symbol();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include "cuda_calls.h"
#pragma GCC diagnostic pop

#define ROW(symbol) [HOOK_##symbol] = {#symbol, (void *)symbol, NULL},
#define ASYNC(symbol, ...) ROW(symbol) ROW(symbol##_ptsz)
#define SYNC(symbol, ...) ROW(symbol) ROW(symbol##_ptds)
#define HOST SYNC
#define OLD_ASYNC(symbol, ...) ROW(symbol)
#define OLD_SYNC OLD_ASYNC
#define OLD_HOST OLD_ASYNC
#define OTHER OLD_ASYNC
struct gw_hook cuda_hooks[HOOKS] = {
#include "cuda_calls.h"
};
#undef ROW

static void forked(void) {
  cuda_marks_forked();
  cuda_events_forked();
  cuda_contexts_forked();
  cuda_park_forked();
}

struct gw_library gw_cuda_library = {
    .stem = "libcuda.so",
    .prefix = "cu",
    .hooks = cuda_hooks,
    .count = HOOKS,
    .forked = forked,
    .thread_ends = cuda_thread_ends,
    .ready = cuda_park_ready,
    .expect = cuda_park_expect,
};

/* Which hook cuGetProcAddress means by a name; the rows are parallel to cuda_hooks. */
static const struct name_row {
  const char *name;
  int since;
  int per_thread; /* whether it is the form for the per-thread default stream */
} name_rows[HOOKS] = {
#define ROW(symbol, ...) [HOOK_##symbol] = {__VA_ARGS__},
#define PER_THREAD_SINCE(since) ((since) > 7000 ? (since) : 7000)
#define ASYNC(symbol, name, since, ...) \
  ROW(symbol, name, since, 0) ROW(symbol##_ptsz, name, PER_THREAD_SINCE(since), 1)
#define SYNC(symbol, name, since, ...) \
  ROW(symbol, name, since, 0) ROW(symbol##_ptds, name, PER_THREAD_SINCE(since), 1)
#define HOST SYNC
#define OLD_ASYNC(symbol, name, since, ...) ROW(symbol, name, since, 0)
#define OLD_SYNC OLD_ASYNC
#define OLD_HOST OLD_ASYNC
#define OTHER(symbol, name, since, per_thread) ROW(symbol, name, since, per_thread)
#include "cuda_calls.h"
};

/* The newest CUDA version for which the table above was checked. */
#define NEWEST_KNOWN 13049
#define PER_THREAD_FLAG 2u /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */

/* The hook that a name means in a version, or NULL. */
static struct gw_hook *hook_for(const char *name, int version, bool per_thread) {
  int best = -1;
  for (int i = 0; i < HOOKS; i++) {
    const struct name_row *m = &name_rows[i], *b = best < 0 ? NULL : &name_rows[best];
    if (strcmp(m->name, name) != 0 || m->since > version || m->per_thread > per_thread) continue;
    /* The per-thread form if there is one, then the newest. */
    if (!b || m->per_thread > b->per_thread || (m->per_thread == b->per_thread && m->since > b->since)) best = i;
  }
  /* The driver knows this function by a second name too, since an earlier version. */
  if (best < 0 && version >= 11040 && strcmp(name, "cuGraphInstantiateWithFlags") == 0) best = HOOK_cuGraphInstantiateWithFlags;
  return best < 0 ? NULL : &cuda_hooks[best];
}

/*
 * Replaces the function that the driver has found by its wrapper. The exported symbol with the
 * same address tells which function it is. If the driver returns an address that it does not
 * export, the table decides, provided that it is valid for that version.
 */
static void *wrapper_for(void *found, const char *name, int version, uint64_t flags) {
  if (!found || !name) return found;
  struct gw_hook *hook = hook_for(name, version, (flags & PER_THREAD_FLAG) != 0);
  /* A driver that looks its per_thread symbols up by name gets the wrapper already. */
  if (!hook || gw_hook_is_ours(&gw_cuda_library, found)) return found;
  if (gw_library_symbol(&gw_cuda_library, hook->name) != found) {
    bool known = version <= NEWEST_KNOWN;
    for (int i = 0; i < HOOKS; i++) {
      if (strcmp(name_rows[i].name, name) != 0) continue;
      if (gw_library_symbol(&gw_cuda_library, cuda_hooks[i].name) != found) continue;
      hook = &cuda_hooks[i];
      known = true;
    }
    if (!known) return found;
  }
  __atomic_store_n(&hook->real, found, __ATOMIC_RELAXED);
  return hook->wrapper;
}

EXPORTED int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags) {
  int (*real)(const char *, void **, int, uint64_t) = REAL(cuGetProcAddress);
  if (!real) return CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;
  int result = real(name, found, version, flags);
  if (result == CUDA_SUCCESS && found) *found = wrapper_for(*found, name, version, flags);
  return result;
}

EXPORTED int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, void *status) {
  int (*real)(const char *, void **, int, uint64_t, void *) = REAL(cuGetProcAddress_v2);
  if (!real) return CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;
  int result = real(name, found, version, flags, status);
  if (result == CUDA_SUCCESS && found) *found = wrapper_for(*found, name, version, flags);
  return result;
}
