/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A HIP program that knows nothing of the shim, for fakehip.c.
 *
 *     hipwork order N      streams, the legacy default stream, copies and events
 *     hipwork capture N    captures graphs while another thread launches
 *     hipwork graph N      captures a graph before anything else, then launches it
 *     hipwork threads N    per-thread default streams
 *     hipwork later N      a kernel that waits for one launched after it
 *     hipwork again N      an event of a busy stream, recorded again in another stream
 *     hipwork steps N      kernels in order, with a line for each
 *     hipwork requests N   requests whose end the program learns in five ways
 *     hipwork frees N      requests that end with a call that frees or maps memory
 *     hipwork shares N     requests after call N that shares memory or an event with other processes
 *     hipwork destroyed N  destroys a stream while its kernel runs
 *     hipwork ended N      threads that end without a wait
 *     hipwork devices N    waits for streams of another device than the current one
 *     hipwork unseen N     captures that the shim does not see, beside requests and on their stream
 *
 * A command that is lost, run twice or out of order changes the results. Built twice, like
 * openclwork.c; the one that is not LINKED finds hipLaunchKernel through hipGetProcAddress.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
  uint32_t x, y, z;
} dim3;

struct ipc_handle {
  char bytes[64];
};

#define FUNCTIONS(F)                                                                                         \
  F(int, hipStreamCreate, (void **))                                                                         \
  F(int, hipStreamCreateWithPriority, (void **, unsigned, int))                                              \
  F(int, hipStreamDestroy, (void *))                                                                         \
  F(int, hipStreamSynchronize, (void *))                                                                     \
  F(int, hipDeviceSynchronize, (void))                                                                       \
  F(int, hipSetDevice, (int))                                                                                \
  F(int, hipLaunchKernel, (const void *, dim3, dim3, void **, size_t, void *))                               \
  F(int, hipLaunchKernel_spt, (const void *, dim3, dim3, void **, size_t, void *))                           \
  F(int, hipModuleLaunchKernel,                                                                              \
    (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,          \
     void **))                                                                                               \
  F(int, hipMemcpy, (void *, const void *, size_t, int))                                                     \
  F(int, hipMemcpyAsync, (void *, const void *, size_t, int, void *))                                        \
  F(int, hipMemsetAsync, (void *, int, size_t, void *))                                                      \
  F(int, hipEventCreateWithFlags, (void **, unsigned))                                                       \
  F(int, hipEventRecord, (void *, void *))                                                                   \
  F(int, hipGetLastError, (void))                                                                            \
  F(int, hipEventRecordWithFlags, (void *, void *, unsigned))                                                \
  F(int, hipEventSynchronize, (void *))                                                                      \
  F(int, hipEventQuery, (void *))                                                                            \
  F(int, hipFree, (void *))                                                                                  \
  F(int, hipFreeAsync, (void *, void *))                                                                     \
  F(int, hipArrayDestroy, (void *))                                                                          \
  F(int, hipFreeMipmappedArray, (void *))                                                                    \
  F(int, hipMipmappedArrayDestroy, (void *))                                                                 \
  F(int, hipIpcCloseMemHandle, (void *))                                                                     \
  F(int, hipMemMap, (void *, size_t, size_t, void *, unsigned long long))                                    \
  F(int, hipMemUnmap, (void *, size_t))                                                                      \
  F(int, hipIpcGetEventHandle, (void *, void *))                                                             \
  F(int, hipIpcOpenEventHandle, (void **, struct ipc_handle))                                                \
  F(int, hipIpcGetMemHandle, (void *, void *))                                                               \
  F(int, hipIpcOpenMemHandle, (void **, struct ipc_handle, unsigned))                                        \
  F(int, hipMemExportToShareableHandle, (void *, void *, int, unsigned long long))                           \
  F(int, hipMemImportFromShareableHandle, (void **, void *, int))                                            \
  F(int, hipMemPoolExportToShareableHandle, (void *, void *, int, unsigned))                                 \
  F(int, hipMemPoolImportFromShareableHandle, (void **, void *, int, unsigned))                              \
  F(int, hipMemPoolExportPointer, (void *, void *))                                                          \
  F(int, hipMemPoolImportPointer, (void **, void *, void *))                                                 \
  F(int, fakehip_blocked_frees, (void))                                                                      \
  F(int, hipStreamBeginCapture, (void *, int))                                                               \
  F(int, hipStreamEndCapture, (void *, void **))                                                             \
  F(int, hipGraphInstantiate, (void **, void *, void *, char *, size_t))                                     \
  F(int, hipGraphLaunch, (void *, void *))                                                                   \
  F(int, hipGetProcAddress, (const char *, void **, int, uint64_t, int *))                                   \
  F(uint64_t, fakehip_most, (void))                                                                          \
  F(int, fakehip_nodes, (void *))                                                                            \
  F(int, hipThreadExchangeStreamCaptureMode, (int *))                                                        \
  F(int, fakehip_capture, (void *, int))

