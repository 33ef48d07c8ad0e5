/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/*
 * The OpenCL adapter, which docs/RUNTIMES.md explains.
 *
 * A command queue is both the stream and the context. So the gate puts marks only on the queue
 * that the calling thread uses, and never on a queue that another thread is releasing. A mark
 * is the event of a marker. Programs reach the wrappers of opencl_calls.h by linking with
 * libOpenCL, through dlsym, or by asking for an extension's function.
 */
#include <stddef.h>
#include <string.h>

#include "gate.h"
#include "hook.h"
#include "opencl_calls.h"
#include "opencl_late.h"
#include "sys.h"

#define EXPORT __attribute__((visibility("default")))
#define COUNT(array) (sizeof(array) / sizeof *(array))

enum {
  CL_SUCCESS = 0,
  CL_COMPLETE = 0,
  CL_INVALID_OPERATION = -59,
  CL_QUEUE_PROPERTIES = 0x1093,
  CL_QUEUE_OUT_OF_ORDER = 1,
  CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3,
};

extern struct gw_library gw_opencl_library;

static void *library_function(void **cache, const char *name) {
  void *f = __atomic_load_n(cache, __ATOMIC_RELAXED);
  if (!f) __atomic_store_n(cache, f = gw_library_symbol(&gw_opencl_library, name), __ATOMIC_RELAXED);
  return f;
}

/* A function of libOpenCL that is not hooked. */
#define LIBRARY(result, name, parameters)                                                                    \
  typedef result name##_type parameters;                                                                     \
  static name##_type *name(void) {                                                                           \
    static void *cache;                                                                                      \
    return (name##_type *)library_function(&cache, #name);                                                   \
  }

LIBRARY(int32_t, clEnqueueMarkerWithWaitList, (void *, uint32_t, const void *, void **))
LIBRARY(int32_t, clFlush, (void *))
LIBRARY(int32_t, clReleaseEvent, (void *))
LIBRARY(int32_t, clGetCommandQueueInfo, (void *, uint32_t, size_t, void *, size_t *))

/* OpenCL as a gw_runtime. */

static void *mark(void *ctx, void *queue) {
  void *event = NULL;
  (void)ctx;
  if (!queue || !clEnqueueMarkerWithWaitList() || !clFlush()) return NULL;
  if (clEnqueueMarkerWithWaitList()(queue, 0, NULL, &event) != CL_SUCCESS) return NULL;
  clFlush()(queue); /* commands that are not flushed may never run */
  return event;
}

static int32_t real_clGetEventInfo(void *event, uint32_t what, size_t size, void *value, size_t *real_size);

static int reached(void *event) {
  int32_t status;
  const uint32_t what = CL_EVENT_COMMAND_EXECUTION_STATUS;
  if (real_clGetEventInfo(event, what, sizeof status, &status, NULL) != CL_SUCCESS) return -1;
  return status <= 0; /* complete, or ended by an error */
}

static void drop(void *event) {
  if (clReleaseEvent()) clReleaseEvent()(event);
}

static int markable(void *ctx, void *queue) {
  (void)ctx;
  return queue != NULL;
}

const struct gw_runtime gw_opencl = {
    .name = "opencl", .bit = 1u << 2, .mark = mark, .reached = reached, .drop = drop, .markable = markable};

/* In an out-of-order queue a completed command says nothing about earlier ones. */
static bool in_order(void *queue) {
  uint64_t properties;
  clGetCommandQueueInfo_type *ask = clGetCommandQueueInfo();
  return ask && ask(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties, NULL) == CL_SUCCESS &&
         !(properties & CL_QUEUE_OUT_OF_ORDER);
}

static gw_lock_t lock;

/*
 * The events of commands in in-order queues, so that a program that waits for an event also
 * tells how far its queue is. An event may replace another one in the table; that information
 * is lost then, and nothing else. If OpenCL reuses a handle, the old entry is of an event that
 * is done, because OpenCL keeps an event until then.
 */
static struct {
  void *event, *queue;
  uint64_t ticket;
} recorded[256];

static size_t index_of(const void *event) { return ((uintptr_t)event >> 4) * 0x9E3779B97F4A7C15u >> 56; }

static void remember(void *event, void *queue, uint64_t ticket) {
  size_t i = index_of(event);
  gw_lock(&lock);
  recorded[i].event = event, recorded[i].queue = queue, recorded[i].ticket = ticket;
  gw_unlock(&lock);
}

