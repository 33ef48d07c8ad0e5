/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/*
 * OpenCL: the adapter that docs/RUNTIMES.md explains.
 *
 * A stream is a command queue, and so is the context: the gate then puts marks
 * on no queue but the one that the calling thread is using, and never on one
 * that another thread is just letting go. A mark is the event of a marker. Work
 * is found in the calls of opencl_calls.h, whether the program is linked against
 * libOpenCL, uses dlsym or asks for an extension's function.
 */
#include <stddef.h>
#include <string.h>

#include "gate.h"
#include "hook.h"
#include "opencl_calls.h"
#include "sys.h"

#define EXPORT __attribute__((visibility("default")))
#define COUNT(array) (sizeof(array) / sizeof *(array))

enum {
  CL_SUCCESS = 0,
  CL_INVALID_OPERATION = -59,
  CL_QUEUE_PROPERTIES = 0x1093,
  CL_QUEUE_OUT_OF_ORDER = 1,
  CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
};

extern struct gw_library gw_opencl_library;

static void *function(void **place, const char *name) {
  void *f = __atomic_load_n(place, __ATOMIC_RELAXED);
  if (!f) __atomic_store_n(place, f = gw_library_symbol(&gw_opencl_library, name), __ATOMIC_RELAXED);
  return f;
}

/* A function of libOpenCL that is not hooked. */
#define LIBRARY(result, name, parameters)                                                                    \
  typedef result name##_type parameters;                                                                     \
  static name##_type *name(void) {                                                                           \
    static void *place;                                                                                      \
    return (name##_type *)function(&place, #name);                                                           \
  }

LIBRARY(int32_t, clEnqueueMarkerWithWaitList, (void *, uint32_t, const void *, void **))
LIBRARY(int32_t, clFlush, (void *))
LIBRARY(int32_t, clGetEventInfo, (void *, uint32_t, size_t, void *, size_t *))
LIBRARY(int32_t, clReleaseEvent, (void *))
LIBRARY(int32_t, clGetCommandQueueInfo, (void *, uint32_t, size_t, void *, size_t *))

/* The runtime, as the gate sees it. */

static void *mark(void *ctx, void *queue) {
  void *event = NULL;
  (void)ctx;
  if (!queue || !clEnqueueMarkerWithWaitList() || !clFlush()) return NULL;
  if (clEnqueueMarkerWithWaitList()(queue, 0, NULL, &event) != CL_SUCCESS) return NULL;
  clFlush()(queue); /* what is not flushed need not ever run */
  return event;
}

static int reached(void *event) {
  int32_t status;
  clGetEventInfo_type *ask = clGetEventInfo();
  const uint32_t what = CL_EVENT_COMMAND_EXECUTION_STATUS;
  if (!ask || ask(event, what, sizeof status, &status, NULL) != CL_SUCCESS) return -1;
  return status <= 0; /* complete, or ended by an error */
}

static void drop(void *event) {
  if (clReleaseEvent()) clReleaseEvent()(event);
}

static int markable(void *ctx, void *queue) {
  (void)ctx;
  return queue != NULL;
}

const struct gw_runtime gw_opencl = {"opencl", 1u << 2, mark, reached, drop, markable};

/* In an out-of-order queue the end of one command says nothing of those before. */
static bool in_order(void *queue) {
  uint64_t are;
  clGetCommandQueueInfo_type *ask = clGetCommandQueueInfo();
  return ask && ask(queue, CL_QUEUE_PROPERTIES, sizeof are, &are, NULL) == CL_SUCCESS &&
         !(are & CL_QUEUE_OUT_OF_ORDER);
}

static gw_lock_t lock;

/*
 * The events of commands in queues that keep order, so that a program that
 * waits for one tells us how far its queue is. An event that pushes another out
 * of its place costs us that knowledge and nothing else. A handle that OpenCL
 * has given out again stands, until it is overwritten, for an event that was
 * done, or OpenCL would have kept it.
 */