#ifdef LINKED
#define F(result, name, parameters) extern result name parameters;
FUNCTIONS(F)
#undef F
static void find(void) {}
#else
#define F(result, name, parameters) static result(*name) parameters;
FUNCTIONS(F)
#undef F
static void find(void) {
  void *lib = dlopen("libamdhip64.so.6", RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    fprintf(stderr, "%s\n", dlerror());
    exit(3);
  }
#define F(result, name, parameters) *(void **)&name = dlsym(lib, #name);
  FUNCTIONS(F)
#undef F
  if (hipGetProcAddress("hipLaunchKernel", (void **)&hipLaunchKernel, 600, 0, NULL) != 0) exit(3);
}
#endif

static void must(int r, const char *what) {
  if (r == 0) return;
  printf("%s: %d\n", what, r);
  exit(1);
}
#define MUST(call) must(call, #call)

static const dim3 one = {1, 1, 1};

static void pause_us(long us) {
  struct timespec t = {0, us * 1000};
  nanosleep(&t, NULL);
}

/* x = 3x + k: the result depends on the order. */
static uint64_t x, y;
static void x_step(uint64_t k) {
  uint64_t was = x;
  pause_us(50);
  x = was * 3 + k;
}
static void y_step(uint64_t k) {
  uint64_t was = y;
  pause_us(50);
  y = was * 3 + k;
}

static void launch(void (*kernel)(uint64_t), uint64_t k, void *stream) {
  void *args[] = {&k};
  hipGetLastError(); /* of this program's queries */
  if (k % 2) {
    MUST(hipLaunchKernel((void *)kernel, one, one, args, 0, stream));
  } else {
    MUST(hipModuleLaunchKernel((void *)kernel, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL));
  }
  MUST(hipGetLastError()); /* as programs do that use <<<>>> */
}

static int finish(const char *mode, uint64_t got, uint64_t want) {
  MUST(hipDeviceSynchronize());
  printf("%s %s got=%llx want=%llx most=%llu\n", got == want ? "ok" : "wrong", mode, (unsigned long long)got,
         (unsigned long long)want, (unsigned long long)fakehip_most());
  return got != want;
}

static int order(uint64_t n) {
  void *s[2], *event;
  uint64_t want = 0, seen, copy = 1;
  MUST(hipStreamCreate(&s[0]));
  MUST(hipStreamCreate(&s[1]));
  MUST(hipEventCreateWithFlags(&event, 2));
  for (uint64_t k = 0; k < n; k++) {
    launch(x_step, k, s[k % 2]);
    launch(x_step, k + 1, NULL); /* ordered with both streams */
    want = (want * 3 + k) * 3 + k + 1;
    if (k % 8 == 3) { /* a copy that waits is behind everything queued before */
      MUST(hipMemcpy(&seen, &x, sizeof x, 2));
      if (seen != want) return finish("order, copy", seen, want);
    }
    if (k % 8 == 7) {
      MUST(hipMemsetAsync(&copy, 0xFF, sizeof copy, s[0]));
      MUST(hipMemcpyAsync(&copy, &x, sizeof copy, 2, s[0]));
      MUST(hipEventRecord(event, s[0]));
      MUST(hipEventSynchronize(event));
      if (copy != want) return finish("order, event", copy, want);
    }
  }
  MUST(hipStreamSynchronize(s[1]));
  MUST(hipDeviceSynchronize());
  MUST(hipStreamDestroy(s[0]));
  MUST(hipStreamDestroy(s[1]));
  return finish("order", x, want);
}

static volatile int stop;
static uint64_t beside;

static void *launch_beside(void *stream) {
  while (!stop) launch(y_step, beside++, stream);
  return NULL;
}

/* Two streams, of which another thread feeds the one of higher priority. */
static void *feed_high(void *stream) {
  while (!stop) {
    for (int k = 0; k < 4; k++) launch(y_step, beside++, stream);
    MUST(hipStreamSynchronize(stream));
  }
  return NULL;
}

