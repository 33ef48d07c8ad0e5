/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA programs that know nothing of the shim, for fakecuda.c.
 *
 *     cudawork LOOKUP TEST [NUMBERS]
 *
 * LOOKUP is how the program finds the driver: "linked" (only if built so), "dlsym", or the
 * CUDA version to ask cuGetProcAddress for, with a p appended for per-thread default streams.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../giveway.h"

typedef unsigned long long ptr;
typedef unsigned U;

/* symbol, suffix for per-thread streams, name for cuGetProcAddress, arguments */
#define CALLS(F, G)                                                                                            \
  F(cuInit, , cuInit, U)                                                                                       \
  F(cuMemAlloc_v2, , cuMemAlloc, ptr *, size_t)                                                                \
  F(cuMemFree_v2, , cuMemFree, ptr)                                                                            \
  F(cuMemHostAlloc, , cuMemHostAlloc, void **, size_t, U)                                                      \
  F(cuMemAllocManaged, , cuMemAllocManaged, ptr *, size_t, U)                                                  \
  F(cuStreamCreate, , cuStreamCreate, void **, U)                                                              \
  F(cuStreamCreateWithPriority, , cuStreamCreateWithPriority, void **, U, int)                                 \
  F(cuStreamDestroy_v2, , cuStreamDestroy, void *)                                                             \
  F(cuStreamSynchronize, _ptsz, cuStreamSynchronize, void *)                                                   \
  F(cuStreamQuery, _ptsz, cuStreamQuery, void *)                                                               \
  F(cuCtxSynchronize, , cuCtxSynchronize, void)                                                                \
  F(cuCtxGetCurrent, , cuCtxGetCurrent, void **)                                                               \
  F(cuCtxCreate_v2, , cuCtxCreate, void **, U, int)                                                            \
  F(cuCtxSetCurrent, , cuCtxSetCurrent, void *)                                                                \
  F(cuCtxDestroy_v2, , cuCtxDestroy, void *)                                                                   \
  F(cuLaunchKernel, _ptsz, cuLaunchKernel, void *, U, U, U, U, U, U, U, void *, void **, void **)              \
  F(cuLaunchKernelEx, _ptsz, cuLaunchKernelEx, void *, void *, void **, void **)                               \
  F(cuLaunchCooperativeKernel, _ptsz, cuLaunchCooperativeKernel, void *, U, U, U, U, U, U, U, void *, void **) \
  F(cuMemcpyHtoD_v2, _ptds, cuMemcpyHtoD, ptr, const void *, size_t)                                           \
  F(cuMemcpyDtoH_v2, _ptds, cuMemcpyDtoH, void *, ptr, size_t)                                                 \
  F(cuMemcpyDtoD_v2, _ptds, cuMemcpyDtoD, ptr, ptr, size_t)                                                    \
  F(cuMemcpyHtoDAsync_v2, _ptsz, cuMemcpyHtoDAsync, ptr, const void *, size_t, void *)                         \
  F(cuMemcpyDtoHAsync_v2, _ptsz, cuMemcpyDtoHAsync, void *, ptr, size_t, void *)                               \
  F(cuMemcpyDtoDAsync_v2, _ptsz, cuMemcpyDtoDAsync, ptr, ptr, size_t, void *)                                  \
  F(cuMemcpyAsync, _ptsz, cuMemcpyAsync, ptr, ptr, size_t, void *)                                             \
  F(cuMemcpyPeerAsync, _ptsz, cuMemcpyPeerAsync, ptr, void *, ptr, void *, size_t, void *)                     \
  F(cuMemsetD8_v2, _ptds, cuMemsetD8, ptr, unsigned char, size_t)                                              \
  F(cuMemsetD32Async, _ptsz, cuMemsetD32Async, ptr, U, size_t, void *)                                         \
  F(cuMemAllocAsync, _ptsz, cuMemAllocAsync, ptr *, size_t, void *)                                            \
  F(cuMemFreeAsync, _ptsz, cuMemFreeAsync, ptr, void *)                                                        \
  F(cuEventCreate, , cuEventCreate, void **, U)                                                                \
  F(cuEventRecord, _ptsz, cuEventRecord, void *, void *)                                                       \
  F(cuEventQuery, , cuEventQuery, void *)                                                                      \
  F(cuEventSynchronize, , cuEventSynchronize, void *)                                                          \
  F(cuEventDestroy_v2, , cuEventDestroy, void *)                                                               \
  F(cuStreamWaitEvent, _ptsz, cuStreamWaitEvent, void *, void *, U)                                            \
  F(cuStreamBeginCapture_v2, _ptsz, cuStreamBeginCapture, void *, int)                                         \
  F(cuStreamEndCapture, _ptsz, cuStreamEndCapture, void *, void **)                                            \
  F(cuGraphInstantiateWithFlags, , cuGraphInstantiateWithFlags, void **, void *, unsigned long long)           \
  F(cuGraphLaunch, _ptsz, cuGraphLaunch, void *, void *)                                                       \
  G(cuLaunchHostFunc, _ptsz, cuLaunchHostFunc)                                                                 \
  G(cuMemcpyBatchAsync, _ptsz, cuMemcpyBatchAsync)

#define FIELD(symbol, suffix, name, ...) int (*name)(__VA_ARGS__);
#define UNTYPED(symbol, suffix, name) void *name; /* its type depends on the version */
static struct {
  CALLS(FIELD, UNTYPED)
} cu;
static int (*fakeGraphNodes)(void *);
static void (*fakeCounts)(uint64_t *, uint64_t *);
static uint64_t (*fakeStops)(void), (*fakeUnreleased)(void), (*fakeBlocked)(void);
static int version, per_thread;