static void event_done(void *event) {
  size_t i = index_of(event);
  gw_lock(&lock);
  void *queue = recorded[i].event == event ? recorded[i].queue : NULL;
  uint64_t ticket = recorded[i].ticket;
  recorded[i].event = queue ? NULL : recorded[i].event;
  gw_unlock(&lock);
  if (queue) gw_done(&gw_opencl, queue, queue, ticket);
  else gw_done(&gw_opencl, NULL, NULL, 0); /* it may be of a queue that the program has released */
}

static void forget_events_of(const void *queue) {
  gw_lock(&lock);
  for (size_t i = 0; i < COUNT(recorded); i++) {
    if (recorded[i].queue == queue) recorded[i].event = recorded[i].queue = NULL;
  }
  gw_unlock(&lock);
}

/*
 * Queues that the program has retained, and how often. OpenCL's own count cannot be used,
 * because it includes references of the implementation. A queue that does not fit here counts
 * as destroyed at its first release, and as a new queue if it is used again.
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

/* Whether this was the program's last reference. */
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

/* The calls. If the runtime calls a hooked function itself, that call is not gated again. */

static __thread int nested __attribute__((tls_model("initial-exec")));

struct passage {
  gw_pass pass;
  void *queue;
  bool waits;
  uint64_t ticket;
};

/* done: the call returns when its command is done. */
static bool enter(struct passage *p, void *queue, bool done) {
  if (nested || !gw_enter(&p->pass, &gw_opencl, queue, queue)) return false;
  nested = 1;
  p->queue = queue;
  p->ticket = done ? gw_ticket(&gw_opencl, queue, queue) : 0;
  p->waits = p->ticket && in_order(queue);
  return true;
}

static void leave(struct passage *p, bool launched, bool blocking, void **event) {
  nested = 0;
  if (blocking) {
    gw_leave_done(&p->pass, launched);
  } else {
    gw_leave(&p->pass, launched);
  }
  if (!launched) return;
  if (p->waits) gw_done(&gw_opencl, p->queue, p->queue, p->ticket);
  if (p->waits || !event || !*event) return;
  uint64_t ticket = gw_ticket(&gw_opencl, p->queue, p->queue);
  if (ticket && in_order(p->queue)) remember(*event, p->queue, ticket);
}

/* Each hook has a number: its row in the table. */
#define OTHERS(HOOK)                                                                                         \
  HOOK(clEnqueueMapBuffer)                                                                                   \
  HOOK(clEnqueueMapImage)                                                                                    \
  HOOK(clEnqueueCommandBufferKHR)                                                                            \
  HOOK(clFinish)                                                                                             \
  HOOK(clWaitForEvents)                                                                                      \
  HOOK(clGetEventInfo)                                                                                       \
  HOOK(clGetEventProfilingInfo)                                                                              \
  HOOK(clSetEventCallback)                                                                                   \
  HOOK(clReleaseMemObject)                                                                                   \
  HOOK(clReleaseContext)                                                                                     \
  HOOK(clSVMFree)                                                                                            \
  HOOK(clRetainCommandQueue)                                                                                 \
  HOOK(clReleaseCommandQueue)                                                                                \
  HOOK(clGetExtensionFunctionAddress)                                                                        \
  HOOK(clGetExtensionFunctionAddressForPlatform)

#define NUMBER(name, ...) at_##name,
enum { GW_OPENCL_CALLS(NUMBER) GW_OPENCL_EXTENSIONS(NUMBER) OTHERS(NUMBER) };
#undef NUMBER

static struct gw_hook hooks[];
#define REAL(name) ((name##_type *)gw_hook_real(&gw_opencl_library, &hooks[at_##name]))

/* How commands behave: see late.h. All others may wait, or are not known: they release. The program
 * sees buffers and images only through calls, but shared virtual memory at any time. */
