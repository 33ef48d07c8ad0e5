/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Late entry for OpenCL, without an OpenCL: opencl_late.c with functions that count.
 *
 *     opencl_late exit      the process exits while a thread puts a wait on a queue
 *     opencl_late exits     the same many times, at random moments; prints the seed
 *     opencl_late threads   the area is mapped again and again: one thread, one exit handler
 *     opencl_late futex     the system refuses futexes: the library's thread uses no CPU
 *     opencl_late word      only the word is written: the library's thread sets the event
 *
 * A queue must never wait for an event that nothing sets, and an event must be set once.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../sys.h"

static long counted_wait(uint32_t *word, uint32_t value, uint64_t until_ns, int shared);
static int counted_atexit(void (*f)(void));
#define gw_futex_wait counted_wait
#define atexit counted_atexit
#include "../opencl_late.c"
#undef gw_futex_wait
#undef atexit

struct gw_late_wait gw_late_pending;
uint32_t gw_late_active;
struct gw_library gw_opencl_library;

static void fail(const char *why) {
  printf("%s\n", why);
  fflush(stdout);
  _exit(1);
}

/* The system. */
static uint32_t waits_made, threads_made, exits_made, refuse_futexes;
static long counted_wait(uint32_t *word, uint32_t value, uint64_t until_ns, int shared) {
  __atomic_add_fetch(&waits_made, 1, __ATOMIC_RELAXED);
  return refuse_futexes ? -EPERM : gw_futex_wait(word, value, until_ns, shared);
}
static int counted_atexit(void (*f)(void)) { return (void)f, exits_made++, 0; }
bool gw_thread_start(void *(*f)(void *), size_t stack) {
  pthread_t t;
  (void)stack;
  threads_made++;
  return pthread_create(&t, NULL, f, NULL) == 0 && pthread_detach(t) == 0;
}

/* OpenCL. */
static struct event {
  uint32_t queued, set, released;
} events[4096];
static uint32_t created;
static void (*in_barrier)(void);

static int32_t queue_info(void *queue, uint32_t what, size_t size, void *value, size_t *real_size) {
  (void)what, (void)size, (void)real_size;
  return memcpy(value, &queue, sizeof queue), CL_SUCCESS;
}
static void *create_event(void *context, int32_t *error) {
  uint32_t i = __atomic_fetch_add(&created, 1, __ATOMIC_SEQ_CST);
  if (i >= sizeof events / sizeof *events) fail("too many events");
  return (void)context, *error = CL_SUCCESS, &events[i];
}
static int32_t set_event(void *event, int32_t status) {
  if (status != CL_COMPLETE || __atomic_add_fetch(&((struct event *)event)->set, 1, __ATOMIC_SEQ_CST) > 1) fail("an event is set twice");
  return CL_SUCCESS;
}
static int32_t release_event(void *event) {
  if (__atomic_add_fetch(&((struct event *)event)->released, 1, __ATOMIC_SEQ_CST) > 1) fail("an event is released twice");
  return CL_SUCCESS;
}
static int32_t barrier(void *queue, uint32_t n, void *const *list, void **event) {
  (void)queue, (void)event;
  if (in_barrier) in_barrier();
  for (uint32_t i = 0; i < n; i++) __atomic_store_n(&((struct event *)list[i])->queued, 1, __ATOMIC_SEQ_CST);
  return CL_SUCCESS;
}
void *gw_library_symbol(struct gw_library *lib, const char *name) {
  static const struct {
    const char *name;
    void *f;
  } all[] = {{"clGetCommandQueueInfo", (void *)queue_info},
             {"clCreateUserEvent", (void *)create_event},
             {"clSetUserEventStatus", (void *)set_event},
             {"clReleaseEvent", (void *)release_event},
             {"clEnqueueBarrierWithWaitList", (void *)barrier}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (strcmp(all[i].name, name) == 0) return all[i].f;
  }
  return (void)lib, NULL;
}
void *gw_elf_function_first(const char *name) { return dlsym(RTLD_DEFAULT, name); }

/* late.c: waits have numbers, and a release writes the last one to the word. */
static uint32_t word, last;
void gw_late_command(const struct gw_late_runtime *rt, enum gw_late_kind kind, void *ctx, void *stream, uint64_t key) {
  (void)kind, (void)ctx, (void)key;
  rt->wait(stream, (uint64_t)(uintptr_t)&word, __atomic_add_fetch(&last, 1, __ATOMIC_SEQ_CST));
}
static void (*after_release)(void);
void gw_late_release_now(void) {
  gw_late_advance(&word, __atomic_load_n(&last, __ATOMIC_SEQ_CST));
  if (after_release) after_release();
}
void gw_late_waits_now(void) { gw_late_release_now(); }

