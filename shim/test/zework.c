/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Level Zero program that knows nothing of the shim. It needs the driver of fakeze.c, of whose
 * kernels it checks the results: a command that is lost, run twice or out of order changes them.
 *
 *     zework queue N        regular lists on a queue, ordered by barriers; waits for a fence
 *     zework events N       an immediate list, each kernel waits for the event of the one before
 *     zework barriers N     an immediate list, ordered by barriers
 *     zework together N     kernels of an immediate list that may run at the same time
 *     zework sync N         a queue and an immediate list that wait for their work
 *     zework mixed N        two engines, regular and immediate lists, in order by events across them;
 *                           all streams, lists and events are created and destroyed in each round
 *     zework threads N      threads with lists of their own and a queue that they share
 *     zework later N        kernels wait for an event that the program sets after N launches
 *     zework word N         a kernel waits for a word that the program sets after N launches
 *     zework again          uses an event and a fence again that are signalled already
 *     zework overtaken      a thread's execution with a fence returns after another thread's execution
 *     zework lost           destroys queues after the loss of the device; prints how long it took
 *     zework record N       records regular lists, then executes them and prints a line for each
 *     zework asked N        asks the driver for the function that appends a kernel
 *     zework steps N        appends N kernels and prints a line for each
 *     zework told           waits in each way that tells how far a stream is; prints a line after each
 *     zework halfway N HOW  puts N kernels on a stream (queue or list), waits for a line, then N more
 */
#include "zeprogram.h"

#include <pthread.h>
#include <time.h>

#define ASYNC ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS
#define SYNC ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS
static kernel_t advance, blend, wait_word;
static uint32_t sum;

static void compare(const uint32_t *got, const uint32_t *want, const char *what) {
  for (int i = 0; i < FAKEZE_ITEMS; i++) {
    if (got[i] != want[i]) {
      printf("wrong %s item=%d got=%08x want=%08x\n", what, i, got[i], want[i]);
      fflush(stdout);
      _exit(1);
    }
    mix(&sum, got[i]);
  }
}

static void advanced(uint32_t *want, uint32_t k) {
  for (int i = 0; i < FAKEZE_ITEMS; i++) want[i] = fakeze_advance(want[i], k);
}

static void wait_for(event_t e) { MUST(ze.EventHostSynchronize(e, UINT64_MAX)); }

/* An event with a pool of its own. */
static event_t alone(void) { return new_event(new_pool(1), 0); }

static void in_queue(int n) {
  queue_t q = new_queue(COMPUTE, ASYNC);
  ze_fence_handle_t fence = new_fence(q);
  uint32_t *data = new_buffer(), want[FAKEZE_ITEMS] = {0};
  list_t *lists = calloc((size_t)n, sizeof *lists);
  for (int k = 0; k < n; k++) {
    lists[k] = new_list(COMPUTE);
    MUST(ze.CommandListAppendBarrier(lists[k], NULL, 0, NULL));
    launch(lists[k], advance, (uint64_t)data, (uint64_t)k, 200, NULL, 0, NULL);
    execute(q, lists[k], k == n - 1 ? fence : NULL);
    advanced(want, (uint32_t)k);
  }
  MUST(ze.FenceHostSynchronize(fence, UINT64_MAX));
  compare(data, want, "queue");
  for (int k = 0; k < n; k++) MUST(ze.CommandListDestroy(lists[k]));
  MUST(ze.FenceDestroy(fence));
  MUST(ze.CommandQueueDestroy(q));
}

static void by_events(int n) {
  list_t l = new_immediate(COMPUTE, ASYNC);
  ze_event_pool_handle_t pool = new_pool(3);
  event_t e[3] = {new_event(pool, 0), new_event(pool, 1), new_event(pool, 2)};
  uint32_t *data = new_buffer(), want[FAKEZE_ITEMS] = {0};
  for (int k = 0; k < n; k++) {
    /* An event can be reset when the kernel that waits for it has started. */
    if (k >= 3) wait_for(e[(k - 2) % 3]), MUST(ze.EventHostReset(e[k % 3]));
    launch(l, advance, (uint64_t)data, (uint64_t)k, 200, e[k % 3], k > 0, &e[(k + 2) % 3]);
    advanced(want, (uint32_t)k);
  }
  wait_for(e[(n - 1) % 3]);
  compare(data, want, "events");
  for (int i = 0; i < 3; i++) MUST(ze.EventDestroy(e[i]));
  MUST(ze.EventPoolDestroy(pool));
  MUST(ze.CommandListDestroy(l));
}