#define MUST(what)                                                                             \
  do {                                                                                         \
    int r_ = (what);                                                                           \
    if (r_) printf("line %d: %s: %d\n", __LINE__, #what, r_), fflush(stdout), _exit(1);        \
  } while (0)

#ifdef LINKED
#define PROTOTYPE(symbol, suffix, name, ...) int symbol(__VA_ARGS__);
#define PROTOTYPE_2(symbol, suffix, name) int symbol();
CALLS(PROTOTYPE, PROTOTYPE_2)
#endif

static void find(const char *way) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) printf("%s\n", dlerror()), exit(1);
  fakeGraphNodes = (int (*)(void *))dlsym(lib, "fakeGraphNodes");
  fakeCounts = (void (*)(uint64_t *, uint64_t *))dlsym(lib, "fakeCounts");
  fakeStops = (uint64_t (*)(void))dlsym(lib, "fakeStops");
  fakeUnreleased = (uint64_t (*)(void))dlsym(lib, "fakeUnreleased");
  fakeBlocked = (uint64_t (*)(void))dlsym(lib, "fakeBlocked");
#ifdef LINKED
#define TAKE(symbol, suffix, name, ...) cu.name = (void *)symbol;
  if (strcmp(way, "linked") == 0) {
    CALLS(TAKE, TAKE)
    version = 12080;
    return;
  }
#endif
  if (strcmp(way, "dlsym") == 0) {
#define LOOK(symbol, suffix, name, ...) cu.name = dlsym(lib, #symbol);
    CALLS(LOOK, LOOK)
    version = 12080;
    return;
  }
  version = atoi(way);
  per_thread = strchr(way, 'p') != NULL;
  unsigned long long flags = per_thread ? 2 : 0;
  if (version < 12000) {
    int (*get)(const char *, void *, int, unsigned long long) = dlsym(lib, "cuGetProcAddress");
#define ASK(symbol, suffix, name, ...) get(#name, &cu.name, version, flags);
    CALLS(ASK, ASK)
  } else {
    int (*get)(const char *, void *, int, unsigned long long, int *) = NULL;
    int (*first)(const char *, void *, int, unsigned long long) = dlsym(lib, "cuGetProcAddress");
    MUST(first("cuGetProcAddress", &get, 12000, 0)); /* as CUDA's runtime does: this means the second form */
#define ASK_2(symbol, suffix, name, ...) get(#name, &cu.name, version, flags, NULL);
    CALLS(ASK_2, ASK_2)
  }
}

/* Kernels. */
static void nap(long ns) {
  struct timespec t = {0, ns};
  nanosleep(&t, NULL);
}
static void digit(uint64_t *words) {
  uint64_t *p = (uint64_t *)words[0];
  uint64_t v = *p;
  nap(20000);
  *p = v * 10 + words[1];
}
static void append(void *p) {
  uint64_t words[] = {(uint64_t)p, 9};
  digit(words);
}
static void spin(uint64_t *words) {
  while (!__atomic_load_n((uint64_t *)words[0], __ATOMIC_ACQUIRE)) nap(100000);
}
static int launch(void *kernel, ptr p, uint64_t value, void *stream) {
  uint64_t n = 2;
  void *params[] = {&n, &p, &value};
  return cu.cuLaunchKernel(kernel, 1, 2, 3, 4, 5, 6, 7, stream, params, NULL);
}
static int put(ptr p, uint64_t d, void *stream) { return launch(digit, p, d, stream); }

static int host_func(void *stream, void *f, void *data) {
  if (version >= 13020) return ((int (*)(void *, void *, void *, U))cu.cuLaunchHostFunc)(stream, f, data, 1);
  return ((int (*)(void *, void *, void *))cu.cuLaunchHostFunc)(stream, f, data);
}
static int batch(ptr *to, ptr *from, size_t *n, size_t count, void *stream) {
  size_t bad = 0;
  if (!cu.cuMemcpyBatchAsync) return cu.cuMemcpyAsync(*to, *from, *n, stream);
  if (version >= 13000)
    return ((int (*)(ptr *, ptr *, size_t *, size_t, void *, void *, size_t, void *))cu.cuMemcpyBatchAsync)(
        to, from, n, count, NULL, NULL, 77, stream);
  int r = ((int (*)(ptr *, ptr *, size_t *, size_t, void *, void *, size_t, size_t *, void *))cu.cuMemcpyBatchAsync)(
      to, from, n, count, NULL, NULL, 77, &bad, stream);
  return r ? r : bad != 5;
}

/* Every other stream has a higher priority, which changes no result. */
static int create(void **s, U flags) {
  static uint32_t created;
  if (__atomic_fetch_add(&created, 1, __ATOMIC_RELAXED) % 2) return cu.cuStreamCreate(s, flags);
  return cu.cuStreamCreateWithPriority(s, flags, -1);
}

static ptr word(void) {
  ptr p;
  MUST(cu.cuMemAlloc(&p, 64));
  return p;
}
static uint64_t read_word(ptr p) {
  uint64_t v = 0;
  MUST(cu.cuMemcpyDtoH(&v, p, 8));
  return v;
}
static uint64_t sum;
static void expect(const char *what, uint64_t got, uint64_t want) {
  if (got != want) printf("%s: %llu, not %llu\n", what, (ptr)got, (ptr)want), fflush(stdout), _exit(1);
  sum = sum * 31 + got;
}