static int classes(uint64_t n) {
  void *high, *low;
  pthread_t t;
  uint64_t want = 0, also = 0;
  MUST(hipStreamCreateWithPriority(&high, 1, -1));
  MUST(hipStreamCreateWithPriority(&low, 1, 0));
  pthread_create(&t, NULL, feed_high, high);
  /* Until the other thread has made enough launches meanwhile. */
  for (uint64_t k = 0; k < n || __atomic_load_n(&beside, __ATOMIC_RELAXED) < 8 * n; k++) {
    launch(x_step, k, low);
    want = want * 3 + k;
    pause_us(100);
  }
  MUST(hipStreamSynchronize(low));
  stop = 1;
  pthread_join(t, NULL);
  for (uint64_t k = 0; k < beside; k++) also = also * 3 + k;
  if (y != also) return finish("classes, beside", y, also);
  return finish("classes", x, want);
}

static int capture(uint64_t n) {
  void *s, *other, *graph, *exec;
  pthread_t t;
  uint64_t want = 0, also = 0;
  MUST(hipStreamCreate(&s));
  MUST(hipStreamCreate(&other));
  pthread_create(&t, NULL, launch_beside, other);
  for (int round = 0; round < 3; round++) {
    launch(x_step, 7, s); /* leaves a mark in the stream that is then captured */
    want = want * 3 + 7;
    MUST(hipStreamBeginCapture(s, 0));
    for (uint64_t k = 0; k < n; k++) {
      launch(x_step, k, s);
      pause_us(500);
    }
    MUST(hipStreamEndCapture(s, &graph));
    printf("captured\n");
    if (fakehip_nodes(graph) != (int)n) return printf("wrong capture: %d nodes\n", fakehip_nodes(graph)), 1;
    MUST(hipGraphInstantiate(&exec, graph, NULL, NULL, 0));
    MUST(hipGraphLaunch(exec, s));
    for (uint64_t k = 0; k < n; k++) want = want * 3 + k;
    MUST(hipStreamSynchronize(s));
  }
  stop = 1;
  pthread_join(t, NULL);
  MUST(hipDeviceSynchronize());
  for (uint64_t k = 0; k < beside; k++) also = also * 3 + k;
  if (y != also) return finish("capture, beside", y, also);
  return finish("capture", x, want);
}

static int graph(uint64_t n) {
  void *s, *g, *exec;
  uint64_t want = 0;
  MUST(hipStreamCreate(&s));
  MUST(hipStreamBeginCapture(s, 0));
  for (uint64_t k = 0; k < n; k++) {
    launch(x_step, k, s);
    want = want * 3 + k;
  }
  MUST(hipStreamEndCapture(s, &g));
  printf("captured\n");
  MUST(hipGraphInstantiate(&exec, g, NULL, NULL, 0));
  MUST(hipGraphLaunch(exec, s));
  printf("launched\n");
  MUST(hipStreamSynchronize(s));
  return finish("graph", x, want);
}

static void *launch_per_thread(void *arg) {
  uint64_t n = *(uint64_t *)arg;
  static int second;
  void (*kernel)(uint64_t) = __atomic_fetch_add(&second, 1, __ATOMIC_RELAXED) ? y_step : x_step;
  for (uint64_t k = 0; k < n; k++) {
    void *args[] = {&k};
    MUST(hipLaunchKernel_spt((void *)kernel, one, one, args, 0, NULL));
  }
  MUST(hipStreamSynchronize((void *)2));
  return NULL;
}

static int threads(uint64_t n) {
  pthread_t t[2];
  uint64_t want = 0, first = 0;
  /* Before there are two threads: while one asks for a page, the others would not be held. */
  MUST(hipMemsetAsync(&first, 1, sizeof first, NULL));
  for (int i = 0; i < 2; i++) pthread_create(&t[i], NULL, launch_per_thread, &n);
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  for (uint64_t k = 0; k < n; k++) want = want * 3 + k;
  return x == want ? finish("threads", y, want) : finish("threads", x, want);
}

static volatile uint64_t arrived;
static void wait_for_step(uint64_t k) {
  while (arrived < k) pause_us(100);
}
static void arrive(uint64_t k) { arrived = k; }

static int later(uint64_t n) {
  void *a, *b;
  MUST(hipStreamCreate(&a));
  MUST(hipStreamCreate(&b));
  for (uint64_t k = 1; k <= n; k++) {
    launch(wait_for_step, k, a);
    launch(arrive, k, b);
  }
  MUST(hipDeviceSynchronize());
  return finish("later", arrived, n);
}