/* Whether all events that queues wait for are set, within ten seconds. */
static bool all_set(void) {
  for (int i = 0; i < 10000; i++) {
    bool all = true;
    for (uint32_t k = 0; k < created; k++) all &= __atomic_load_n(&events[k].set, __ATOMIC_SEQ_CST) && __atomic_load_n(&events[k].released, __ATOMIC_SEQ_CST);
    if (all) return true;
    gw_sleep(GW_MS_NS);
  }
  return false;
}

static uint32_t reached_barrier, launched, has_exited;
static pthread_t launcher;
static void wait_for_exit(void) {
  __atomic_store_n(&reached_barrier, 1, __ATOMIC_SEQ_CST);
  /* The exit handler may wait for this thread, but not for ever. */
  for (int i = 0; i < 50 && !__atomic_load_n(&has_exited, __ATOMIC_SEQ_CST); i++) gw_sleep(GW_MS_NS);
}
static void *launch(void *unused) {
  static int queue;
  gw_opencl_late(GW_LATE_KERNEL, &queue, true, 1);
  __atomic_store_n(&launched, 1, __ATOMIC_SEQ_CST);
  return unused;
}
/* Puts a wait on a queue, up to the middle of it, after the exit handler has released all waits. */
static void launch_beside(void) {
  after_release = NULL;
  pthread_create(&launcher, NULL, launch, NULL);
  while (!__atomic_load_n(&reached_barrier, __ATOMIC_SEQ_CST) && !__atomic_load_n(&launched, __ATOMIC_SEQ_CST)) gw_sleep(GW_MS_NS);
}
static void test_exit(void) {
  if (!map(&word)) fail("the area is not mapped");
  in_barrier = wait_for_exit;
  after_release = launch_beside;
  stop();
  __atomic_store_n(&has_exited, 1, __ATOMIC_SEQ_CST);
  pthread_join(launcher, NULL);
  gw_late_release_now(); /* the timer */
  if (!all_set()) fail("the process exits, and a queue waits for an event that nothing sets");
}

static uint64_t seed;
static uint64_t random_below(uint64_t n) {
  static __thread uint64_t x;
  if (!x) x = seed + (uint64_t)(uintptr_t)&x;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return x % n;
}
static void spin_a_while(void) {
  for (volatile uint64_t i = random_below(3000); i > 0; i--) {}
}
static void *launch_often(void *unused) {
  for (int i = 0; i < 4; i++) {
    spin_a_while();
    if (random_below(3)) launch(NULL);
    else gw_opencl_waits();
  }
  return unused;
}
static void test_exits(void) {
  seed = (uint64_t)gw_now() | 1;
  printf("seed %llu\n", (unsigned long long)seed);
  in_barrier = spin_a_while;
  for (int round = 0; round < 300; round++) {
    pthread_t t[2];
    if (!map(&word)) fail("the area is not mapped");
    for (int i = 0; i < 2; i++) pthread_create(&t[i], NULL, launch_often, NULL);
    gw_sleep(random_below(100000));
    stop();
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    if (!all_set()) fail("a queue waits for an event that nothing sets");
    memset(events, 0, sizeof events);
    created = 0;
    gw_opencl_late_forked(); /* as new */
  }
}

static void test_threads(void) {
  for (int i = 0; i < 20; i++) {
    if (!map(&word)) fail("the area is not mapped");
  }
  if (threads_made != 1 || exits_made != 1) printf("%u threads, %u exit handlers: ", threads_made, exits_made), fail("want one of each");
}

static void test_futex(void) {
  refuse_futexes = 1;
  if (!map(&word)) fail("the area is not mapped");
  gw_sleep(100 * GW_MS_NS);
  uint32_t n = __atomic_load_n(&waits_made, __ATOMIC_RELAXED);
  if (n == 0 || n > 500) printf("%u waits in 100 ms: ", n), fail("want some, and at most 500");
  launch(NULL);
  gw_late_release_now();
  if (!all_set()) fail("an event is not set");
}

static void test_word(void) {
  if (!map(&word)) fail("the area is not mapped");
  for (int i = 0; i < 20; i++) {
    launch(NULL);
    gw_sleep(GW_MS_NS);
    if (events[i].set) fail("an event is set before its wait is released");
    gw_late_release_now();
    if (!all_set()) fail("an event is not set");
  }
}

int main(int argc, char **argv) {
  const char *test = argc > 1 ? argv[1] : "";
  if (strcmp(test, "exit") == 0) test_exit();
  else if (strcmp(test, "exits") == 0) test_exits();
  else if (strcmp(test, "threads") == 0) test_threads();
  else if (strcmp(test, "futex") == 0) test_futex();
  else if (strcmp(test, "word") == 0) test_word();
  else return 2;
  printf("ok %s\n", test);
  return 0;
}