/* The order of operations that a program may rely on. */
static void default_stream(void) {
  ptr p = word();
  void *s;
  MUST(create(&s, 0)); /* a blocking stream: the default stream waits for it */
  for (int i = 1; i <= 3; i++) MUST(put(p, i, s));
  if (!per_thread) expect("copy after queued work", read_word(p), 123);
  MUST(cu.cuStreamSynchronize(s));
  MUST(cu.cuMemsetD8(p, 0, 8));
  MUST(put(p, 4, NULL));
  MUST(put(p, 5, NULL));
  if (per_thread) MUST(cu.cuStreamSynchronize(NULL));
  MUST(put(p, 6, s));
  MUST(cu.cuStreamSynchronize(s));
  expect("memset, default stream, stream", read_word(p), 456);
  MUST(cu.cuStreamDestroy(s));
}
static void non_blocking(void) {
  ptr p = word(), q = word();
  void *s, *e;
  MUST(create(&s, 1));
  MUST(cu.cuEventCreate(&e, 2));
  for (int i = 1; i <= 3; i++) MUST(put(p, i, s));
  MUST(cu.cuEventRecord(e, s));
  for (int i = 4; i <= 6; i++) MUST(put(q, i, NULL));
  MUST(cu.cuStreamWaitEvent(NULL, e, 0));
  MUST(put(p, 7, NULL));
  MUST(cu.cuMemcpyDtoDAsync(q + 8, p, 8, NULL));
  expect("event across streams", read_word(q + 8), 1237);
  expect("beside it", read_word(q), 456);
  for (int r; (r = cu.cuEventQuery(e));) { MUST(r != 600); nap(1000); }
  for (int r; (r = cu.cuStreamQuery(s));) { MUST(r != 600); nap(1000); }
  MUST(cu.cuEventSynchronize(e));
  MUST(cu.cuEventDestroy(e));
  MUST(cu.cuStreamDestroy(s));
}
static void all_launches(void) {
  ptr p = word();
  uint64_t n = 2, d = 1;
  void *s, *params[] = {&n, &p, &d};
  struct {
    U shape[7];
    void *stream, *attributes;
    U count;
  } config = {{0}, NULL, NULL, 0};
  MUST(create(&s, 1));
  config.stream = s;
  MUST(cu.cuLaunchCooperativeKernel(digit, 1, 2, 3, 4, 5, 6, 7, s, params));
  d = 2; /* parameters are copied at the launch */
  if (cu.cuLaunchKernelEx) MUST(cu.cuLaunchKernelEx(&config, digit, params, NULL));
  else MUST(put(p, 2, s));
  d = 3;
  MUST(host_func(s, append, (void *)p));
  MUST(put(p, 4, s));
  MUST(cu.cuStreamSynchronize(s));
  expect("launches of all kinds", read_word(p), 1294);
  MUST(cu.cuStreamDestroy(s));
}
static void copies(void) {
  ptr p = word(), q = word(), r, from[2] = {q, q + 8}, to[2] = {q + 8, q + 16};
  size_t sizes[2] = {8, 8};
  void *s, *ctx;
  MUST(create(&s, 1));
  MUST(cu.cuCtxGetCurrent(&ctx));
  uint64_t pageable = 1, back = 0;
  MUST(cu.cuMemcpyHtoDAsync(p, &pageable, 8, s));
  pageable = 1000;
  MUST(put(p, 2, s));
  MUST(cu.cuMemcpyAsync(q, p, 8, s));
  MUST(cu.cuMemsetD32Async(p, 5, 2, s));
  MUST(cu.cuMemcpyPeerAsync(p + 8, ctx, q, ctx, 8, s));
  MUST(batch(to, from, sizes, 2, s)); /* the second copies what the first has written */
  MUST(put(q + 8, 3, s));
  MUST(cu.cuMemAllocAsync(&r, 64, s));
  MUST(cu.cuMemcpyDtoDAsync(r, q + 8, 8, s));
  MUST(put(r, 4, s));
  MUST(cu.cuMemcpyDtoHAsync(&back, r, 8, s));
  MUST(cu.cuMemFreeAsync(r, s));
  MUST(cu.cuStreamSynchronize(s));
  expect("pageable, async alloc", back, 1234);
  expect("memset", read_word(p), 5ull << 32 | 5);
  expect("peer", read_word(p + 8), 12);
  expect("batch", read_word(q + 8), 123);
  MUST(cu.cuMemcpyHtoD(p, &back, 8));
  MUST(cu.cuMemcpyDtoD(q, p, 8));
  expect("synchronous copies", read_word(q), 1234);
  MUST(cu.cuStreamDestroy(s));
}
static void graph(int mode) {
  ptr p = word();
  void *s, *t, *a, *b, *g, *exec;
  MUST(create(&s, 1));
  MUST(create(&t, 1));
  MUST(cu.cuEventCreate(&a, 2));
  MUST(cu.cuEventCreate(&b, 2));
  MUST(cu.cuStreamBeginCapture(s, mode));
  MUST(put(p, 1, s));
  MUST(cu.cuEventRecord(a, s));
  MUST(cu.cuStreamWaitEvent(t, a, 0));
  MUST(put(p, 2, t));
  MUST(cu.cuMemcpyAsync(p + 8, p, 8, t));
  MUST(cu.cuEventRecord(b, t));
  MUST(cu.cuStreamWaitEvent(s, b, 0));
  MUST(put(p, 3, s));
  MUST(cu.cuStreamEndCapture(s, &g));
  expect("nodes", fakeGraphNodes(g), 6);
  MUST(cu.cuGraphInstantiateWithFlags(&exec, g, 0));
  MUST(put(p, 7, s));
  MUST(cu.cuGraphLaunch(exec, s));
  MUST(cu.cuGraphLaunch(exec, s));
  MUST(cu.cuStreamSynchronize(s));
  expect("graph", read_word(p), 7123123);
  expect("its copy", read_word(p + 8), 712312);
  MUST(cu.cuStreamDestroy(s));
  MUST(cu.cuStreamDestroy(t));
}

