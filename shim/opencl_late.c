/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "opencl_late.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "hook.h"
#include "sys.h"
#include "thread.h"

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
static uint32_t calling; /* threads that may be calling OpenCL for the library */
static uint32_t started; /* the library's thread runs */
static uint32_t ended;   /* the process exits: no wait is put on a queue any more. Set with the lock held */

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
  __atomic_fetch_add(&calling, 1, __ATOMIC_SEQ_CST);
  for (;;) {
    gw_lock(&lock);
    void *event = take_released();
    gw_unlock(&lock);
    if (!event) break;
    opencl.clSetUserEventStatus(event, CL_COMPLETE);
    opencl.clReleaseEvent(event);
  }
  __atomic_fetch_sub(&calling, 1, __ATOMIC_SEQ_CST);
}

/* Sleeps while there is no wait. A futex that cannot be waited for must not cost a CPU. */
static void sleep_until_wait(void) {
  long r = gw_futex_wait(&count, 0, 0, 0);
  if (r != 0 && r != -EAGAIN && r != -EINTR) gw_sleep(GW_MS_NS);
}

static void *run(void *unused) {
  prctl(PR_SET_NAME, "giveway-late-cl");
  while (!__atomic_load_n(&ended, __ATOMIC_SEQ_CST)) {
    if (__atomic_load_n(&count, __ATOMIC_SEQ_CST) == 0) {
      sleep_until_wait();
      continue;
    }
    set_released();
    gw_sleep(LOOK_NS);
  }
  return unused;
}

/*
 * Runs before OpenCL's own exit handlers, which were registered earlier: they may wait for the
 * queues, and free the events. A thread that is about to put a wait on a queue either sees that
 * the process exits and sets its event itself, or has added it before and this function sets it.
 */
static void stop(void) {
  gw_lock(&lock);
  __atomic_store_n(&ended, 1, __ATOMIC_SEQ_CST);
  gw_unlock(&lock);
  gw_late_release_now();
  set_released();
  for (int i = 0; i < 1000 && __atomic_load_n(&calling, __ATOMIC_SEQ_CST); i++) gw_sleep(GW_MS_NS / 10);
}

/* Starts the library's thread, once in a process. */
static bool start_thread(void) {
  if (__atomic_exchange_n(&started, 1, __ATOMIC_SEQ_CST)) return true;
  if (atexit(stop) == 0 && gw_thread_start(run, 0)) return true;
  __atomic_store_n(&started, 0, __ATOMIC_SEQ_CST);
  return false;
}

/* OpenCL as a gw_late_runtime. All queues share one area, which the device does not see. */

static uint64_t map(void *area) { return find_functions() && start_thread() ? (uint64_t)(uintptr_t)area : 0; }

/* Adds an event that is set when the word has reached n. Returns false if there is no room, or if
 * the process exits. */
static bool add(void *event, const uint32_t *word, uint32_t n) {
  bool added = false;
  gw_lock(&lock);
  for (size_t i = 0; i < sizeof waits / sizeof *waits && !added && !ended; i++) {
    if (waits[i].event) continue;
    waits[i].event = event, waits[i].word = word, waits[i].n = n;
    __atomic_fetch_add(&count, 1, __ATOMIC_SEQ_CST);
    added = true;
  }
  gw_unlock(&lock);
  if (added) gw_futex_wake(&count, 1, 0);
  return added;
}

/* Returns false if OpenCL refuses. */
static bool put_barrier(void *queue, uint64_t word, uint32_t n) {
  void *context = NULL, *event;
  int32_t error = CL_SUCCESS;
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

/* A wait that cannot be put on the queue is left out: the request then enters at once. Only what
 * OpenCL refuses ends late entry. */
static bool put_wait(void *queue, uint64_t word, uint32_t n) {
  __atomic_fetch_add(&calling, 1, __ATOMIC_SEQ_CST); /* so that the exit handler waits for this thread */
  bool ok = __atomic_load_n(&ended, __ATOMIC_SEQ_CST) || put_barrier(queue, word, n);
  __atomic_fetch_sub(&calling, 1, __ATOMIC_SEQ_CST);
  return ok;
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
  count = calling = started = ended = 0;
}