static struct {
  void *event, *queue;
  uint64_t ticket;
} awaited[256];

static size_t place_of(const void *event) { return ((uintptr_t)event >> 4) * 0x9E3779B97F4A7C15u >> 56; }

static void remember(void *event, void *queue, uint64_t ticket) {
  size_t i = place_of(event);
  gw_lock(&lock);
  awaited[i].event = event, awaited[i].queue = queue, awaited[i].ticket = ticket;
  gw_unlock(&lock);
}

static void happened(void *event) {
  size_t i = place_of(event);
  gw_lock(&lock);
  void *queue = awaited[i].event == event ? awaited[i].queue : NULL;
  uint64_t ticket = awaited[i].ticket;
  awaited[i].event = queue ? NULL : awaited[i].event;
  gw_unlock(&lock);
  if (queue) gw_done(&gw_opencl, queue, queue, ticket);
}

static void forget_events_of(const void *queue) {
  gw_lock(&lock);
  for (size_t i = 0; i < COUNT(awaited); i++) {
    if (awaited[i].queue == queue) awaited[i].event = awaited[i].queue = NULL;
  }
  gw_unlock(&lock);
}

/*
 * Queues that the program has retained, and how often: OpenCL's own count has
 * its own references in it. A queue for which there is no room here is taken for
 * gone at its first release, and is a new one to the gate if it is used again.
 */
static struct {
  void *queue;
  size_t more;
} retained[64];

static void retain(void *queue) {
  size_t free = COUNT(retained), i;
  gw_lock(&lock);
  for (i = 0; i < COUNT(retained) && retained[i].queue != queue; i++) {
    if (!retained[i].queue) free = i;
  }
  if (i == COUNT(retained)) i = free;
  if (i < COUNT(retained)) retained[i].queue = queue, retained[i].more++;
  gw_unlock(&lock);
}

/* Whether that was the last of the program's own references. */
static bool release(void *queue) {
  bool last = true;
  gw_lock(&lock);
  for (size_t i = 0; i < COUNT(retained); i++) {
    if (retained[i].queue != queue) continue;
    last = false;
    if (--retained[i].more == 0) retained[i].queue = NULL;
    break;
  }
  gw_unlock(&lock);
  return last;
}

/* The calls. A runtime that calls itself by name within one is not asked again. */

static __thread int within __attribute__((tls_model("initial-exec")));

struct passage {
  gw_pass pass;
  void *queue;
  bool waits;
  uint64_t ticket;
};

static bool enter(struct passage *p, void *queue, bool blocking) {
  if (within || !gw_enter(&p->pass, &gw_opencl, queue, queue)) return false;
  within = 1;
  p->queue = queue;
  p->ticket = blocking ? gw_ticket(&gw_opencl, queue, queue) : 0;
  p->waits = p->ticket && in_order(queue);
  return true;
}

static void leave(struct passage *p, bool launched, bool blocking, void **event) {
  within = 0;
  if (blocking) {
    gw_leave_done(&p->pass, launched);
  } else {
    gw_leave(&p->pass, launched);
  }
  if (!launched) return;
  if (p->waits) gw_done(&gw_opencl, p->queue, p->queue, p->ticket);
  if (blocking || !event || !*event) return;
  uint64_t ticket = gw_ticket(&gw_opencl, p->queue, p->queue);
  if (ticket && in_order(p->queue)) remember(*event, p->queue, ticket);
}

/* Every hook has a number, so that it finds its row in the table. */
#define OTHERS(HOOK)                                                                                         \
  HOOK(clEnqueueMapBuffer)                                                                                   \
  HOOK(clEnqueueMapImage)                                                                                    \
  HOOK(clEnqueueCommandBufferKHR)                                                                            \
  HOOK(clFinish)                                                                                             \
  HOOK(clWaitForEvents)                                                                                      \
  HOOK(clRetainCommandQueue)                                                                                 \
  HOOK(clReleaseCommandQueue)                                                                                \
  HOOK(clGetExtensionFunctionAddress)                                                                        \
  HOOK(clGetExtensionFunctionAddressForPlatform)