static void burst(int n) {
  ptr p = word();
  void *s;
  MUST(create(&s, 1));
  for (int i = 0; i < n; i++) MUST(put(p, i % 10, s));
  MUST(cu.cuStreamSynchronize(s));
  sum = sum * 31 + read_word(p);
  MUST(cu.cuStreamDestroy(s));
}

/* Requests of a few kernels, made at intervals, on one stream or two, and the ways in which a
 * program may learn that they are done. */
#define WAYS 10
static uint64_t noticed;
static void notice(void *p) { __atomic_store_n(&noticed, *(uint64_t *)p, __ATOMIC_RELEASE); }

static void wait_in_some_way(int way, void *s, ptr p, uint64_t want) {
  uint64_t v = 0;
  void *e;
  MUST(cu.cuEventCreate(&e, 2));
  MUST(cu.cuEventRecord(e, s));
  switch (way) {
  case 0: MUST(cu.cuStreamSynchronize(s)); break;
  case 1: MUST(cu.cuCtxSynchronize()); break;
  case 2: MUST(cu.cuEventSynchronize(e)); break;
  case 3:
    for (int r; (r = cu.cuEventQuery(e));) { MUST(r != 600); nap(1000); }
    break;
  case 4:
    for (int r; (r = cu.cuStreamQuery(s));) { MUST(r != 600); nap(1000); }
    break;
  case 5:
    MUST(cu.cuMemcpyDtoHAsync(&v, p, 8, s));
    expect("copied", v, want);
    break;
  case 6: MUST(cu.cuMemFree(word())); break;
  case 7:
    __atomic_store_n(&noticed, ~want, __ATOMIC_RELAXED);
    MUST(host_func(s, notice, (void *)p));
    while (__atomic_load_n(&noticed, __ATOMIC_ACQUIRE) != want) nap(1000);
    break;
  case 8: /* without a call that the library could see */
    while (__atomic_load_n((uint64_t *)p, __ATOMIC_ACQUIRE) != want) nap(1000);
    break;
  case 9:
    MUST(cu.cuStreamWaitEvent(NULL, e, 0));
    expect("copied after an event", read_word(p), want);
    break;
  }
  MUST(cu.cuStreamSynchronize(s));
  MUST(cu.cuEventDestroy(e));
}
/* What comes on one stream waits for what is on another. */
static void follow(void *later, void *earlier, void *event) {
  MUST(cu.cuEventRecord(event, earlier));
  MUST(cu.cuStreamWaitEvent(later, event, 0));
}
static void requests(int n, long gap_ns) {
  void *s, *t, *e;
  ptr p = word(), q;
  uint64_t want = 0, zero = 0;
  MUST(create(&s, 1));
  MUST(create(&t, 1));
  MUST(cu.cuEventCreate(&e, 2));
  for (int i = 0; i < n; i++) {
    if (i % 3 == 1) MUST(cu.cuMemcpyHtoDAsync(p + 8, &zero, 8, s)); /* a request may begin with a copy */
    for (int k = 0; k < 12; k++) {
      bool other = i % 4 == 3 && k % 5 == 4; /* on another stream, ordered by events */
      if (other) follow(t, s, e);
      MUST(put(p, (uint64_t)k % 10, other ? t : s));
      if (other) follow(s, t, e);
      if (k == 6) {
        MUST(cu.cuMemAllocAsync(&q, 64, s));
        MUST(cu.cuMemcpyDtoDAsync(q, p, 8, s));
        MUST(cu.cuMemFreeAsync(q, s));
      }
      want = want * 10 + (uint64_t)k % 10;
      nap(gap_ns);
    }
    wait_in_some_way(i % WAYS, s, p, want);
    expect("request", *(uint64_t *)p, want);
    MUST(cu.cuStreamSynchronize(t));
    if (i % 10 == 9) printf("at %d\n", i), fflush(stdout);
  }
  MUST(cu.cuStreamDestroy(s));
  MUST(cu.cuStreamDestroy(t));
}

/* Waits for a request by an event of another stream, all of whose own commands were done before: by a
 * stream that waits for an event, by the default stream, and by a stream that the default stream blocks. */
static void joined(int n) {
  void *s, *t, *blocking, *e, *last;
  ptr p = word(), q = word();
  uint64_t want = 0;
  MUST(create(&s, 1));
  MUST(create(&t, 1));
  MUST(create(&blocking, 0));
  MUST(cu.cuEventCreate(&e, 2));
  MUST(cu.cuEventCreate(&last, 2));
  for (int i = 0; i < n; i++) {
    void *from = i % 3 == 0 ? s : i % 3 == 1 ? blocking : NULL, *to = i % 3 == 0 ? t : i % 3 == 1 ? NULL : blocking;
    if (per_thread && i % 3) from = s, to = t;
    MUST(put(q, 1, to));
    MUST(cu.cuStreamSynchronize(to));
    for (int k = 0; k < 4; k++) {
      MUST(put(p, (uint64_t)k, from));
      want = want * 10 + (uint64_t)k;
    }
    if (from == s) follow(to, from, e);
    MUST(cu.cuEventRecord(last, to));
    if (i % 2) MUST(cu.cuEventSynchronize(last));
    else while (cu.cuEventQuery(last) != 0) usleep(100);
    expect("joined", *(uint64_t *)p, want);
    MUST(cu.cuCtxSynchronize());
  }
}