static void by_barriers(int n, bool print) {
  list_t l = new_immediate(COMPUTE, ASYNC);
  event_t end = alone();
  uint32_t *data = new_buffer(), want[FAKEZE_ITEMS] = {0};
  for (int k = 0; k < n; k++) {
    launch(l, advance, (uint64_t)data, (uint64_t)k, 200, NULL, 0, NULL);
    MUST(ze.CommandListAppendBarrier(l, k == n - 1 ? end : NULL, 0, NULL));
    advanced(want, (uint32_t)k);
    if (print) printf("at %d\n", k);
  }
  wait_for(end);
  compare(data, want, "barriers");
  MUST(ze.CommandListDestroy(l));
}

static void together(int n) {
  enum { BUFFERS = 4 };
  list_t l = new_immediate(COMPUTE, ASYNC);
  event_t end = alone(), events[BUFFERS];
  uint32_t *data[BUFFERS], want[FAKEZE_ITEMS] = {0};
  for (int i = 0; i < BUFFERS; i++) data[i] = new_buffer(), events[i] = alone();
  for (int k = 0; k < n; k++) {
    for (int i = 0; i < BUFFERS; i++) launch(l, advance, (uint64_t)data[i], (uint64_t)k, 300, events[i], 0, NULL);
    for (int i = 0; i < BUFFERS; i++) wait_for(events[i]), MUST(ze.EventHostReset(events[i]));
    advanced(want, (uint32_t)k);
  }
  MUST(ze.CommandListAppendBarrier(l, end, 0, NULL));
  wait_for(end);
  for (int i = 0; i < BUFFERS; i++) compare(data[i], want, "together");
  MUST(ze.CommandListDestroy(l));
}

static void synchronous(int n) {
  queue_t q = new_queue(COMPUTE, SYNC);
  list_t l = new_immediate(COMPUTE, SYNC), again = new_list(COMPUTE);
  uint32_t *data = new_buffer(), want[FAKEZE_ITEMS] = {0};
  launch(again, advance, (uint64_t)data, 7, 50, NULL, 0, NULL);
  MUST(ze.CommandListClose(again));
  for (int k = 0; k < n; k++) {
    MUST(ze.CommandQueueExecuteCommandLists(q, 1, &again, NULL));
    launch(l, advance, (uint64_t)data, (uint64_t)k, 50, NULL, 0, NULL);
    advanced(want, 7), advanced(want, (uint32_t)k);
    if (k == n - 1) compare(data, want, "sync");
  }
}

/* The result of each stage is the next one's input: a kernel in a queue, a copy on the other engine, a
 * kernel in an immediate list, and two lists at once in the queue. */
