/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA programs, for fakecuda.c, whose streams, contexts, threads and captures end at unusual
 * moments. Each prints what it has done, and goes on when it reads a line.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef unsigned U;
typedef unsigned long long ptr;
int cuInit(U), cuStreamCreate(void **, U), cuStreamCreateWithPriority(void **, U, int);
int cuStreamSynchronize(void *), cuStreamDestroy_v2(void *), cuCtxSynchronize(void), cuCtxSynchronize_v2(void *);
int cuLaunchKernel_ptsz(void *, U, U, U, U, U, U, U, void *, void **, void **);
int cuLaunchKernel(void *, U, U, U, U, U, U, U, void *, void **, void **);
int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **), cuStreamWaitEvent(void *, void *, U);
int cuCtxCreate_v2(void **, U, int), cuCtxDestroy_v2(void *);
int cuMemAlloc_v2(ptr *, size_t), cuMemcpyHtoD_v2(ptr, const void *, size_t);
int cuCtxGetCurrent(void **), cuCtxRecordEvent(void *, void *), cuLaunchKernelEx(void *, void *, void **, void **);
uint64_t fakeBlocked(void), fakeStops(void), fakeInFlight(void);
void fakeWhenAsked(void (*)(void *));
int fakeGraphNodes(void *), fakeBeginCapture(void *, int);
int cuEventCreate(void **, U), cuEventRecord(void *, void *), cuEventSynchronize(void *), cuEventQuery(void *);

static void check(int result) {
  if (!result) return;
  printf("a call failed: %d\n", result);
  exit(1);
}

static void say(const char *what, uint64_t n) {
  char line[8];
  printf("%s n=%llu \n", what, (ptr)n);
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) exit(1);
}

static uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Kernels. */
static int running, most, over;
static void nothing(uint64_t *words) { (void)words; }
static void short_sleep(uint64_t *words) { (void)words, usleep(3000); }

static void counted(uint64_t *words) {
  (void)words;
  int n = __atomic_add_fetch(&running, 1, __ATOMIC_SEQ_CST);
  if (n > __atomic_load_n(&most, __ATOMIC_SEQ_CST)) __atomic_store_n(&most, n, __ATOMIC_SEQ_CST);
  usleep(20000);
  __atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
}
static void until_over(uint64_t *words) {
  (void)words;
  while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) usleep(100);
}

static void launch(void *stream, void (*kernel)(uint64_t *)) {
  uint64_t words = 0;
  void *params[] = {&words};
  check(cuLaunchKernel((void *)kernel, 1, 2, 3, 4, 5, 6, 7, stream, params, NULL));
}

/* A stream of higher priority that is always busy, and launches on one of lower priority. */
static void *keep_busy(void *stream) {
  void *events[2];
  for (int i = 0; i < 2; i++) check(cuEventCreate(&events[i], 2));
  for (int i = 0;; i++) {
    launch(stream, short_sleep);
    check(cuEventRecord(events[i & 1], stream));
    if (i) check(cuEventSynchronize(events[~i & 1]));
  }
  return NULL;
}
static void low_launches(void) {
  void *high, *low;
  pthread_t thread;
  check(cuStreamCreateWithPriority(&high, 1, -1));
  check(cuStreamCreate(&low, 1));
  check(pthread_create(&thread, NULL, keep_busy, high));
  usleep(100000);
  say("busy", 0);
  for (int i = 0; i < 3; i++) {
    uint64_t began = now_ms();
    launch(low, nothing);
    say("low", now_ms() - began);
  }
}

/* A stream for each kernel, which is destroyed while the kernel runs. */
static void stream_per_kernel(int n) {
  for (int i = 0; i < n; i++) {
    void *stream;
    check(cuStreamCreate(&stream, 1));
    launch(stream, counted);
    check(cuStreamDestroy_v2(stream));
  }
  say("most", (uint64_t)most);
  check(cuCtxSynchronize());
  say("waited", 0);
}