/* Alike requests, as many as it takes. */
static void alike(int n, long gap_ns) {
  void *s;
  ptr p = word();
  MUST(create(&s, 1));
  for (int i = 0; i < n; i++) {
    for (int k = 0; k < 24; k++) {
      MUST(put(p, (uint64_t)k % 10, s));
      nap(gap_ns);
    }
    MUST(cu.cuStreamSynchronize(s));
    if (i % 10 == 9) printf("at %d\n", i), fflush(stdout);
  }
}

/* Alike requests that follow different numbers of copies, each of which is done when its call
 * returns. */
static void copied(int n, long gap_ns) {
  void *s;
  ptr p = word();
  uint64_t v = 0;
  MUST(create(&s, 1));
  for (int i = 0; i < n; i++) {
    for (int k = i * 7 % 60; k > 0; k--) MUST(cu.cuMemcpyHtoD(p + 8, &v, 8));
    for (int k = 0; k < 24; k++) {
      MUST(put(p, (uint64_t)k % 10, s));
      nap(gap_ns);
    }
    MUST(cu.cuStreamSynchronize(s));
    if (i % 10 == 9) printf("at %d\n", i), fflush(stdout);
  }
}

/* Requests, and then the same beside a kernel that does not end until a line is read. */
static void make_requests(int n, ptr p, void *s) {
  for (int i = 0; i < n; i++) {
    for (int k = 0; k < 12; k++) MUST(put(p, (uint64_t)k % 10, s));
    MUST(cu.cuStreamSynchronize(s));
  }
}
static void say(const char *what) {
  char line[8];
  printf("%s stops=%llu\n", what, (ptr)fakeStops());
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) exit(1);
}
static void busy_beside(int n) {
  static uint64_t end;
  void *s, *t;
  ptr p = word();
  MUST(create(&s, 1));
  MUST(create(&t, 1));
  make_requests(n, p, s);
  say("idle");
  MUST(launch(spin, (ptr)&end, 0, t));
  say("busy");
  make_requests(n, p, s);
  say("done");
  __atomic_store_n(&end, 1, __ATOMIC_RELEASE);
  MUST(cu.cuCtxSynchronize());
}

/* Commands on memory of the host, of which the program sees the effect without a call that waits. */
static void pinned(int n) {
  ptr p = word(), managed;
  uint64_t *a, *b, want = 0;
  MUST(cu.cuMemHostAlloc((void **)&a, 64, 0));
  MUST(cu.cuMemHostAlloc((void **)&b, 64, 0));
  MUST(cu.cuMemAllocManaged(&managed, 64, 1));
  for (int i = 0; i < n; i++) {
    for (int k = 0; k < 4; k++) {
      MUST(put(p, (uint64_t)k, NULL));
      want = want * 10 + (uint64_t)k;
    }
    *b = (uint64_t)i + 7;
    switch (i % 7) {
    case 0:
      MUST(cu.cuMemcpyAsync((ptr)a, (ptr)b, 8, NULL));
      expect("copied between host and host", *a, (uint64_t)i + 7);
      expect("after all kernels", *(uint64_t *)p, want);
      break;
    case 1:
      MUST(cu.cuMemsetD8((ptr)a, 3, 8));
      expect("memset on pinned memory", *a, 0x0303030303030303);
      break;
    case 2:
      MUST(cu.cuMemsetD8(managed, 4, 8));
      expect("memset on managed memory", *(uint64_t *)managed, 0x0404040404040404);
      break;
    case 3: MUST(cu.cuMemsetD32Async((ptr)a, 5, 2, NULL)); break;
    case 4: MUST(cu.cuMemsetD32Async(managed, 6, 2, NULL)); break;
    case 5: MUST(cu.cuMemcpyDtoDAsync((ptr)a, p, 8, NULL)); break;
    case 6: MUST(cu.cuMemcpyHtoDAsync((ptr)a, b, 8, NULL)); break;
    }
    expect("waits that stay", fakeUnreleased(), 0);
    MUST(cu.cuMemcpyDtoHAsync(b, p, 8, NULL)); /* pinned: the program waits for it */
    MUST(cu.cuStreamSynchronize(NULL));
    expect("copied to the host", *b, want);
  }
}

/* Calls that may wait although that is not their purpose, found in every way: a request that has not
 * entered yet is released before each of them. They get pointers to memory of which they may do anything. */
static void other_calls(void) {
  static const struct {
    const char *symbol, *name;
    int since;
  } calls[] = {
      {"cuGraphInstantiateWithFlags", "cuGraphInstantiate", 12000},
      {"cuGraphInstantiateWithFlags", "cuGraphInstantiateWithFlags", 11040},
      {"cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams", 12000},
      {"cuGraphInstantiateWithParams_ptsz", "cuGraphInstantiateWithParams", 12000},
      {"cuDeviceGraphMemTrim", "cuDeviceGraphMemTrim", 11040},
      {"cuArrayCreate_v2", "cuArrayCreate", 3020},
      {"cuArray3DCreate_v2", "cuArray3DCreate", 3020},
      {"cuMipmappedArrayCreate", "cuMipmappedArrayCreate", 5000},
      {"cuMemCreate", "cuMemCreate", 10020},
      {"cuMemMap", "cuMemMap", 10020},
      {"cuMemSetAccess", "cuMemSetAccess", 10020},
      {"cuMemRelease", "cuMemRelease", 10020},
      {"cuLibraryGetGlobal", "cuLibraryGetGlobal", 12000},
      {"cuLibraryGetManaged", "cuLibraryGetManaged", 12000},
  };
  static uint64_t at[64];
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *s;
  int (*get)(const char *, void *, int, unsigned long long) = dlsym(lib, "cuGetProcAddress");
  ptr p = word();
  MUST(create(&s, 1));
  for (size_t i = 0; i < 2 * sizeof calls / sizeof *calls; i++) {
    int (*f)(void *, void *, void *, void *, void *) = NULL;
    if (i % 2) f = dlsym(lib, calls[i / 2].symbol);
    else MUST(get(calls[i / 2].name, &f, calls[i / 2].since, per_thread ? 2 : 0));
    MUST(f == NULL);
    for (int round = 0; round < 2; round++) { /* the first one may prepare the context */
      for (int k = 0; k < 3; k++) MUST(put(p, (uint64_t)k, s));
      f(at, at, at, at, at);
      expect(calls[i / 2].name, fakeUnreleased(), 0);
      MUST(cu.cuStreamSynchronize(s));
    }
  }
}