static void mixed_round(uint32_t *const data[3], uint32_t k) {
  queue_t q = new_queue(COMPUTE, ASYNC), copies = new_queue(COPY, ASYNC);
  list_t first = new_list(COMPUTE), copy = new_list(COPY), last[2] = {new_list(COMPUTE), new_list(COMPUTE)};
  list_t imm = new_immediate(COMPUTE, ASYNC), filler = new_immediate(COPY, ASYNC);
  ze_event_pool_handle_t pool = new_pool(6);
  event_t e[6];
  const uint32_t pattern = k;
  for (uint32_t i = 0; i < 6; i++) e[i] = new_event(pool, i);

  launch(first, advance, (uint64_t)data[0], k, 100, e[0], 1, &e[5]);
  execute(q, first, NULL);
  MUST(ze.CommandListAppendMemoryCopy(copy, data[1], data[0], BYTES, e[1], 1, &e[0]));
  execute(copies, copy, NULL);
  MUST(ze.CommandListAppendMemoryFill(filler, data[2], &pattern, 4, BYTES, e[2], 0, NULL));
  MUST(ze.EventHostSignal(e[5])); /* now the first kernel starts */
  launch(imm, blend, (uint64_t)data[2], (uint64_t)data[1], k, e[3], 2, &e[1]);
  MUST(ze.CommandListAppendWaitOnEvents(last[0], 1, &e[3]));
  launch(last[0], advance, (uint64_t)data[2], k, 50, NULL, 0, NULL);
  MUST(ze.CommandListAppendBarrier(last[0], NULL, 0, NULL));
  launch(last[1], blend, (uint64_t)data[0], (uint64_t)data[2], k, e[4], 0, NULL);
  MUST(ze.CommandListClose(last[0])), MUST(ze.CommandListClose(last[1]));
  MUST(ze.CommandQueueExecuteCommandLists(q, 2, last, NULL));
  while (ze.EventQueryStatus(e[4]) == ZE_RESULT_NOT_READY) usleep(50);

  for (int i = 0; i < 6; i++) MUST(ze.EventDestroy(e[i]));
  MUST(ze.EventPoolDestroy(pool));
  MUST(ze.CommandListDestroy(first)), MUST(ze.CommandListDestroy(copy));
  MUST(ze.CommandListDestroy(last[0])), MUST(ze.CommandListDestroy(last[1]));
  MUST(ze.CommandListDestroy(imm)), MUST(ze.CommandListDestroy(filler));
  MUST(ze.CommandQueueDestroy(q)), MUST(ze.CommandQueueDestroy(copies));
}

static void mixed(int n) {
  uint32_t *data[3] = {new_buffer(), new_buffer(), new_buffer()}, a[FAKEZE_ITEMS] = {0}, c[FAKEZE_ITEMS];
  for (uint32_t k = 0; k < (uint32_t)n; k++) {
    mixed_round(data, k);
    advanced(a, k);
    for (int i = 0; i < FAKEZE_ITEMS; i++) c[i] = fakeze_blend(k, a[i], k);
    advanced(c, k);
    for (int i = 0; i < FAKEZE_ITEMS; i++) a[i] = fakeze_blend(a[i], c[i], k);
    compare(data[0], a, "mixed");
    compare(data[2], c, "mixed");
  }
}

static queue_t shared;
static int rounds;

static void *one_thread(void *seed) {
  list_t imm = new_immediate(COMPUTE, ASYNC), *lists = calloc((size_t)rounds, sizeof *lists);
  kernel_t k = new_kernel("advance"); /* a kernel's arguments belong to one thread */
  event_t *e = calloc((size_t)rounds, sizeof *e);
  uint32_t *data = new_buffer(), want[FAKEZE_ITEMS] = {0};
  for (int i = 0; i < rounds; i++) {
    uint32_t value = (uint32_t)((uint64_t)seed + (uint64_t)i);
    e[i] = alone();
    list_t l = i % 3 ? (lists[i] = new_list(COMPUTE)) : imm;
    launch(l, k, (uint64_t)data, value, 50, e[i], i > 0, e + i - 1);
    if (i % 3) execute(shared, l, NULL);
    ze.EventQueryStatus(e[i / 2]); /* while the other threads append */
    advanced(want, value);
  }
  wait_for(e[rounds - 1]);
  compare(data, want, "threads");
  for (int i = 0; i < rounds; i++) MUST(ze.EventDestroy(e[i]));
  MUST(ze.CommandListDestroy(imm));
  return lists;
}

static void threads(int n) {
  pthread_t t[3];
  void *lists[3];
  shared = new_queue(COMPUTE, ASYNC);
  rounds = n;
  for (uint64_t i = 0; i < 3; i++) pthread_create(&t[i], NULL, one_thread, (void *)(i * 1000));
  for (int i = 0; i < 3; i++) pthread_join(t[i], &lists[i]);
  MUST(ze.CommandQueueSynchronize(shared, UINT64_MAX));
  for (int i = 0; i < 3 * n; i++) {
    list_t l = ((list_t *)lists[i / n])[i % n];
    if (l) MUST(ze.CommandListDestroy(l));
  }
  MUST(ze.CommandQueueDestroy(shared));
  sum = 0; /* threads add to it at any time */
}