/* A stream that is destroyed while its kernel runs, beside another one. */
static void destroyed(void) {
  void *stream, *other, *again;
  check(cuStreamCreate(&other, 1));
  check(cuStreamCreate(&stream, 1));
  launch(stream, until_over);
  check(cuStreamDestroy_v2(stream));
  say("destroyed", 0);
  launch(other, nothing);
  check(cuStreamSynchronize(other));
  say("waited for another", 0);
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
  do check(cuStreamCreate(&again, 1)); /* the handle is used again when the kernel has ended */
  while (again != stream && usleep(1000) == 0);
  launch(again, nothing);
  check(cuStreamSynchronize(again));
  say("waited for the next", 0);
}

/* An event of a destroyed stream, whose handle the next stream has. */
static void old_event(void) {
  void *stream, *event, *again;
  check(cuStreamCreate(&stream, 1));
  check(cuEventCreate(&event, 2));
  launch(stream, until_over);
  check(cuEventRecord(event, stream));
  check(cuStreamDestroy_v2(stream));
  say("destroyed", 0);
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
  do check(cuStreamCreate(&again, 1));
  while (again != stream && usleep(1000) == 0);
  __atomic_store_n(&over, 0, __ATOMIC_RELEASE);
  launch(again, until_over);
  check(cuEventSynchronize(event));
  say("waited for the event", 0);
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
}

/* Queries of another stream while a destroyed one is busy. Prints how often the thread slept. */
static void queries(void) {
  void *stream, *other, *event;
  struct rusage before, after;
  check(cuStreamCreate(&other, 1));
  check(cuEventCreate(&event, 2));
  launch(other, nothing);
  check(cuEventRecord(event, other));
  check(cuStreamSynchronize(other));
  check(cuStreamCreate(&stream, 1));
  launch(stream, until_over);
  check(cuStreamDestroy_v2(stream));
  getrusage(RUSAGE_THREAD, &before);
  uint64_t end = now_ms() + 200;
  while (now_ms() < end) check(cuEventQuery(event));
  getrusage(RUSAGE_THREAD, &after);
  say("asked", (uint64_t)(after.ru_nvcsw - before.ru_nvcsw));
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
}

/* A stream is destroyed, and at once another one gets its handle and begins a capture. */
void fakeAfterDestroy(void (*)(void));
static void *captured;
static void capture_another(void) {
  check(cuStreamCreate(&captured, 1));
  check(cuStreamBeginCapture_v2(captured, 2));
}
static void handle_reused(void) {
  void *graph, *stream;
  check(cuStreamCreate(&stream, 1));
  launch(stream, nothing);
  check(cuStreamSynchronize(stream));
  fakeAfterDestroy(capture_another);
  check(cuStreamDestroy_v2(stream));
  launch(captured, nothing);
  say("capturing", stream == captured);
  check(cuStreamEndCapture(captured, &graph));
  say("captured", 0);
}

/* A context that is destroyed while one of its streams is captured. */
static void captured_context(void) {
  void *ctx, *stream, *streams[8];
  check(cuCtxCreate_v2(&ctx, 0, 0));
  check(cuStreamCreate(&stream, 1));
  launch(stream, nothing);
  check(cuStreamSynchronize(stream));
  check(cuStreamBeginCapture_v2(stream, 2));
  say("capturing", 0);
  check(cuCtxDestroy_v2(ctx));
  say("destroyed", 0);
  for (int i = 0; i < 8; i++) check(cuStreamCreate(&streams[i], 1));
  for (int i = 0; i < 24; i++) launch(streams[i % 8], counted);
  say("most", (uint64_t)most);
}

/* A stream that has joined the capture of another one is destroyed. */
static void joined(void) {
  void *a, *b, *forth, *back, *graph;
  check(cuStreamCreate(&a, 1));
  check(cuStreamCreate(&b, 1));
  check(cuEventCreate(&forth, 2));
  check(cuEventCreate(&back, 2));
  for (int i = 0; i < 3; i++) {
    launch(a, nothing);
    check(cuStreamSynchronize(a));
  }
  check(cuStreamBeginCapture_v2(a, 2));
  check(cuEventRecord(forth, a));
  check(cuStreamWaitEvent(b, forth, 0));
  launch(b, nothing);
  check(cuEventRecord(back, b));
  check(cuStreamWaitEvent(a, back, 0));
  check(cuStreamDestroy_v2(b));
  say("destroyed", 0);
  launch(a, nothing);
  launch(a, nothing);
  check(cuStreamEndCapture(a, &graph));
  say("nodes", (uint64_t)fakeGraphNodes(graph));
}

