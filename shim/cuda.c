/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/* The CUDA driver: the calls that put work on a stream, and how they are found. */
#include "cuda.h"
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

/* CUlaunchConfig: grid and block of three, shared memory, then the stream. */
static void *stream_of_config(const void *config) {
  struct {
    unsigned shape[7];
    void *stream;
  } c = {0};
  if (config) memcpy(&c, config, sizeof c);
  return c.stream;
}

/* CUDA_LAUNCH_PARAMS: the function before the same. One command on each of
 * several devices; it passes the gate once, as the first. */
static void *stream_of_first(const void *list, unsigned devices) {
  return list && devices ? stream_of_config((const char *)list + sizeof(void *)) : NULL;
}

/* a1, a2, ... with types and without. */
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

/* A command that may go on after the call, and one that is over with it. */
#define COMMAND(symbol, if_null, stream, ...)                                                   \
  EXPORTED int symbol(PARAMS(__VA_ARGS__)) {                                                    \
    int (*real)(__VA_ARGS__) = REAL(symbol);                                                    \
    gw_pass pass;                                                                               \
    void *ctx = cuda_context_for((void *)(stream));                                             \
    if (!real) return CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;                                \
    if (!gw_enter(&pass, &cuda_runtime, ctx, cuda_stream((void *)(stream), if_null)))           \
      return real(ARGS(__VA_ARGS__));                                                           \
    cuda_launching();                                                                           \
    int result = real(ARGS(__VA_ARGS__));                                                       \
    cuda_arrived(ctx);                                                                          \
    gw_leave(&pass, result == CUDA_SUCCESS);                                                    \
    return result;                                                                              \
  }
#define COPY(symbol, if_null, ...)                                              \
  EXPORTED int symbol(PARAMS(__VA_ARGS__)) {                                    \
    int (*real)(__VA_ARGS__) = REAL(symbol);                                    \
    void *ctx = cuda_context(), *stream = cuda_stream(NULL, if_null);           \
    gw_pass pass;                                                               \
    if (!real) return CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;                \
    if (!gw_enter(&pass, &cuda_runtime, ctx, stream)) return real(ARGS(__VA_ARGS__)); \
    uint64_t ticket = gw_ticket(&cuda_runtime, ctx, GW_ALL);                    \
    cuda_arrived(ctx);                                                          \
    int result = real(ARGS(__VA_ARGS__));                                       \
    gw_leave_done(&pass, result == CUDA_SUCCESS);                               \
    if (result == CUDA_SUCCESS) cuda_copied(ctx, stream, ticket);               \
    return result;                                                              \
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
#define OTHER(symbol, name, since, own) int symbol();
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
  cuda_park_forked();
}

struct gw_library gw_cuda_library = {
    .file = "libcuda.so.1",
    .stem = "libcuda.so",
    .prefix = "cu",
    .hooks = cuda_hooks,
    .count = HOOKS,
    .forked = forked,
    .ready = cuda_park_ready,
    .expect = cuda_park_expect,
};

/* What cuGetProcAddress means by a name, beside the table of hooks. */
static const struct meaning {
  const char *name;
  int since;
  int own; /* the form for the thread's own default stream */
} meanings[HOOKS] = {
#define ROW(symbol, ...) [HOOK_##symbol] = {__VA_ARGS__},
#define OWN_SINCE(since) ((since) > 7000 ? (since) : 7000)
#define ASYNC(symbol, name, since, ...) \
  ROW(symbol, name, since, 0) ROW(symbol##_ptsz, name, OWN_SINCE(since), 1)
#define SYNC(symbol, name, since, ...) \
  ROW(symbol, name, since, 0) ROW(symbol##_ptds, name, OWN_SINCE(since), 1)
#define HOST SYNC
#define OLD_ASYNC(symbol, name, since, ...) ROW(symbol, name, since, 0)
#define OLD_SYNC OLD_ASYNC
#define OLD_HOST OLD_ASYNC
#define OTHER(symbol, name, since, own) ROW(symbol, name, since, own)
#include "cuda_calls.h"
};

/* The newest CUDA whose meaning of every name above we have read. */
#define KNOWN_VERSION 13049
#define OWN_STREAM_FLAG 2u /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */

/* The hook that a name stands for at a version, or NULL. */
static struct gw_hook *meant(const char *name, int version, bool own) {
  int best = -1;
  for (int i = 0; i < HOOKS; i++) {
    const struct meaning *m = &meanings[i], *b = best < 0 ? NULL : &meanings[best];
    if (strcmp(m->name, name) != 0 || m->since > version || m->own > own) continue;
    /* Its form for the thread's stream, where there is one; then the newest. */
    if (!b || m->own > b->own || (m->own == b->own && m->since > b->since)) best = i;
  }
  return best < 0 ? NULL : &cuda_hooks[best];
}

/*
 * Ours in place of what the driver has found. The symbol whose address it is
 * says best which it is. A driver that gives out other addresses than it exports
 * is taken at its word, as long as we know what the word means in that version.
 */
static void *in_place_of(void *found, const char *name, int version, uint64_t flags) {
  if (!found || !name) return found;
  struct gw_hook *hook = meant(name, version, (flags & OWN_STREAM_FLAG) != 0);
  /* A driver whose table names its symbols gets ours, as everybody does. */
  if (!hook || gw_hook_is_ours(&gw_cuda_library, found)) return found;
  if (gw_library_symbol(&gw_cuda_library, hook->name) != found) {
    bool known = version <= KNOWN_VERSION;
    for (int i = 0; i < HOOKS; i++) {
      if (strcmp(meanings[i].name, name) != 0) continue;
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
  if (result == CUDA_SUCCESS && found) *found = in_place_of(*found, name, version, flags);
  return result;
}

EXPORTED int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, void *status) {
  int (*real)(const char *, void **, int, uint64_t, void *) = REAL(cuGetProcAddress_v2);
  if (!real) return CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;
  int result = real(name, found, version, flags, status);
  if (result == CUDA_SUCCESS && found) *found = in_place_of(*found, name, version, flags);
  return result;
}