static void later(int n) {
  list_t first = new_immediate(COMPUTE, ASYNC), second = new_immediate(COMPUTE, ASYNC), l = new_list(COMPUTE);
  queue_t q = new_queue(COMPUTE, ASYNC);
  event_t host = alone(), ends[2] = {alone(), alone()};
  uint32_t *a = new_buffer(), *b = new_buffer(), *c = new_buffer(), want[FAKEZE_ITEMS] = {0}, once[FAKEZE_ITEMS] = {0};
  launch(l, advance, (uint64_t)c, 5, 10, NULL, 1, &host);
  execute(q, l, NULL);
  launch(first, advance, (uint64_t)a, 0, 10, NULL, 1, &host);
  for (int k = 0; k < n; k++) {
    MUST(ze.CommandListAppendBarrier(first, NULL, 0, NULL));
    launch(first, advance, (uint64_t)a, (uint64_t)k + 1, 10, k == n - 1 ? ends[0] : NULL, 0, NULL);
    launch(second, advance, (uint64_t)b, (uint64_t)k, 10, k == n - 1 ? ends[1] : NULL, 0, NULL);
    MUST(ze.CommandListAppendBarrier(second, NULL, 0, NULL));
  }
  MUST(ze.EventHostSignal(host));
  wait_for(ends[0]), wait_for(ends[1]);
  MUST(ze.CommandQueueSynchronize(q, UINT64_MAX));
  for (int k = 0; k < n; k++) advanced(want, (uint32_t)k);
  compare(b, want, "later");
  advanced(want, (uint32_t)n);
  compare(a, want, "later");
  advanced(once, 5);
  compare(c, once, "later");
}

static void word(int n) {
  list_t l = new_list(COMPUTE);
  queue_t q = new_queue(COMPUTE, ASYNC);
  uint32_t *w = new_buffer();
  launch(l, wait_word, (uint64_t)w, 0, 0, NULL, 0, NULL);
  execute(q, l, NULL);
  by_barriers(n, false); /* waits for its own kernels */
  __atomic_store_n(w, 1, __ATOMIC_RELEASE);
  MUST(ze.CommandQueueSynchronize(q, UINT64_MAX));
}

static void again(void) {
  queue_t q = new_queue(COMPUTE, ASYNC);
  ze_fence_handle_t fence = new_fence(q);
  list_t imm = new_immediate(COMPUTE, ASYNC), shortly = new_list(COMPUTE), busy = new_list(COMPUTE);
  event_t e = alone();
  uint32_t *w = new_buffer(), *data = new_buffer();
  launch(shortly, advance, (uint64_t)data, 1, 10, NULL, 0, NULL);
  launch(busy, wait_word, (uint64_t)w, 0, 0, NULL, 0, NULL);
  execute(q, shortly, fence);
  MUST(ze.FenceHostSynchronize(fence, UINT64_MAX));
  launch(imm, advance, (uint64_t)data, 1, 10, e, 0, NULL);
  wait_for(e);
  execute(q, busy, fence);
  launch(imm, wait_word, (uint64_t)w, 0, 0, e, 0, NULL);
  MUST(ze.FenceHostSynchronize(fence, UINT64_MAX)); /* at once */
  MUST(ze.FenceQueryStatus(fence));
  wait_for(e);
  printf("busy\n");
  getchar();
  __atomic_store_n(w, 1, __ATOMIC_RELEASE);
  MUST(ze.CommandQueueSynchronize(q, UINT64_MAX));
  MUST(ze.EventHostReset(e));
  MUST(ze.CommandListAppendBarrier(imm, e, 0, NULL));
  wait_for(e);
}

/* A word of the driver that changes how it behaves. */
static int *of_driver(const char *name) {
  void *word = NULL;
  MUST(ze.DriverGetExtensionFunctionAddress(driver, name, &word));
  return word;
}

static ze_fence_handle_t shared_fence;

static void *execute_with_fence(void *list) {
  execute(shared, list, shared_fence);
  MUST(ze.FenceHostSynchronize(shared_fence, UINT64_MAX));
  return NULL;
}