/* A capture that begins without a call that the shim sees. */
static void unseen_capture(void) {
  void *stream, *graph;
  check(cuStreamCreate(&stream, 1));
  for (int i = 0; i < 3; i++) {
    launch(stream, nothing);
    check(cuStreamSynchronize(stream));
  }
  check(fakeBeginCapture(stream, 2));
  launch(stream, nothing);
  launch(stream, nothing);
  check(cuStreamEndCapture(stream, &graph));
  say("nodes", (uint64_t)fakeGraphNodes(graph));
}

static char large[100000];

/* Copies on a stream while another context than its own is current, and kernels. */
int cuMemcpyDtoDAsync_v2(ptr, ptr, size_t, void *), cuCtxSetCurrent(void *);
static void copies_across(void) {
  void *first, *second, *stream;
  ptr memory;
  check(cuCtxGetCurrent(&first));
  check(cuCtxCreate_v2(&second, 0, 0));
  check(cuStreamCreate(&stream, 1));
  check(cuMemAlloc_v2(&memory, 16));
  for (int i = 0; i < 6; i++) {
    check(cuCtxSetCurrent(first));
    check(cuMemcpyDtoDAsync_v2(memory, memory + 8, 8, stream));
    check(cuCtxSetCurrent(second));
    launch(stream, counted);
  }
  say("in flight", fakeInFlight());
  check(cuCtxSynchronize());
  say("waited for the context", 0);
}

int cuMemcpy2DUnaligned_v2(const void *);
static void copy_row(ptr from, void *to_host, ptr to) {
  struct {
    size_t from_x, from_y, from_type;
    void *from_host;
    ptr from, from_array;
    size_t from_pitch, to_x, to_y, to_type;
    void *to_host;
    ptr to, to_array;
    size_t to_pitch, width, height;
  } row = {.from_type = 2, .from = from, .to_type = to_host ? 1 : 2, .to_host = to_host, .to = to, .width = 8, .height = 1};
  check(cuMemcpy2DUnaligned_v2(&row));
}

/* A small copy to the device, which does not wait for the kernels ahead of it, and a large one. Then rows,
 * within the device and to the host. */
static void copies(void) {
  void *stream;
  ptr memory;
  check(cuMemAlloc_v2(&memory, sizeof large));
  check(cuStreamCreate(&stream, 0));
  launch(stream, until_over);
  launch(NULL, nothing);
  check(cuMemcpyHtoD_v2(memory, large, 8));
  say("copied little", 0);
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
  check(cuMemcpyHtoD_v2(memory, large, sizeof large));
  say("copied much", 0);
  over = 0;
  launch(NULL, until_over);
  copy_row(memory, NULL, memory + 8);
  say("copied a row", 0);
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
  copy_row(memory, large, 0);
  say("copied a row to the host", 0);
}

/* A stream that has the handle of a blocking stream which ended with its context. */
static void blocking_handle(void) {
  void *ctx, *stream, *next;
  ptr memory;
  check(cuCtxCreate_v2(&ctx, 0, 0));
  check(cuStreamCreate(&stream, 0));
  launch(stream, nothing);
  check(cuStreamSynchronize(stream));
  check(cuCtxDestroy_v2(ctx));
  check(cuMemAlloc_v2(&memory, sizeof large));
  check(cuStreamCreate(&next, 1));
  launch(next, until_over);
  check(cuMemcpyHtoD_v2(memory, large, sizeof large));
  say("copied", next == stream);
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
}

/* A program that waits for contexts by name, and for the current one without. */
static void named_context(void) {
  void *first, *ctx, *stream;
  check(cuCtxGetCurrent(&first));
  check(cuStreamCreate(&stream, 1));
  launch(stream, nothing);
  check(cuCtxCreate_v2(&ctx, 0, 0));
  check(cuCtxSynchronize_v2(NULL));
  say("waited for the second", 0);
  check(cuCtxSynchronize_v2(first));
  say("waited for the first", 0);
  check(cuStreamCreate(&stream, 1));
  launch(stream, nothing);
  check(cuCtxSynchronize_v2(NULL));
  say("waited for the current one", 0);
}