static const uint8_t kinds[] = {
    [at_clEnqueueNDRangeKernel] = GW_LATE_KERNEL,
    [at_clEnqueueTask] = GW_LATE_KERNEL,
    [at_clEnqueueCopyBuffer] = GW_LATE_QUIET,
    [at_clEnqueueCopyBufferRect] = GW_LATE_QUIET,
    [at_clEnqueueCopyImage] = GW_LATE_QUIET,
    [at_clEnqueueCopyImageToBuffer] = GW_LATE_QUIET,
    [at_clEnqueueCopyBufferToImage] = GW_LATE_QUIET,
    [at_clEnqueueFillBuffer] = GW_LATE_QUIET,
    [at_clEnqueueFillImage] = GW_LATE_QUIET,
    /* The program may wait for a host function without a call, and other APIs for their objects. */
    [at_clEnqueueNativeKernel] = GW_LATE_BARS,
    [at_clEnqueueSVMFree] = GW_LATE_BARS,
    [at_clEnqueueAcquireGLObjects] = GW_LATE_BARS,
    [at_clEnqueueReleaseGLObjects] = GW_LATE_BARS,
    [at_clEnqueueCommandBufferKHR] = GW_LATE_BARS,
    [at_clGetExtensionFunctionAddressForPlatform] = 0, /* so that every hook has an entry */
};

/* A blocking write returns when it has taken its data, which may be before the commands ahead of it are
 * done. It counts as done all the same, because it takes next to no time. */
static bool is_write(int hook) {
  return hook == at_clEnqueueWriteBuffer || hook == at_clEnqueueWriteBufferRect || hook == at_clEnqueueWriteImage;
}

/* Before a command. Requests are alike if they begin with the same kernel. */
static void late(int hook, void *queue, bool blocking, uintptr_t kernel) {
  gw_opencl_late(blocking && !is_write(hook) ? GW_LATE_WAITS : kinds[hook], queue, queue && in_order(queue), kernel);
}