static int again(uint64_t n) {
  void *a, *b, *event;
  MUST(hipStreamCreate(&a));
  MUST(hipStreamCreate(&b));
  MUST(hipEventCreateWithFlags(&event, 2));
  for (uint64_t k = 1; k <= n; k++) launch(wait_for_step, k, a);
  MUST(hipEventRecord(event, a));
  MUST(hipEventRecordWithFlags(event, b, 0));
  MUST(hipEventSynchronize(event));
  printf("busy\n");
  getchar();
  arrive(n);
  return finish("again", arrived, n);
}

static int steps(uint64_t n) {
  void *s;
  uint64_t want = 0;
  MUST(hipStreamCreate(&s));
  for (uint64_t k = 0; k < n; k++) {
    launch(x_step, k, s);
    want = want * 3 + k;
    printf("at %llu\n", (unsigned long long)k);
  }
  MUST(hipStreamSynchronize(s));
  return finish("steps", x, want);
}

/* The last way is to look at memory, without any call. */
static int requests(uint64_t n) {
  void *s, *event;
  uint64_t want = 0, seen;
  MUST(hipStreamCreate(&s));
  MUST(hipEventCreateWithFlags(&event, 2));
  for (uint64_t k = 0; k < n; k++) {
    for (uint64_t i = 0; i < 8; i++) {
      launch(x_step, k + i, s);
      want = want * 3 + k + i;
    }
    MUST(hipEventRecord(event, s));
    if (k % 5 == 0) MUST(hipStreamSynchronize(s));
    if (k % 5 == 1) MUST(hipEventSynchronize(event));
    for (int r = 600; k % 5 == 2 && r == 600;) r = hipEventQuery(event);
    if (k % 5 == 3) MUST(hipMemcpy(&seen, &x, sizeof x, 2));
    while (k % 5 == 4 && __atomic_load_n(&x, __ATOMIC_ACQUIRE) != want) pause_us(50);
    if (x != want) return finish("requests", x, want);
    if (k % 5 > 2) MUST(hipDeviceSynchronize());
  }
  return finish("requests", x, want);
}

static int shares(uint64_t n) {
  struct ipc_handle handle = {{0}};
  void *p = &y, *got;
  switch (n) {
  case 0: MUST(hipIpcGetEventHandle(&handle, p)); break;
  case 1: MUST(hipIpcOpenEventHandle(&got, handle)); break;
  case 2: MUST(hipIpcGetMemHandle(&handle, p)); break;
  case 3: MUST(hipIpcOpenMemHandle(&got, handle, 0)); break;
  case 4: MUST(hipMemExportToShareableHandle(&handle, p, 0, 0)); break;
  case 5: MUST(hipMemImportFromShareableHandle(&got, &handle, 0)); break;
  case 6: MUST(hipMemPoolExportToShareableHandle(&handle, p, 0, 0)); break;
  case 7: MUST(hipMemPoolImportFromShareableHandle(&got, &handle, 0, 0)); break;
  case 8: MUST(hipMemPoolExportPointer(&handle, p)); break;
  case 9: MUST(hipMemPoolImportPointer(&got, p, &handle)); break;
  }
  return requests(20);
}

static int frees(uint64_t n) {
  void *s, *p = &y;
  uint64_t want = 0;
  MUST(hipStreamCreate(&s));
  for (uint64_t k = 0; k < n; k++) {
    for (uint64_t i = 0; i < 8; i++) {
      launch(x_step, k + i, s);
      want = want * 3 + k + i;
    }
    switch (k % 8) {
    case 0: MUST(hipFree(p)); break;
    case 1: MUST(hipFreeAsync(p, NULL)); break;
    case 2: MUST(hipArrayDestroy(p)); break;
    case 3: MUST(hipFreeMipmappedArray(p)); break;
    case 4: MUST(hipMipmappedArrayDestroy(p)); break;
    case 5: MUST(hipIpcCloseMemHandle(p)); break;
    case 6: MUST(hipMemMap(p, 8, 0, p, 0)); break;
    case 7: MUST(hipMemUnmap(p, 8)); break;
    }
    if (fakehip_blocked_frees()) return printf("wrong frees: call %llu waited for a request that had not entered\n", (unsigned long long)k % 8), 1;
    if (x != want) return finish("frees", x, want);
    MUST(hipDeviceSynchronize());
  }
  return finish("frees", x, want);
}

/* The first request must not invalidate the capture of another stream, although the shim prepares
 * late entry meanwhile. The later ones begin with a kernel that goes into a graph. */