/* An event that is recorded in one way and then in another, behind a wait of late entry. The program
 * is not blocked by that wait: the shim must not take the event for reached. */
static void recorded(int way) {
  struct {
    int id;
    void *event;
    char rest[56];
  } attribute = {12, NULL, {0}};
  struct {
    U shape[7];
    void *stream, *attributes;
    U count;
  } config = {{0}, NULL, &attribute, 1};
  uint64_t words = 0;
  void *params[] = {&words}, *stream, *event, *ctx;
  check(cuCtxGetCurrent(&ctx));
  check(cuStreamCreate(&stream, 1));
  check(cuEventCreate(&event, 0));
  config.stream = stream;
  attribute.event = event;
  for (int i = 0; i < 6; i++) {
    launch(stream, nothing);
    if (i % 2 && way) check(cuLaunchKernelEx(&config, (void *)nothing, params, NULL));
    else launch(stream, nothing);
    if (i % 2 && !way) check(cuCtxRecordEvent(ctx, event));
    else if (i % 2 == 0) check(cuEventRecord(event, stream));
    check(cuEventSynchronize(event));
    check(cuStreamSynchronize(stream));
  }
  say("blocked", fakeBlocked());
}

/* Bursts of kernels on several streams, until the program is killed. */
static void bursts(void) {
  void *streams[8];
  for (int i = 0; i < 8; i++) check(cuStreamCreate(&streams[i], 1));
  for (;;) {
    for (int i = 0; i < 24; i++) launch(streams[i % 8], short_sleep);
    check(cuCtxSynchronize());
  }
}

/* Launches on a low stream beside a high one, until the program is killed. */
static void both_classes(void) {
  void *high, *low;
  pthread_t thread;
  check(cuStreamCreateWithPriority(&high, 1, -1));
  check(cuStreamCreate(&low, 1));
  check(pthread_create(&thread, NULL, keep_busy, high));
  for (;;) {
    launch(low, nothing);
    check(cuStreamSynchronize(low));
  }
}

/*
 * A capture that begins on one thread while another asks the runtime about the stream: between the
 * question whether it is captured, and what follows. The first thread waits for its own stream, or is
 * held at the gate and marks all streams.
 */
static void *own, *theirs;
static int asked, begun;
static __thread bool asks;
static void at_question(void *stream) {
  if (stream != theirs || !asks || __atomic_exchange_n(&asked, 1, __ATOMIC_SEQ_CST)) return;
  for (int i = 0; i < 30 && !__atomic_load_n(&begun, __ATOMIC_SEQ_CST); i++) usleep(1000);
}
static void *capturer(void *unused) {
  void *graph = NULL;
  while (!__atomic_load_n(&asked, __ATOMIC_SEQ_CST)) usleep(100);
  check(cuStreamBeginCapture_v2(theirs, 1));
  __atomic_store_n(&begun, 1, __ATOMIC_SEQ_CST);
  usleep(100000);
  launch(theirs, nothing);
  int result = cuStreamEndCapture(theirs, &graph);
  printf("ended n=%d \n", result);
  say("nodes", graph ? (uint64_t)fakeGraphNodes(graph) : 0);
  return unused;
}
static void capture_beside(bool held) {
  pthread_t thread;
  check(cuStreamCreate(&own, 1));
  check(cuStreamCreate(&theirs, 1));
  launch(theirs, nothing); /* no call waits for it */
  usleep(50000);
  check(pthread_create(&thread, NULL, capturer, NULL));
  asks = true;
  fakeWhenAsked(at_question);
  if (held) {
    say("close the gate", 0);
    launch(own, nothing);
  }
  for (int i = 0; i < 12 && !held; i++) {
    launch(own, nothing);
    check(cuStreamSynchronize(own));
  }
  check(pthread_join(thread, NULL));
}

