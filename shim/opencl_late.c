/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "opencl_late.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "hook.h"
#include "sys.h"

enum { CL_SUCCESS = 0, CL_COMPLETE = 0, CL_QUEUE_CONTEXT = 0x1090 };

/* How often the library's thread looks whether the word has released a wait. It looks only while
 * there is one. */
#define LOOK_NS (GW_MS_NS / 4)

extern struct gw_library gw_opencl_library;

static struct {
  int32_t (*clGetCommandQueueInfo)(void *, uint32_t, size_t, void *, size_t *);
  void *(*clCreateUserEvent)(void *, int32_t *);
  int32_t (*clSetUserEventStatus)(void *, int32_t);
  int32_t (*clEnqueueBarrierWithWaitList)(void *, uint32_t, void *const *, void **);
  int32_t (*clReleaseEvent)(void *);
} opencl;

/*
 * Events that queues wait for. Usually there is one: late.c has one wait pending at a time, but the
 * next may come before the event of the last is set. OpenCL is never called with the lock held.
 */
static gw_lock_t lock;
static struct {
  void *event; /* NULL: the entry is free */
  const uint32_t *word;
  uint32_t n;
} waits[4];
static uint32_t count;   /* entries that are not free; a futex of the library's thread */
static uint32_t setting; /* threads that are calling OpenCL to set an event */
static uint32_t ended;   /* the process exits: only the exit handler calls OpenCL */

static bool find_functions(void) {
#define FIND(name) __atomic_store_n((void **)&opencl.name, gw_library_symbol(&gw_opencl_library, #name), __ATOMIC_RELAXED)
  FIND(clGetCommandQueueInfo), FIND(clCreateUserEvent), FIND(clSetUserEventStatus);
  FIND(clEnqueueBarrierWithWaitList), FIND(clReleaseEvent);
#undef FIND
  return opencl.clGetCommandQueueInfo && opencl.clCreateUserEvent && opencl.clSetUserEventStatus &&
         opencl.clEnqueueBarrierWithWaitList && opencl.clReleaseEvent;
}

/* With the lock held: takes an event that is to be set, or returns NULL. */
static void *take_released(void) {
  for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
    void *event = waits[i].event;
    if (!event || (int32_t)(GW_LATE_LOAD(waits[i].word) - waits[i].n) < 0) continue;
    waits[i].event = NULL;
    __atomic_fetch_sub(&count, 1, __ATOMIC_SEQ_CST);
    return event;
  }
  return NULL;
}

/* Sets the events of all waits that are released. */
static void set_released(void) {
  if (__atomic_load_n(&count, __ATOMIC_SEQ_CST) == 0) return;
  __atomic_fetch_add(&setting, 1, __ATOMIC_SEQ_CST);
  for (;;) {
    gw_lock(&lock);
    void *event = take_released();
    gw_unlock(&lock);
    if (!event) break;
    opencl.clSetUserEventStatus(event, CL_COMPLETE);
    opencl.clReleaseEvent(event);
  }
  __atomic_fetch_sub(&setting, 1, __ATOMIC_SEQ_CST);
}

static void *run(void *unused) {
  prctl(PR_SET_NAME, "giveway-late-cl");
  while (!__atomic_load_n(&ended, __ATOMIC_SEQ_CST)) {
    if (__atomic_load_n(&count, __ATOMIC_SEQ_CST) == 0) {
      gw_futex_wait(&count, 0, 0, 0);
      continue;
    }
    set_released();
    gw_sleep(LOOK_NS);
  }
  return unused;
}

/* Runs before OpenCL's own exit handlers, which were registered earlier: they may wait for the
 * queues. Events that are set after them may be freed already. */
static void stop(void) {
  gw_late_release_now();
  set_released();
  __atomic_store_n(&ended, 1, __ATOMIC_SEQ_CST);
  for (int i = 0; i < 1000 && __atomic_load_n(&setting, __ATOMIC_SEQ_CST); i++) gw_sleep(GW_MS_NS / 10);
}

static bool start_thread(void) {
  int (*create)(unsigned long *, const void *, void *(*)(void *), void *) = gw_real_dlsym(RTLD_DEFAULT, "pthread_create");
  int (*detach)(unsigned long) = gw_real_dlsym(RTLD_DEFAULT, "pthread_detach");
  if (!create || !detach || atexit(stop) != 0) return false;
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  unsigned long thread;
  bool ok = create(&thread, NULL, run, NULL) == 0;
  if (ok) detach(thread);
  sigprocmask(SIG_SETMASK, &before, NULL);
  return ok;
}

/* OpenCL as a gw_late_runtime. All queues share one area, which the device does not see. */

static uint64_t map(void *area) { return find_functions() && start_thread() ? (uint64_t)(uintptr_t)area : 0; }

/* Adds an event that is set when the word has reached n. Returns false if there is no room. */
static bool add(void *event, const uint32_t *word, uint32_t n) {
  bool added = false;
  gw_lock(&lock);
  for (size_t i = 0; i < sizeof waits / sizeof *waits && !added; i++) {
    if (waits[i].event) continue;
    waits[i].event = event, waits[i].word = word, waits[i].n = n;
    __atomic_fetch_add(&count, 1, __ATOMIC_SEQ_CST);
    added = true;
  }
  gw_unlock(&lock);
  if (added) gw_futex_wake(&count, 1, 0);
  return added;
}

/* A wait that cannot be put on the queue is left out: the request then enters at once. Only what
 * OpenCL refuses ends late entry. */
static bool put_wait(void *queue, uint64_t word, uint32_t n) {
  void *context = NULL, *event;
  int32_t error = CL_SUCCESS;
  if (__atomic_load_n(&ended, __ATOMIC_SEQ_CST)) return true;
  if (opencl.clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof context, &context, NULL) != CL_SUCCESS) return false;
  event = opencl.clCreateUserEvent(context, &error);
  if (!event || error != CL_SUCCESS) return false;
  bool put = opencl.clEnqueueBarrierWithWaitList(queue, 1, &event, NULL) == CL_SUCCESS;
  if (!put || !add(event, (const uint32_t *)(uintptr_t)word, n)) {
    opencl.clSetUserEventStatus(event, CL_COMPLETE);
    opencl.clReleaseEvent(event);
  }
  return put;
}

static const struct gw_late_runtime runtime = {map, put_wait};

void gw_opencl_late(enum gw_late_kind kind, void *queue, bool in_order, uint64_t key) {
  gw_late_command(&runtime, in_order ? kind : GW_LATE_BARS, (void *)&runtime, queue, key);
  set_released();
}

void gw_opencl_waits(void) {
  gw_late_waits();
  set_released();
}

void gw_opencl_may_wait(void) {
  gw_late_may_wait();
  set_released();
}

void gw_opencl_late_forked(void) { /* the events are the parent's */
  lock = (gw_lock_t){0};
  memset(waits, 0, sizeof waits);
  count = setting = ended = 0;
}