static void overtaken(void) {
  int *slow = of_driver("fakezeSlow");
  list_t shortly = new_list(COMPUTE), busy = new_list(COMPUTE);
  uint32_t *w = new_buffer();
  pthread_t t;
  shared = new_queue(COMPUTE, ASYNC), shared_fence = new_fence(shared);
  launch(shortly, advance, (uint64_t)new_buffer(), 1, 10, NULL, 0, NULL);
  launch(busy, wait_word, (uint64_t)w, 0, 0, NULL, 0, NULL);
  __atomic_store_n(slow, 1, __ATOMIC_SEQ_CST);
  pthread_create(&t, NULL, execute_with_fence, shortly);
  while (ze.FenceQueryStatus(shared_fence) == ZE_RESULT_NOT_READY) usleep(50);
  execute(shared, busy, NULL);
  __atomic_store_n(slow, 0, __ATOMIC_SEQ_CST);
  pthread_join(t, NULL);
  printf("busy\n");
  getchar();
  __atomic_store_n(w, 1, __ATOMIC_RELEASE);
  MUST(ze.CommandQueueSynchronize(shared, UINT64_MAX));
}

static void after_loss(void) {
  queue_t q[4];
  uint32_t *w = new_buffer();
  for (int i = 0; i < 4; i++) {
    list_t l = new_list(COMPUTE);
    launch(l, wait_word, (uint64_t)w, 0, 0, NULL, 0, NULL);
    execute(q[i] = new_queue(COMPUTE, ASYNC), l, NULL);
  }
  __atomic_store_n(of_driver("fakezeLost"), 1, __ATOMIC_SEQ_CST);
  struct timespec from, to;
  clock_gettime(CLOCK_MONOTONIC, &from);
  for (int i = 0; i < 4; i++) ze.CommandQueueDestroy(q[i]);
  clock_gettime(CLOCK_MONOTONIC, &to);
  printf("destroyed ms=%ld\n", (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000);
}

static void record(int n) {
  queue_t q = new_queue(COMPUTE, ASYNC);
  uint32_t *data = new_buffer(), want[FAKEZE_ITEMS] = {0};
  list_t *lists = calloc((size_t)n, sizeof *lists);
  for (int k = 0; k < n; k++) {
    lists[k] = new_list(COMPUTE);
    MUST(ze.CommandListAppendBarrier(lists[k], NULL, 0, NULL));
    launch(lists[k], advance, (uint64_t)data, (uint64_t)k, 50, NULL, 0, NULL);
    advanced(want, (uint32_t)k);
  }
  printf("recorded\n");
  for (int k = 0; k < n; k++) execute(q, lists[k], NULL), printf("at %d\n", k);
  MUST(ze.CommandQueueSynchronize(q, UINT64_MAX));
  compare(data, want, "record");
}

static void asked(int n) {
  MUST(ze.DriverGetExtensionFunctionAddress(driver, "zeCommandListAppendLaunchKernel", (void **)&ze.CommandListAppendLaunchKernel));
  by_barriers(n, true);
}

static void waited(const char *how) {
  printf("waited for %s\n", how);
  for (int c = 0; c != '\n' && c != EOF;) c = getchar(); /* the whole line: there are several waits */
}

static void told(void) {
  queue_t q = new_queue(COMPUTE, ASYNC);
  ze_fence_handle_t fence = new_fence(q);
  list_t imm = new_immediate(COMPUTE, ASYNC), l = new_list(COMPUTE), first = new_list(COMPUTE), with_event = new_list(COMPUTE);
  uint32_t *data = new_buffer();
  void *loader = dlopen("libze_loader.so.1", RTLD_NOW);
  bool can_ask = loader && dlsym(loader, "zeCommandListHostSynchronize");
  event_t e[7];
  for (int i = 0; i < 7; i++) e[i] = alone();
  launch(l, advance, (uint64_t)data, 1, 50, NULL, 0, NULL);
  launch(first, advance, (uint64_t)data, 1, 50, NULL, 0, NULL);
  launch(with_event, advance, (uint64_t)data, 1, 50, e[0], 0, NULL);
  MUST(ze.CommandListClose(l)), MUST(ze.CommandListClose(with_event));

  execute(q, first, NULL);
  MUST(ze.CommandQueueExecuteCommandLists(q, 1, &l, fence));
  MUST(ze.FenceHostSynchronize(fence, UINT64_MAX));
  waited("a fence");
  MUST(ze.CommandQueueExecuteCommandLists(q, 1, &l, NULL));
  MUST(ze.CommandQueueSynchronize(q, UINT64_MAX));
  waited("a queue");
  MUST(ze.CommandQueueExecuteCommandLists(q, 1, &with_event, NULL));
  wait_for(e[0]);
  usleep(20000); /* the list ends after its event */
  wait_for(e[0]);
  waited("an event of a regular list");
  launch(imm, advance, (uint64_t)data, 1, 50, e[1], 0, NULL);
  launch(imm, advance, (uint64_t)data, 2, 50, e[2], 1, &e[1]);
  wait_for(e[2]);
  waited("the last event of a chain");
  launch(imm, advance, (uint64_t)data, 1, 50, NULL, 0, NULL);
  launch(imm, advance, (uint64_t)data, 2, 50, NULL, 0, NULL);
  MUST(ze.CommandListAppendBarrier(imm, e[3], 0, NULL));
  while (ze.EventQueryStatus(e[3]) == ZE_RESULT_NOT_READY) usleep(50);
  waited("the event of a barrier");
  launch(imm, advance, (uint64_t)data, 1, 50, e[5], 0, NULL);
  launch(imm, advance, (uint64_t)new_buffer(), 1, 50, e[6], 0, NULL);
  wait_for(e[5]), wait_for(e[6]);
  usleep(20000);
  wait_for(e[6]);
  waited(can_ask ? "two events, and the runtime can be asked" : "two events");
  MUST(ze.EventHostReset(e[3]));
  MUST(ze.CommandListAppendBarrier(imm, e[3], 0, NULL));
  wait_for(e[3]);
  launch(imm, wait_word, (uint64_t)new_buffer(), 0, 0, NULL, 0, NULL);
  launch(imm, advance, (uint64_t)data, 1, 50, e[4], 0, NULL);
  wait_for(e[4]); /* while the kernel before it runs for ever */
  waited("an event that says nothing about the rest");
}

static void halfway(int n, const char *how) {
  bool in_list = strcmp(how, "list") == 0;
  queue_t q = in_list ? NULL : new_queue(COMPUTE, ASYNC);
  list_t l = in_list ? new_immediate(COMPUTE, ASYNC) : NULL;
  uint32_t *data = new_buffer();
  event_t end = alone();
  for (int k = 0; k < 2 * n; k++) {
    if (k == n) printf("halfway\n"), getchar();
    if (q) l = new_list(COMPUTE);
    launch(l, advance, (uint64_t)data, 1, 5000, NULL, 0, NULL);
    if (q) execute(q, l, NULL);
  }
  if (q) MUST(ze.CommandQueueSynchronize(q, UINT64_MAX));
  else MUST(ze.CommandListAppendBarrier(l, end, 0, NULL)), wait_for(end);
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "";
  int n = argc > 2 ? atoi(argv[2]) : 1;
  begin();
  advance = new_kernel("advance"), blend = new_kernel("blend"), wait_word = new_kernel("wait");
  if (strcmp(mode, "queue") == 0) in_queue(n);
  else if (strcmp(mode, "events") == 0) by_events(n);
  else if (strcmp(mode, "barriers") == 0) by_barriers(n, false);
  else if (strcmp(mode, "steps") == 0) by_barriers(n, true);
  else if (strcmp(mode, "together") == 0) together(n);
  else if (strcmp(mode, "sync") == 0) synchronous(n);
  else if (strcmp(mode, "mixed") == 0) mixed(n);
  else if (strcmp(mode, "threads") == 0) threads(n);
  else if (strcmp(mode, "later") == 0) later(n);
  else if (strcmp(mode, "word") == 0) word(n);
  else if (strcmp(mode, "again") == 0) again();
  else if (strcmp(mode, "overtaken") == 0) overtaken();
  else if (strcmp(mode, "lost") == 0) after_loss();
  else if (strcmp(mode, "record") == 0) record(n);
  else if (strcmp(mode, "asked") == 0) asked(n);
  else if (strcmp(mode, "told") == 0) told();
  else if (strcmp(mode, "halfway") == 0) halfway(n, argc > 3 ? argv[3] : "");
  else return 2;
  printf("ok %s sum=%08x most=%d\n", mode, sum, take_most());
  return 0;
}