#define NUMBER(name, ...) at_##name,
enum { GW_OPENCL_CALLS(NUMBER) GW_OPENCL_EXTENSIONS(NUMBER) OTHERS(NUMBER) };
#undef NUMBER

static struct gw_hook hooks[];
#define REAL(name) ((name##_type *)gw_hook_real(&gw_opencl_library, &hooks[at_##name]))

#define WRAPPER(linkage, name, blocking, parameters, arguments)                                              \
  typedef int32_t name##_type parameters;                                                                    \
  linkage int32_t name parameters {                                                                          \
    name##_type *real = REAL(name);                                                                          \
    struct passage passage;                                                                                  \
    if (!real) return CL_INVALID_OPERATION;                                                                  \
    if (!enter(&passage, q, blocking)) return real arguments;                                                \
    int32_t result = real arguments;                                                                         \
    leave(&passage, result == CL_SUCCESS, blocking, e);                                                      \
    return result;                                                                                           \
  }

#define CALL(name, blocking, parameters, arguments)                                                          \
  EXPORT int32_t name parameters;                                                                            \
  WRAPPER(, name, blocking, parameters, arguments)
GW_OPENCL_CALLS(CALL)
#undef CALL

#define CALL(name, blocking, parameters, arguments) WRAPPER(static, name, blocking, parameters, arguments)
GW_OPENCL_EXTENSIONS(CALL)
#undef CALL

/* Mapping returns a pointer, and the error by another. */
#define MAP(name, parameters, arguments)                                                                     \
  typedef void *name##_type parameters;                                                                      \
  EXPORT void *name parameters;                                                                              \
  void *name parameters {                                                                                    \
    name##_type *real = REAL(name);                                                                          \
    struct passage passage;                                                                                  \
    int32_t here, *given = error;                                                                            \
    if (!error) error = &here;                                                                               \
    if (!real) return *error = CL_INVALID_OPERATION, NULL;                                                   \
    if (!enter(&passage, q, b)) return error = given, real arguments;                                        \
    void *result = real arguments;                                                                           \
    leave(&passage, *error == CL_SUCCESS, b, e);                                                             \
    return result;                                                                                           \
  }
MAP(clEnqueueMapBuffer,
    (void *q, void *m, uint32_t b, uint64_t flags, size_t off, size_t n, WAITS, int32_t *error),
    (q, m, b, flags, off, n, w, ws, e, error))
MAP(clEnqueueMapImage,
    (void *q, void *m, uint32_t b, uint64_t flags, const size_t *o, const size_t *r, size_t *rp, size_t *sp,
     WAITS, int32_t *error),
    (q, m, b, flags, o, r, rp, sp, w, ws, e, error))

/* With no queues given it goes to the buffer's own, which we do not know: it is
 * held, and taken for done at once. */
typedef int32_t clEnqueueCommandBufferKHR_type(uint32_t n, void **queues, void *buffer, WAITS);
static int32_t clEnqueueCommandBufferKHR(uint32_t n, void **queues, void *buffer, WAITS) {
  clEnqueueCommandBufferKHR_type *real = REAL(clEnqueueCommandBufferKHR);
  struct passage p;
  if (!real) return CL_INVALID_OPERATION;
  void *q = n && queues ? queues[0] : NULL;
  if (!enter(&p, q, false)) return real(n, queues, buffer, w, ws, e);
  int32_t r = real(n, queues, buffer, w, ws, e);
  leave(&p, r == CL_SUCCESS, !q, e);
  return r;
}

typedef int32_t clFinish_type(void *q);
EXPORT int32_t clFinish(void *q);
int32_t clFinish(void *q) {
  clFinish_type *real = REAL(clFinish);
  if (!real) return CL_INVALID_OPERATION;
  uint64_t ticket = gw_ticket(&gw_opencl, q, q);
  int32_t r = real(q);
  if (r == CL_SUCCESS) gw_done(&gw_opencl, q, q, ticket);
  return r;
}