/* The function of a kernel may have to be loaded the first time that it is asked for in a context, and again
 * after the library was unloaded: then a request that has not entered is released. */
static void kernels(void) {
  static const char kernel[16];
  void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *ctx, *function;
  int (*get)(void **, const void *) = (int (*)(void **, const void *))dlsym(lib, "cuKernelGetFunction");
  int (*unload)(const void *) = (int (*)(const void *))dlsym(lib, "cuLibraryUnload");
  for (int i = 0; i < 3; i++) { /* twice in the first context, then in another */
    if (i == 2) MUST(cu.cuCtxCreate(&ctx, 0, 0));
    if (i == 1) MUST(unload(kernel));
    ptr p = word();
    for (int round = 0; round < 2; round++) { /* the first one may prepare the context */
      for (int k = 0; k < 3; k++) MUST(put(p, (uint64_t)k, NULL));
      if (round) {
        MUST(get(&function, kernel));
        expect("waits that stay", fakeUnreleased(), 0);
      }
      MUST(cu.cuCtxSynchronize());
    }
  }
}

/* An event that was recorded in a stream which is no more. The next stream has the same handle. */
static void reused(int n) {
  static uint64_t end;
  void *s, *t, *e;
  char line[8];
  ptr p = word();
  MUST(cu.cuEventCreate(&e, 2));
  MUST(create(&s, 1));
  for (int i = 0; i < n; i++) MUST(put(p, (uint64_t)i, s));
  MUST(cu.cuEventRecord(e, s));
  MUST(cu.cuStreamSynchronize(s));
  MUST(cu.cuStreamDestroy(s));
  MUST(create(&t, 1));
  expect("the handle is the same", s == t, 1);
  for (int i = 0; i < n; i++) MUST(launch(spin, (ptr)&end, 0, t));
  MUST(cu.cuEventQuery(e));
  MUST(cu.cuEventSynchronize(e));
  printf("done %d\n", n), fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) exit(1);
  __atomic_store_n(&end, 1, __ATOMIC_RELEASE);
  MUST(cu.cuStreamSynchronize(t));
}

/* Requests of a thread with a real-time policy that is pinned to one CPU. Prints what the library's
 * timer thread has inherited. */
static int cpus_of(int tid, cpu_set_t *cpus) { return sched_getaffinity(tid, sizeof *cpus, cpus) == 0 ? CPU_COUNT(cpus) : -1; }
static void *pinned_thread(void *arg) {
  struct sched_param lowest = {.sched_priority = 1};
  cpu_set_t cpus, one;
  int first = 0;
  MUST(cpus_of(0, &cpus) < 1);
  while (!CPU_ISSET(first, &cpus)) first++;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  MUST(sched_setaffinity(0, sizeof one, &one));
  int policy = sched_setscheduler(0, SCHED_FIFO, &lowest) == 0 ? SCHED_FIFO : SCHED_OTHER; /* else it is not permitted */
  alike(5, 1000);
  printf("program policy=%d cpus=%d\n", policy, CPU_COUNT(&cpus));
  return arg;
}
static int print_thread(const char *tid) {
  char path[64], text[4096] = "";
  cpu_set_t cpus;
  snprintf(path, sizeof path, "/proc/self/task/%s/status", tid);
  FILE *f = fopen(path, "r");
  if (!f) return 0;
  if (!fread(text, 1, sizeof text - 1, f)) printf("%s cannot be read\n", path);
  fclose(f);
  char *mask = strstr(text, "\nSigBlk:\t");
  if (strncmp(text, "Name:\tgiveway-late\n", 19) != 0 || !mask) return 0;
  printf("timer policy=%d cpus=%d blocked=%llu\n", sched_getscheduler(atoi(tid)), cpus_of(atoi(tid), &cpus), strtoull(mask + 9, NULL, 16));
  return 1;
}
static void realtime(void) {
  pthread_t t;
  struct dirent *e;
  MUST(pthread_create(&t, NULL, pinned_thread, NULL));
  MUST(pthread_join(t, NULL));
  for (int tries = 0, found = 0; tries < 10000 && !found; tries++) { /* a thread sets its name when it first runs */
    DIR *d = opendir("/proc/self/task");
    while (d && (e = readdir(d))) found |= print_thread(e->d_name);
    if (d) closedir(d);
    nap(1000000);
  }
}

/* Forks, and in the end exits, in the middle of a request. */
static void ends(void) {
  void *s;
  ptr p = word();
  uint64_t want = 0;
  int status = -1;
  MUST(create(&s, 1));
  for (int i = 0; i < 5; i++) {
    for (int k = 0; k < 5; k++) {
      MUST(put(p, (uint64_t)k, s));
      want = want * 10 + (uint64_t)k;
    }
    pid_t child = fork();
    if (child == 0) {
      burst(7);
      _exit(sum ? 0 : 3);
    }
    waitpid(child, &status, 0);
    expect("the child's end", (uint64_t)status, 0);
    MUST(put(p, 7, s));
    want = want * 10 + 7;
    MUST(cu.cuStreamSynchronize(s));
    expect("around a fork", *(uint64_t *)p, want);
  }
  for (int k = 0; k < 5; k++) MUST(put(p, (uint64_t)k, s));
}