/* Threads that end without a wait for what they have put on their default streams. */
static void *launch_on_own(void *kernel) {
  uint64_t words = 0;
  void *params[] = {&words};
  check(cuLaunchKernel_ptsz(kernel, 1, 2, 3, 4, 5, 6, 7, NULL, params, NULL));
  return NULL;
}
static void run_thread(void (*kernel)(uint64_t *)) {
  pthread_t thread;
  check(pthread_create(&thread, NULL, launch_on_own, (void *)kernel));
  check(pthread_join(thread, NULL));
}
static void threads_end(void) {
  void *stream;
  check(cuStreamCreate(&stream, 1));
  run_thread(until_over);
  run_thread(nothing); /* its variables may be where those of the first thread were */
  usleep(50000);
  launch(stream, nothing);
  check(cuStreamSynchronize(stream));
  say("ended", 0);
  __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
  usleep(50000);
  launch(stream, nothing);
  check(cuStreamSynchronize(stream));
  say("done", 0);
}

/* Requests before and after a call by which the program shares something with other processes. */
struct ipc_handle {
  char bytes[64];
};
int cuIpcOpenEventHandle(void **, struct ipc_handle), cuIpcOpenMemHandle_v2(ptr *, struct ipc_handle, U);
int cuMemImportFromShareableHandle(uint64_t *, void *, int), cuMemPoolExportToShareableHandle(void *, void *, int, uint64_t);
int cuMemPoolExportPointer(void *, ptr);
static void share(int way) {
  struct ipc_handle handle = {{0}};
  void *event;
  ptr memory;
  uint64_t number;
  switch (way) {
  case 0: check(cuIpcOpenEventHandle(&event, handle)); break;
  case 1: check(cuIpcOpenMemHandle_v2(&memory, handle, 0)); break;
  case 2: check(cuMemImportFromShareableHandle(&number, &handle, 0)); break;
  case 3: check(cuMemPoolExportToShareableHandle(&handle, NULL, 0, 0)); break;
  case 4: check(cuMemPoolExportPointer(&handle, 0)); break;
  }
}
static void requests(int n, void *stream) {
  for (int i = 0; i < n; i++) {
    launch(stream, nothing);
    launch(stream, nothing);
    check(cuStreamSynchronize(stream));
  }
}
static void shared(int way) {
  void *stream;
  check(cuStreamCreate(&stream, 1));
  requests(5, stream);
  say("before", fakeStops());
  share(way);
  uint64_t stops = fakeStops();
  requests(5, stream);
  say("after", fakeStops() - stops);
}

/* Launches of a program of which a library has launched before. */
static void launches(int n) {
  void *stream;
  check(cuStreamCreate(&stream, 1));
  for (int i = 0; i < n; i++) {
    launch(stream, nothing);
    check(cuStreamSynchronize(stream));
  }
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  check(cuInit(0));
  if (!strcmp(what, "low")) low_launches();
  else if (!strcmp(what, "early")) launches(15);
  else if (!strcmp(what, "streams")) stream_per_kernel(12);
  else if (!strcmp(what, "destroyed")) destroyed();
  else if (!strcmp(what, "old event")) old_event();
  else if (!strcmp(what, "queries")) queries();
  else if (!strcmp(what, "handle reused")) handle_reused();
  else if (!strcmp(what, "captured context")) captured_context();
  else if (!strcmp(what, "joined")) joined();
  else if (!strcmp(what, "unseen capture")) unseen_capture();
  else if (!strcmp(what, "blocking handle")) blocking_handle();
  else if (!strcmp(what, "named context")) named_context();
  else if (!strcmp(what, "copies")) copies();
  else if (!strcmp(what, "copies across")) copies_across();
  else if (!strcmp(what, "context event")) recorded(0);
  else if (!strcmp(what, "launch event")) recorded(1);
  else if (!strcmp(what, "bursts")) bursts();
  else if (!strcmp(what, "classes")) both_classes();
  else if (!strcmp(what, "capture beside")) capture_beside(false);
  else if (!strcmp(what, "capture beside, held")) capture_beside(true);
  else if (!strcmp(what, "threads")) threads_end();
  else if (!strncmp(what, "share ", 6)) shared(atoi(what + 6));
  else return 1;
  printf("ok done\n");
  fflush(stdout);
  _exit(0);
}