#define SECOND(a, b, ...) (b)
#define WRAPPER(linkage, name, blocking, parameters, arguments)                                              \
  typedef int32_t name##_type parameters;                                                                    \
  linkage int32_t name parameters {                                                                          \
    name##_type *real = REAL(name);                                                                          \
    struct passage passage;                                                                                  \
    if (!real) return CL_INVALID_OPERATION;                                                                  \
    if (!enter(&passage, q, blocking && !is_write(at_##name))) return real arguments;                        \
    if (gw_late_wanted()) late(at_##name, q, blocking, (uintptr_t)SECOND arguments);                         \
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

/* A map call returns a pointer, and its error through another pointer. */
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
    if (gw_late_wanted()) late(at_##name, q, b, 0);                                                          \
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

/* Without queues the command buffer goes to its own queue, which is not known here. The call
 * is held, and counts as done at once. */
typedef int32_t clEnqueueCommandBufferKHR_type(uint32_t n, void **queues, void *buffer, WAITS);
static int32_t clEnqueueCommandBufferKHR(uint32_t n, void **queues, void *buffer, WAITS) {
  clEnqueueCommandBufferKHR_type *real = REAL(clEnqueueCommandBufferKHR);
  struct passage p;
  if (!real) return CL_INVALID_OPERATION;
  void *q = n && queues ? queues[0] : NULL;
  if (!enter(&p, q, false)) return real(n, queues, buffer, w, ws, e);
  if (gw_late_wanted()) late(at_clEnqueueCommandBufferKHR, q, false, 0);
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
  gw_opencl_waits();
  int32_t r = real(q);
  if (r == CL_SUCCESS) gw_done(&gw_opencl, q, q, ticket), gw_waited();
  return r;
}

typedef int32_t clWaitForEvents_type(uint32_t n, void *const *events);
EXPORT int32_t clWaitForEvents(uint32_t n, void *const *events);
int32_t clWaitForEvents(uint32_t n, void *const *events) {
  clWaitForEvents_type *real = REAL(clWaitForEvents);
  if (!real) return CL_INVALID_OPERATION;
  gw_opencl_waits();
  int32_t r = real(n, events);
  for (uint32_t i = 0; r == CL_SUCCESS && i < n; i++) event_done(events[i]);
  if (r == CL_SUCCESS) gw_waited();
  return r;
}

/* Calls that ask for completion, or may wait: they release a request that has not entered yet. */
#define RELEASES(result, name, before, if_missing, parameters, arguments)                                    \
  typedef result name##_type parameters;                                                                     \
  EXPORT result name parameters;                                                                             \
  result name parameters {                                                                                   \
    name##_type *real = REAL(name);                                                                          \
    if (!real) return if_missing;                                                                            \
    before();                                                                                                \
    return real arguments;                                                                                   \
  }
RELEASES(int32_t, clGetEventProfilingInfo, gw_opencl_waits, CL_INVALID_OPERATION,
         (void *event, uint32_t what, size_t size, void *value, size_t *real_size),
         (event, what, size, value, real_size))
RELEASES(int32_t, clSetEventCallback, gw_opencl_waits, CL_INVALID_OPERATION,
         (void *event, int32_t status, void *f, void *data), (event, status, f, data))
RELEASES(int32_t, clReleaseMemObject, gw_opencl_may_wait, CL_INVALID_OPERATION, (void *memory), (memory))
RELEASES(int32_t, clReleaseContext, gw_opencl_may_wait, CL_INVALID_OPERATION, (void *context), (context))
RELEASES(void, clSVMFree, gw_opencl_may_wait, , (void *context, void *memory), (context, memory))

typedef int32_t clGetEventInfo_type(void *event, uint32_t what, size_t size, void *value, size_t *real_size);
EXPORT int32_t clGetEventInfo(void *event, uint32_t what, size_t size, void *value, size_t *real_size);
int32_t clGetEventInfo(void *event, uint32_t what, size_t size, void *value, size_t *real_size) {
  clGetEventInfo_type *real = REAL(clGetEventInfo);
  int32_t status = 1;
  if (!real) return CL_INVALID_OPERATION;
  gw_opencl_waits();
  int32_t r = real(event, what, size, value, real_size);
  bool known = r == CL_SUCCESS && what == CL_EVENT_COMMAND_EXECUTION_STATUS && value && size >= sizeof status;
  if (known) memcpy(&status, value, sizeof status);
  if (status == CL_COMPLETE) event_done(event);
  else if (status < 0) gw_done(&gw_opencl, NULL, NULL, 0); /* as in event_done: it may be the last that the program asks for */
  return r;
}

static int32_t real_clGetEventInfo(void *event, uint32_t what, size_t size, void *value, size_t *real_size) {
  clGetEventInfo_type *real = REAL(clGetEventInfo);
  return real ? real(event, what, size, value, real_size) : CL_INVALID_OPERATION;
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
  gw_opencl_may_wait();
  if (release(q)) { /* before the call: after it the handle may be reused */
    forget_events_of(q);
    gw_destroying(&gw_opencl, q, q); /* the queue's commands run on */
  }
  return real(q);
}

/*
 * Replaces a function that the program has looked up by name with its wrapper. A function that
 * the library itself exports finds the platform by the handles it is called with. A function
 * of an extension belongs to one platform, and only that of the first platform is hooked.
 */
static void *wrapper_for(const char *name, void *theirs) {
  for (size_t i = 0; theirs && name && hooks[i].name; i++) {
    if (strcmp(hooks[i].name, name) != 0) continue;
    if (gw_library_symbol(&gw_opencl_library, name)) return hooks[i].wrapper;
    void *known = NULL, **real = &hooks[i].real;
    __atomic_compare_exchange_n(real, &known, theirs, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    if (!known || known == theirs) return hooks[i].wrapper;
    gw_log("opencl: an extension of a second platform is not held");
  }
  return theirs;
}

typedef void *clGetExtensionFunctionAddress_type(const char *name);
EXPORT void *clGetExtensionFunctionAddress(const char *name);
void *clGetExtensionFunctionAddress(const char *name) {
  clGetExtensionFunctionAddress_type *real = REAL(clGetExtensionFunctionAddress);
  return real ? wrapper_for(name, real(name)) : NULL;
}

typedef void *clGetExtensionFunctionAddressForPlatform_type(void *platform, const char *name);
EXPORT void *clGetExtensionFunctionAddressForPlatform(void *platform, const char *name);
void *clGetExtensionFunctionAddressForPlatform(void *platform, const char *name) {
  clGetExtensionFunctionAddressForPlatform_type *real = REAL(clGetExtensionFunctionAddressForPlatform);
  return real ? wrapper_for(name, real(platform, name)) : NULL;
}

#define ROW(name, ...) {#name, (void *)name, NULL},
static struct gw_hook hooks[] = {
    GW_OPENCL_CALLS(ROW) GW_OPENCL_EXTENSIONS(ROW) OTHERS(ROW){NULL, NULL, NULL},
};

static void forked(void) {
  lock = (gw_lock_t){0};
  memset(recorded, 0, sizeof recorded);
  memset(retained, 0, sizeof retained);
  gw_opencl_late_forked();
  nested = 0;
}

struct gw_library gw_opencl_library = {
    .stem = "libOpenCL",
    .prefix = "cl",
    .hooks = hooks,
    .count = COUNT(hooks) - 1,
    .forked = forked,
};