/* Contexts that are created and destroyed while their work is not known to be done. */
static void contexts(int n) {
  void *ctx;
  for (int i = 0; i < n; i++) {
    MUST(cu.cuCtxCreate(&ctx, 0, 0));
    burst(30);
    ptr p = word();
    for (int k = 0; k < 5; k++) MUST(put(p, k, NULL));
    MUST(cu.cuCtxDestroy(ctx));
    burst(30);
  }
  MUST(cu.cuCtxSynchronize());
}

/* Prints a line after each launch, so that a test can follow the progress. */
static void chain(int n, long gap_ns) {
  ptr p = word();
  for (int i = 0; i < n; i++) {
    MUST(put(p, i % 10, NULL));
    printf("at %d\n", i);
    fflush(stdout);
    nap(gap_ns);
  }
  sum = read_word(p);
}

/* Kernels that end when n have been launched, and one on another stream that ends when the
 * others have. */
static void waits(int n) {
  static uint64_t flag, end;
  ptr p = word();
  void *s, *t;
  MUST(create(&s, 1));
  MUST(create(&t, 1));
  for (int i = 0; i < n; i++) MUST(launch(spin, (ptr)&flag, 0, i % 2 ? s : t));
  __atomic_store_n(&flag, 1, __ATOMIC_RELEASE);
  MUST(cu.cuStreamSynchronize(s));
  MUST(cu.cuStreamSynchronize(t));
  MUST(launch(spin, (ptr)&end, 0, t));
  for (int i = 0; i < 50; i++) MUST(put(p, i % 10, s));
  MUST(cu.cuStreamSynchronize(s));
  __atomic_store_n(&end, 1, __ATOMIC_RELEASE);
  MUST(cu.cuStreamSynchronize(t));
  sum = read_word(p);
}

static void *thread(void *arg) {
  ptr p = word();
  uint64_t v = 0, want = 0;
  void *s = NULL;
  if (arg) MUST(create(&s, 1));
  for (int i = 0; i < 100; i++) {
    MUST(put(p, i % 7, s));
    want = want * 10 + i % 7;
    if (i % 20 == 19) MUST(cu.cuStreamSynchronize(s));
  }
  MUST(cu.cuMemcpyDtoHAsync(&v, p, 8, s));
  MUST(cu.cuStreamSynchronize(s));
  if (v != want) printf("a thread got %llu, not %llu\n", (ptr)v, (ptr)want), _exit(1);
  return NULL;
}
static void threads(int n) {
  pthread_t t[16];
  for (int i = 0; i < n; i++) MUST(pthread_create(&t[i], NULL, thread, (void *)(uintptr_t)(i % 2)));
  for (int i = 0; i < n; i++) MUST(pthread_join(t[i], NULL));
  MUST(cu.cuCtxSynchronize());
}

/* One thread's default stream is busy until a line is read; another thread's is not. The thread lives
 * until then: the work of one that has ended counts as done. */
static uint64_t until_line;
static void *busy(void *launched) {
  MUST(launch(spin, (ptr)&until_line, 0, NULL));
  MUST(sem_post(launched));
  while (!__atomic_load_n(&until_line, __ATOMIC_ACQUIRE)) usleep(1000);
  return NULL;
}
static void own_streams(int n) {
  pthread_t t;
  char line[8];
  ptr p = word();
  sem_t launched;
  MUST(sem_init(&launched, 0, 0));
  MUST(pthread_create(&t, NULL, busy, &launched));
  MUST(sem_wait(&launched));
  for (int i = 0; i < n; i++) MUST(put(p, i, NULL));
  MUST(cu.cuStreamSynchronize(NULL));
  printf("done %d\n", n);
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) exit(1);
  __atomic_store_n(&until_line, 1, __ATOMIC_RELEASE);
  MUST(pthread_join(t, NULL));
  MUST(cu.cuCtxSynchronize());
}

/* Waits in another context than its own for a stream, or for an event that it has recorded there. */
static void across(int n) {
  void *first, *second, *s, *event;
  char line[8];
  ptr p = word();
  MUST(cu.cuCtxGetCurrent(&first));
  MUST(cu.cuCtxCreate(&second, 0, 0));
  MUST(create(&s, 1));
  MUST(cu.cuEventCreate(&event, 2));
  for (int by_event = 0; by_event < 2; by_event++) {
    MUST(cu.cuCtxSetCurrent(second));
    for (int i = 0; i < n; i++) MUST(put(p, i, s));
    MUST(cu.cuCtxSetCurrent(first));
    if (by_event) MUST(cu.cuEventRecord(event, s));
    MUST(by_event ? cu.cuEventSynchronize(event) : cu.cuStreamSynchronize(s));
    printf("done %d\n", n);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(1);
  }
}

/* Never waits for one of its streams, but often for another. */
static void unwaited(int n) {
  void *s, *t;
  char line[8];
  ptr p = word(), q = word();
  MUST(create(&s, 1));
  MUST(create(&t, 1));
  for (int i = 0; i < 3; i++) MUST(put(q, i, t));
  for (int i = 0; i < n; i++) {
    MUST(put(p, i % 10, s));
    MUST(cu.cuStreamSynchronize(s));
  }
  printf("done %d\n", n);
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) exit(1);
}