static int unseen(uint64_t n) {
  void *s, *other, *graph;
  uint64_t want = 0;
  int mode = 1; /* thread-local */
  MUST(hipStreamCreate(&s));
  MUST(hipStreamCreate(&other));
  fakehip_capture(other, 0);
  MUST(hipThreadExchangeStreamCaptureMode(&mode));
  launch(x_step, 1, s), want = want * 3 + 1;
  if (MUST(hipThreadExchangeStreamCaptureMode(&mode)), mode != 1) return printf("wrong unseen: mode %d\n", mode), 1;
  MUST(hipStreamEndCapture(other, &graph));
  MUST(hipStreamSynchronize(s));
  for (uint64_t k = 0; k < n; k++) {
    for (uint64_t i = 0; i < 8; i++) launch(x_step, k + i, s), want = want * 3 + k + i;
    MUST(hipStreamSynchronize(s));
    fakehip_capture(s, 0);
    launch(x_step, k, s);
    MUST(hipStreamEndCapture(s, &graph));
    if (fakehip_nodes(graph) != 1) return printf("wrong unseen: %d nodes\n", fakehip_nodes(graph)), 1;
    MUST(hipDeviceSynchronize());
  }
  if (fakehip_capture(s, 0) != 0) return printf("wrong unseen: a wait on a captured stream\n"), 1;
  MUST(hipStreamEndCapture(s, &graph));
  return finish("unseen", x, want);
}

static int over;
static void until_over(uint64_t k) {
  (void)k;
  while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) pause_us(100);
}
static void say(const char *line) {
  printf("%s\n", line);
  getchar();
}
static void *destroy(void *stream) {
  MUST(hipStreamDestroy(stream));
  return NULL;
}
static int destroyed(uint64_t n) {
  void *stream, *other;
  pthread_t thread;
  MUST(hipStreamCreate(&stream));
  MUST(hipStreamCreate(&other));
  for (uint64_t k = 0; k < n; k++) launch(until_over, k, stream);
  MUST(pthread_create(&thread, NULL, destroy, stream));
  pause_us(50000);
  for (uint64_t k = 0; k < 20; k++) { /* the stream that is being destroyed is not asked, nor marked */
    launch(x_step, k, other);
    MUST(hipStreamSynchronize(other));
  }
  say("destroying");
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
  MUST(pthread_join(thread, NULL));
  say("destroyed");
  return finish("destroyed", 0, 0);
}

/* Threads that end without a wait for what they have put on their default streams. */
static void *launch_on_own(void *unused) {
  uint64_t k = 0;
  void *args[] = {&k};
  MUST(hipLaunchKernel_spt((void *)x_step, one, one, args, 0, NULL));
  return unused;
}
static int ended(uint64_t n) {
  pthread_t thread;
  for (uint64_t i = 0; i < n; i++) {
    MUST(pthread_create(&thread, NULL, launch_on_own, NULL));
    MUST(pthread_join(thread, NULL));
  }
  pause_us(50000);
  say("ended");
  return finish("ended", 0, 0);
}

/* Streams of one device, for which the program waits while another one is current. */
static int devices(uint64_t n) {
  void *streams[2], *event;
  MUST(hipSetDevice(1));
  for (int i = 0; i < 2; i++) MUST(hipStreamCreate(&streams[i]));
  MUST(hipEventCreateWithFlags(&event, 2));
  for (uint64_t k = 0; k < 2 * n; k++) launch(x_step, k, streams[k % 2]);
  MUST(hipSetDevice(0));
  MUST(hipEventRecord(event, streams[1]));
  MUST(hipStreamSynchronize(streams[0]));
  say("waited for a stream");
  MUST(hipEventSynchronize(event));
  say("waited for an event");
  return finish("devices", 0, 0);
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    int (*run)(uint64_t);
  } modes[] = {{"order", order}, {"capture", capture}, {"graph", graph}, {"threads", threads},
               {"later", later}, {"again", again},     {"steps", steps},
               {"requests", requests}, {"frees", frees}, {"shares", shares}, {"destroyed", destroyed}, {"ended", ended}, {"devices", devices}, {"unseen", unseen}, {"classes", classes}};
  setvbuf(stdout, NULL, _IONBF, 0);
  find();
  for (size_t i = 0; argc > 2 && i < sizeof modes / sizeof *modes; i++) {
    if (strcmp(argv[1], modes[i].name) == 0) return modes[i].run(strtoull(argv[2], NULL, 10));
  }
  return fprintf(stderr, "hipwork order|capture|graph|threads|later|again|steps|requests|frees|shares|destroyed|ended|devices|unseen|classes N\n"), 2;
}