typedef int32_t clWaitForEvents_type(uint32_t n, void *const *events);
EXPORT int32_t clWaitForEvents(uint32_t n, void *const *events);
int32_t clWaitForEvents(uint32_t n, void *const *events) {
  clWaitForEvents_type *real = REAL(clWaitForEvents);
  if (!real) return CL_INVALID_OPERATION;
  int32_t r = real(n, events);
  for (uint32_t i = 0; r == CL_SUCCESS && i < n; i++) happened(events[i]);
  return r;
}

typedef int32_t clRetainCommandQueue_type(void *q);
EXPORT int32_t clRetainCommandQueue(void *q);
int32_t clRetainCommandQueue(void *q) {
  clRetainCommandQueue_type *real = REAL(clRetainCommandQueue);
  if (!real) return CL_INVALID_OPERATION;
  int32_t r = real(q);
  if (r == CL_SUCCESS) retain(q);
  return r;
}

typedef int32_t clReleaseCommandQueue_type(void *q);
EXPORT int32_t clReleaseCommandQueue(void *q);
int32_t clReleaseCommandQueue(void *q) {
  clReleaseCommandQueue_type *real = REAL(clReleaseCommandQueue);
  if (!real) return CL_INVALID_OPERATION;
  if (release(q)) { /* before the call: after it the handle may be another queue's */
    forget_events_of(q);
    gw_forget(&gw_opencl, q, q);
  }
  return real(q);
}

/*
 * Ours in place of a function that the program was given by name. What the
 * library exports itself finds the platform by the handles it is called with.
 * An extension's belongs to one platform: the first one's is hooked.
 */
static void *instead(const char *name, void *theirs) {
  for (size_t i = 0; theirs && name && hooks[i].name; i++) {
    if (strcmp(hooks[i].name, name) != 0) continue;
    if (gw_library_symbol(&gw_opencl_library, name)) return hooks[i].wrapper;
    void *known = NULL, **real = &hooks[i].real;
    __atomic_compare_exchange_n(real, &known, theirs, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    if (!known || known == theirs) return hooks[i].wrapper;
    gw_say("opencl: an extension of a second platform is not held");
  }
  return theirs;
}

typedef void *clGetExtensionFunctionAddress_type(const char *name);
EXPORT void *clGetExtensionFunctionAddress(const char *name);
void *clGetExtensionFunctionAddress(const char *name) {
  clGetExtensionFunctionAddress_type *real = REAL(clGetExtensionFunctionAddress);
  return real ? instead(name, real(name)) : NULL;
}

typedef void *clGetExtensionFunctionAddressForPlatform_type(void *platform, const char *name);
EXPORT void *clGetExtensionFunctionAddressForPlatform(void *platform, const char *name);
void *clGetExtensionFunctionAddressForPlatform(void *platform, const char *name) {
  clGetExtensionFunctionAddressForPlatform_type *real = REAL(clGetExtensionFunctionAddressForPlatform);
  return real ? instead(name, real(platform, name)) : NULL;
}

#define ROW(function, ...) {#function, (void *)function, NULL},
static struct gw_hook hooks[] = {
    GW_OPENCL_CALLS(ROW) GW_OPENCL_EXTENSIONS(ROW) OTHERS(ROW){NULL, NULL, NULL},
};

static void forked(void) {
  lock = (gw_lock_t){0};
  memset(awaited, 0, sizeof awaited);
  memset(retained, 0, sizeof retained);
  within = 0;
}

struct gw_library gw_opencl_library = {
    .file = "libOpenCL.so.1",
    .stem = "libOpenCL",
    .prefix = "cl",
    .hooks = hooks,
    .count = COUNT(hooks) - 1,
    .forked = forked,
};