/* Captures in the strictest mode while another thread launches all the time. */
static int stop;
static void *beside(void *arg) {
  ptr p = word();
  void *s;
  (void)arg;
  MUST(create(&s, 1));
  uint64_t n = 0;
  for (; !__atomic_load_n(&stop, __ATOMIC_RELAXED) || n < 50; n++) MUST(put(p, 1, s));
  MUST(cu.cuStreamSynchronize(s));
  return NULL;
}
static void capture_beside(int n) {
  pthread_t t;
  MUST(pthread_create(&t, NULL, beside, NULL));
  for (int i = 0; i < n; i++) graph(i % 2); /* global, thread-local */
  __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
  MUST(pthread_join(t, NULL));
}

/* Overwrites the page, which is found by its name in the list of mappings. */
static void scribble(int n) {
  char line[512];
  char *page = NULL;
  burst(1);
  FILE *maps = fopen("/proc/self/maps", "r");
  while (fgets(line, sizeof line, maps)) {
    if (strstr(line, "/memfd:") && strstr(line, " rw-s ")) page = (char *)strtoull(line, NULL, 16);
  }
  fclose(maps);
  printf("page %s\n", page ? "found" : "not found");
  unsigned seed = 1;
  for (int i = 0; i < n; i++) {
    for (int k = 0; k < 4096 && page; k++) page[k] = i == 0 ? 0xff : (char)((seed = seed * 1103515245 + 12345) >> 16);
    uint32_t *gate = (uint32_t *)(page + 64);
    if (page && i % 3) gate[0] = 1, gate[1] = (unsigned)i, gate[2] = seed; /* a closed gate and some bound */
    burst(20);
    giveway_begin(i);
  }
  sum = 0;
}

static void forks(void) {
  burst(5);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    burst(7);
    fflush(stdout);
    _exit(sum ? 0 : 3);
  }
  int status = -1;
  burst(5);
  waitpid(child, &status, 0);
  expect("the child's end", (uint64_t)status, 0);
}

static void hints(void) {
  MUST(giveway_priority(7));
  MUST(giveway_deadline_ns(5000000));
  MUST(giveway_begin(1));
  MUST(giveway_begin(2));
  burst(3);
  MUST(giveway_end(1));
  MUST(giveway_end(2));
  MUST(giveway_idempotent(1));
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  const char *what = argv[2];
  int n = argc > 3 ? atoi(argv[3]) : 1;
  if (strcmp(what, "nothing") == 0) return printf("ok sum=0\n"), 0;
  find(argv[1]);
  MUST(cu.cuInit(0));
  if (strcmp(what, "order") == 0) {
    for (int i = 0; i < n; i++) default_stream(), non_blocking(), all_launches(), copies(), graph(0), graph(2);
  } else if (strcmp(what, "burst") == 0) burst(n);
  else if (strcmp(what, "chain") == 0) chain(n, argc > 4 ? atol(argv[4]) : 0);
  else if (strcmp(what, "across") == 0) across(n);
  else if (strcmp(what, "unwaited") == 0) unwaited(n);
  else if (strcmp(what, "crowd") == 0) {
    for (int i = 0; i < 10; i++) threads(n);
  } else if (strcmp(what, "own") == 0) own_streams(n);
  else if (strcmp(what, "contexts") == 0) contexts(n);
  else if (strcmp(what, "waits") == 0) waits(n);
  else if (strcmp(what, "requests") == 0) requests(n, argc > 4 ? atol(argv[4]) : 0);
  else if (strcmp(what, "alike") == 0) alike(n, argc > 4 ? atol(argv[4]) : 0);
  else if (strcmp(what, "copied") == 0) copied(n, argc > 4 ? atol(argv[4]) : 0);
  else if (strcmp(what, "joined") == 0) joined(n);
  else if (strcmp(what, "others") == 0) other_calls();
  else if (strcmp(what, "kernels") == 0) kernels();
  else if (strcmp(what, "busy") == 0) busy_beside(n);
  else if (strcmp(what, "pinned") == 0) pinned(n);
  else if (strcmp(what, "realtime") == 0) realtime();
  else if (strcmp(what, "reused") == 0) reused(n);
  else if (strcmp(what, "ends") == 0) ends();
  else if (strcmp(what, "threads") == 0) threads(n);
  else if (strcmp(what, "capture") == 0) capture_beside(n);
  else if (strcmp(what, "scribble") == 0) scribble(n);
  else if (strcmp(what, "fork") == 0) forks();
  else if (strcmp(what, "hint") == 0) hints();
  else if (strcmp(what, "hinted") == 0) {
    MUST(giveway_priority(3));
    MUST(giveway_slo_ns(9000000));
    MUST(giveway_expect_ns(1)); /* holds for a moment only: not given again to a new daemon */
    MUST(giveway_priority(7));
    chain(n, argc > 4 ? atol(argv[4]) : 0);
  }
  else if (strcmp(what, "exec") == 0) {
    burst(3);
    char *args[] = {argv[0], argv[1], "burst", "9", NULL};
    execv(argv[0], args);
  } else if (strcmp(what, "closefds") == 0) {
    burst(3);
    for (int fd = 3; fd < 9000; fd++) close(fd);
    int mine = open("/proc/self/exe", O_RDONLY);
    for (int i = 0; i < n; i++) burst(3), nap(100000000);
    expect("descriptor", read(mine, &n, 4) == 4, 1);
  } else return 2;
  uint64_t all, most;
  fakeCounts(&all, &most);
  printf("ok sum=%llx commands=%llu most=%llu stops=%llu blocked=%llu\n", (ptr)sum, (ptr)all, (ptr)most, (ptr)fakeStops(),
         (ptr)fakeBlocked());
  return 0;
}
