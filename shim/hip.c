/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/*
 * HIP, of AMD's ROCm. It has been tested with test/fakehip.c, and with the real library on a machine
 * without an AMD GPU (make hip-check); not on AMD hardware.
 *
 * The context is the current device, because each device has its own default stream: (void *)1
 * is device 0. A stream's key is its HIP handle, with two exceptions. The legacy default
 * stream is NULL under all its names. The per-thread default stream differs from thread to
 * thread, so its key is the address of a thread variable plus one: HIP's handles are even. A
 * mark is an event without timing.
 *
 * Querying an event invalidates a capture of the stream in which it was recorded
 * (ihipEventQuery in ROCm's clr), even if it was recorded before the capture began. So no
 * event is queried while a capture is in progress, and no capture begins during a query.
 */
#include <stddef.h>
#include <string.h>

#include "class.h"
#include "gate.h"
#include "hip_calls.h"
#include "hip_late.h"
#include "hook.h"
#include "sys.h"
#include "thread_end.h"

#define EXPORT __attribute__((visibility("default")))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define THREAD __thread __attribute__((tls_model("initial-exec")))

#define LEGACY ((void *)1)
#define PER_THREAD ((void *)2)

enum { hipSuccess = 0, hipErrorNotReady = 600, hipErrorNotSupported = 801, hipEventDisableTiming = 2 };

extern struct gw_library gw_hip_library;

static void *library_function(void **cache, const char *name) {
  void *f = __atomic_load_n(cache, __ATOMIC_RELAXED);
  if (f) return f;
  __atomic_store_n(cache, f = gw_library_symbol(&gw_hip_library, name), __ATOMIC_RELAXED);
  return f;
}

static void *real_function(struct gw_hook *hook) { return gw_hook_real(&gw_hip_library, hook); }

/* A function of libamdhip64 that is not hooked. */
#define LIBRARY(name, parameters)                                                                            \
  typedef int name##_type parameters;                                                                        \
  static name##_type *name(void) {                                                                           \
    static void *cache;                                                                                      \
    return (name##_type *)library_function(&cache, #name);                                                   \
  }

LIBRARY(hipGetDevice, (int *))
LIBRARY(hipEventCreateWithFlags, (void **, uint32_t))
LIBRARY(hipStreamIsCapturing, (void *, int *))
LIBRARY(hipStreamGetPriority, (void *, int *))
LIBRARY(hipPeekAtLastError, (void))
LIBRARY(hipGetLastError, (void))

/* HIP remembers the last error of each thread. One of this library's own calls is not for the
 * program to see. */
int gw_hip_own(int r) {
  if (r == hipSuccess || !hipPeekAtLastError() || !hipGetLastError()) return r;
  if (hipPeekAtLastError()() == r) hipGetLastError()();
  return r;
}

/* Each hook has a number: its row in the table. */
#define OTHERS(HOOK)                                                                                         \
  HOOK(hipConfigureCall)                                                                                     \
  HOOK(hipLaunchByPtr)                                                                                       \
  HOOK(hipEventRecord)                                                                                       \
  HOOK(hipEventRecord_spt)                                                                                   \
  HOOK(hipEventRecordWithFlags)                                                                              \
  HOOK(hipEventQuery)                                                                                        \
  HOOK(hipEventDestroy)                                                                                      \
  HOOK(hipEventSynchronize)                                                                                  \
  HOOK(hipStreamQuery)                                                                                       \
  HOOK(hipStreamQuery_spt)                                                                                   \
  HOOK(hipStreamSynchronize)                                                                                 \
  HOOK(hipStreamSynchronize_spt)                                                                             \
  HOOK(hipDeviceSynchronize)                                                                                 \
  HOOK(hipCtxSynchronize)                                                                                    \
  HOOK(hipStreamBeginCapture)                                                                                \
  HOOK(hipStreamBeginCapture_spt)                                                                            \
  HOOK(hipStreamBeginCaptureToGraph)                                                                         \
  HOOK(hipStreamEndCapture)                                                                                  \
  HOOK(hipStreamEndCapture_spt)                                                                              \
  HOOK(hipFree)                                                                                              \
  HOOK(hipHostFree)                                                                                          \
  HOOK(hipFreeHost)                                                                                          \
  HOOK(hipFreeArray)                                                                                         \
  HOOK(hipFreeAsync)                                                                                         \
  HOOK(hipArrayDestroy)                                                                                      \
  HOOK(hipFreeMipmappedArray)                                                                                \
  HOOK(hipMipmappedArrayDestroy)                                                                             \
  HOOK(hipIpcCloseMemHandle)                                                                                 \
  HOOK(hipMemMap)                                                                                            \
  HOOK(hipMemUnmap)                                                                                          \
  HOOK(hipHostUnregister)                                                                                    \
  HOOK(hipModuleUnload)                                                                                      \
  HOOK(hipMemPoolDestroy)                                                                                    \
  HOOK(hipMemPoolTrimTo)                                                                                     \
  HOOK(hipEventElapsedTime)                                                                                  \
  HOOK(hipIpcGetEventHandle)                                                                                 \
  HOOK(hipIpcOpenEventHandle)                                                                                \
  HOOK(hipIpcGetMemHandle)                                                                                   \
  HOOK(hipIpcOpenMemHandle)                                                                                  \
  HOOK(hipMemExportToShareableHandle)                                                                        \
  HOOK(hipMemImportFromShareableHandle)                                                                      \
  HOOK(hipMemPoolExportToShareableHandle)                                                                    \
  HOOK(hipMemPoolImportFromShareableHandle)                                                                  \
  HOOK(hipMemPoolExportPointer)                                                                              \
  HOOK(hipMemPoolImportPointer)                                                                              \
  HOOK(hipStreamWaitEvent)                                                                                   \
  HOOK(hipStreamWaitEvent_spt)                                                                               \
  HOOK(hipStreamWaitValue32)                                                                                 \
  HOOK(hipStreamWaitValue64)                                                                                 \
  HOOK(hipStreamWriteValue32)                                                                                \
  HOOK(hipStreamWriteValue64)                                                                                \
  HOOK(hipSignalExternalSemaphoresAsync)                                                                     \
  HOOK(hipWaitExternalSemaphoresAsync)                                                                       \
  HOOK(hipStreamDestroy)                                                                                     \
  HOOK(hipDeviceReset)                                                                                       \
  HOOK(hipGetProcAddress)                                                                                    \
  HOOK(hipGetDriverEntryPoint)                                                                               \
  HOOK(hipGetDriverEntryPoint_spt)

#define NUMBER(name, ...) at_##name,
#define NUMBERS(name, ...) at_##name, at_##name##_spt,
enum { GW_HIP_CALLS(NUMBER, NUMBERS) OTHERS(NUMBER) };

static struct gw_hook hooks[];
#define REAL(name) ((name##_type *)real_function(&hooks[at_##name]))

typedef int hipEventRecord_type(void *event, void *stream);
typedef int hipEventQuery_type(void *event);
typedef int hipEventDestroy_type(void *event);
typedef int hipStreamQuery_type(void *stream);

static void *context(void) {
  int device = 0;
  if (!hipGetDevice() || gw_hip_own(hipGetDevice()(&device)) != hipSuccess || device < 0) device = 0;
  return (void *)(uintptr_t)(device + 1);
}

static THREAD long thread_marker; /* only its address is used */

static void *key_of(void *stream) {
  if (stream == LEGACY) return NULL;
  if (stream != PER_THREAD) return stream;
  gw_thread_note();
  return (char *)&thread_marker + 1;
}

/* NULL, and sets *foreign, for another thread's default stream. */
static void *handle_of(void *key, bool *foreign) {
  *foreign = false;
  if (!((uintptr_t)key & 1)) return key;
  if (key == (char *)&thread_marker + 1) return PER_THREAD;
  *foreign = true;
  return NULL;
}

static void *per_thread(void *stream) { return stream == NULL || stream == LEGACY ? PER_THREAD : stream; }

static gw_lock_t query_lock; /* held while an event is queried, a wait put on a stream, and while a capture is counted */

bool gw_hip_lock_captures(void) {
  gw_lock(&query_lock);
  if (!gw_capture_in_progress()) return true;
  gw_unlock(&query_lock);
  return false;
}
void gw_hip_unlock_captures(void) { gw_unlock(&query_lock); }

/* HIP as a gw_runtime. */

static void *mark(void *ctx, void *key) {
  bool foreign;
  void *stream = handle_of(key, &foreign), *event = NULL;
  (void)ctx;
  if (foreign || !hipEventCreateWithFlags() || !REAL(hipEventDestroy) || !REAL(hipEventRecord)) return NULL;
  if (gw_hip_own(hipEventCreateWithFlags()(&event, hipEventDisableTiming)) != hipSuccess) return NULL;
  if (gw_hip_own(REAL(hipEventRecord)(event, stream)) == hipSuccess) return event;
  REAL(hipEventDestroy)(event); /* for example because the stream is of another device */
  return NULL;
}

static int reached(void *event) {
  int r = -1;
  gw_lock(&query_lock);
  if (gw_capture_in_progress()) r = hipErrorNotReady; /* as far as is known: the end of the capture will show */
  else if (REAL(hipEventQuery)) r = gw_hip_own(REAL(hipEventQuery)(event));
  gw_unlock(&query_lock);
  return r == hipSuccess ? 1 : r == hipErrorNotReady ? 0 : -1;
}

static void drop(void *event) {
  if (REAL(hipEventDestroy)) REAL(hipEventDestroy)(event);
}

static int markable(void *ctx, void *key) {
  bool foreign;
  int status = 0;
  void *stream = handle_of(key, &foreign);
  (void)ctx;
  if (foreign) return 0;
  if (!gw_capture_in_progress() || !hipStreamIsCapturing()) return 1;
  return gw_hip_own(hipStreamIsCapturing()(stream, &status)) == hipSuccess && status == 0;
}

static int idle(void *ctx, void *key) {
  bool foreign;
  void *stream = handle_of(key, &foreign);
  int r = -1;
  if (foreign || ctx != context()) return -1;
  gw_lock(&query_lock);
  if (!gw_capture_in_progress() && REAL(hipStreamQuery)) r = gw_hip_own(REAL(hipStreamQuery)(stream));
  gw_unlock(&query_lock);
  return r == hipSuccess ? 1 : r == hipErrorNotReady ? 0 : -1;
}

/* A lower number is a higher priority; default streams and those created without one have 0. */
static int high(void *ctx, void *key) {
  int priority = 0;
  (void)ctx;
  if (!key || (uintptr_t)key & 1 || !hipStreamGetPriority()) return 0;
  return gw_hip_own(hipStreamGetPriority()(key, &priority)) == hipSuccess && priority < 0;
}

const struct gw_runtime gw_hip = {"hip", 1u << 1, mark, reached, drop, markable, idle, high};

/*
 * Where events were recorded, so that a program that waits for an event also tells how far its
 * stream is. An event may replace another one in the table; that information is lost then,
 * and nothing else.
 */
static gw_lock_t lock;
static struct recorded {
  void *event, *ctx, *key;
  uint64_t ticket;
} recorded[256];

static struct recorded *entry_of(const void *event) {
  return &recorded[((uintptr_t)event >> 4) * 0x9E3779B97F4A7C15u >> 56];
}

static void remember(struct recorded r) {
  gw_lock(&lock);
  *entry_of(r.event) = r;
  gw_unlock(&lock);
}

static struct recorded find_recorded(void *event) {
  gw_lock(&lock);
  struct recorded r = *entry_of(event);
  gw_unlock(&lock);
  return event && r.event == event ? r : (struct recorded){0};
}

static void forget_recorded(void *event) {
  gw_lock(&lock);
  if (event && entry_of(event)->event == event) *entry_of(event) = (struct recorded){0};
  gw_unlock(&lock);
}

/* A created stream may be waited for while the device of another one is current. */
static void *context_of(void *key, void *current) { return key && !((uintptr_t)key & 1) ? GW_ALL : current; }

static void event_done(void *event) {
  struct recorded r = find_recorded(event);
  if (r.event) gw_done(&gw_hip, context_of(r.key, r.ctx), r.key, r.ticket);
}

/* A stream is about to wait for an event, or without one for a value: see class.h. */
static void stream_waits(void *stream, void *event) {
  if (!gw_class_wanted() || gw_capture_in_progress()) return;
  struct recorded r = find_recorded(event);
  if (r.event && gw_known_done(&gw_hip, r.ctx, r.key, r.ticket)) return;
  gw_class_waits(&gw_hip, context(), key_of(stream), r.ctx, r.key);
}

/* A stream is about to be destroyed, or with GW_ALL a device reset. */
static void forget_events(void *ctx, void *key) {
  gw_lock(&lock);
  for (size_t i = 0; i < COUNT(recorded); i++) {
    if (key == GW_ALL ? recorded[i].ctx == ctx : recorded[i].key == key) recorded[i].event = NULL;
  }
  gw_unlock(&lock);
}

/* The calls. If the runtime calls a hooked function itself, that call is not gated again. */

static THREAD int nested;

struct passage {
  gw_pass pass;
  void *ctx, *key;
  uint64_t ticket;
};

static bool enter(struct passage *p, void *stream, bool waits) {
  if (nested) return false;
  p->ctx = context();
  p->key = key_of(stream);
  if (!gw_enter(&p->pass, &gw_hip, p->ctx, p->key)) return false;
  nested = 1;
  p->ticket = waits ? gw_ticket(&gw_hip, p->ctx, p->key) : 0;
  return true;
}

static int leave(struct passage *p, bool waits, int r) {
  nested = 0;
  if (!waits) {
    gw_leave(&p->pass, r == hipSuccess);
    return r;
  }
  gw_leave_done(&p->pass, r == hipSuccess);
  if (r == hipSuccess) gw_done(&gw_hip, p->ctx, p->key, p->ticket);
  return r;
}

/* How commands behave: see late.h. All others may wait, or are not known: they release. */
static const uint8_t kinds[] = {
#define BOTH(name, kind) [at_##name] = kind, [at_##name##_spt] = kind
    BOTH(hipLaunchKernel, GW_LATE_KERNEL),
    BOTH(hipLaunchCooperativeKernel, GW_LATE_KERNEL),
    [at_hipExtLaunchKernel] = GW_LATE_KERNEL,
    [at_hipModuleLaunchKernel] = GW_LATE_KERNEL,
    [at_hipExtModuleLaunchKernel] = GW_LATE_KERNEL,
    [at__Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j] = GW_LATE_KERNEL,
    [at_hipHccModuleLaunchKernel] = GW_LATE_KERNEL,
    [at__Z24hipHccModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_] = GW_LATE_KERNEL,
    [at_hipModuleLaunchCooperativeKernel] = GW_LATE_KERNEL,
    [at_hipLaunchKernelExC] = GW_LATE_QUIET, /* its first argument does not name the kernel */
    [at_hipDrvLaunchKernelEx] = GW_LATE_QUIET,
    /* Copies and memsets release: the memory may be the host's, and the program may watch it. */
    /* A graph needs one launch, and the program may wait for a host function without a call. */
    BOTH(hipGraphLaunch, GW_LATE_BARS),
    [at_hipGraphUpload] = GW_LATE_BARS,
    BOTH(hipLaunchHostFunc, GW_LATE_BARS),
    BOTH(hipStreamAddCallback, GW_LATE_BARS),
    [at_hipLaunchCooperativeKernelMultiDevice] = GW_LATE_BARS,
    [at_hipExtLaunchMultiKernelMultiDevice] = GW_LATE_BARS,
    [at_hipModuleLaunchCooperativeKernelMultiDevice] = GW_LATE_BARS,
    [at_hipGetDriverEntryPoint_spt] = 0, /* so that every hook has an entry */
#undef BOTH
};

/* Before a command. Requests are alike if they begin with the same kernel. */
static void late(int hook, const struct passage *p, void *stream, bool waits, const void *first_argument) {
  enum gw_late_kind kind = waits ? GW_LATE_WAITS : kinds[hook];
  uint64_t key = 0;
  if (kind == GW_LATE_KERNEL) memcpy(&key, first_argument, sizeof key);
  gw_hip_late(kind, p->ctx, stream, key);
}

#define FIRST(a, ...) a
#define CALL(name, stream, waits, parameters, arguments)                                                     \
  typedef int name##_type parameters;                                                                        \
  EXPORT int name parameters;                                                                                \
  int name parameters {                                                                                      \
    name##_type *real = REAL(name);                                                                          \
    struct passage passage;                                                                                  \
    if (!real) return hipErrorNotSupported;                                                                  \
    if (!enter(&passage, stream, waits)) return real arguments;                                              \
    if (gw_late_wanted()) late(at_##name, &passage, stream, waits, &(FIRST arguments));                      \
    return leave(&passage, waits, real arguments);                                                           \
  }
#define BOTH(name, stream, waits, parameters, arguments)                                                     \
  CALL(name, stream, waits, parameters, arguments)                                                           \
  CALL(name##_spt, per_thread(stream), waits, parameters, arguments)
GW_HIP_CALLS(CALL, BOTH)

/* The launch in three calls, from before ROCm 3: the first one has the stream. */
static THREAD void *configured;

typedef int hipConfigureCall_type(struct dim3 g, struct dim3 b, size_t n, void *s);
EXPORT int hipConfigureCall(struct dim3 g, struct dim3 b, size_t n, void *s);
int hipConfigureCall(struct dim3 g, struct dim3 b, size_t n, void *s) {
  configured = s;
  return REAL(hipConfigureCall) ? REAL(hipConfigureCall)(g, b, n, s) : hipErrorNotSupported;
}
CALL(hipLaunchByPtr, configured, 0, (const void *f), (f))

/* Calls that tell how far a stream is: `before` and `after` run around the real call. */
#define AROUND(name, parameters, arguments, before, after)                                                   \
  typedef int name##_type parameters;                                                                        \
  EXPORT int name parameters;                                                                                \
  int name parameters {                                                                                      \
    name##_type *real = REAL(name);                                                                          \
    if (!real) return hipErrorNotSupported;                                                                  \
    before;                                                                                                  \
    int r = real arguments;                                                                                  \
    if (r == hipSuccess) {                                                                                   \
      after;                                                                                                 \
    }                                                                                                        \
    return r;                                                                                                \
  }
#define STREAM_IS_DONE(name, parameters, arguments, stream)                                                  \
  AROUND(name, parameters, arguments, void *key = key_of(stream); void *ctx = context_of(key, context());    \
         uint64_t ticket = gw_ticket(&gw_hip, ctx, key); gw_late_waits(), gw_done(&gw_hip, ctx, key, ticket))
#define DEVICE_IS_DONE(name)                                                                                 \
  AROUND(name, (void), (), void *ctx = context(); uint64_t ticket = gw_ticket(&gw_hip, ctx, GW_ALL);         \
         gw_late_waits(), gw_done(&gw_hip, ctx, GW_ALL, ticket))
#define RECORDS(name, parameters, arguments, stream)                                                         \
  AROUND(name, parameters, arguments, void *ctx = context(); void *key = key_of(stream);                     \
         uint64_t ticket = gw_ticket(&gw_hip, context_of(key, ctx), key),                                    \
         remember((struct recorded){event, ctx, key, ticket}))

STREAM_IS_DONE(hipStreamSynchronize, (void *s), (s), s)
STREAM_IS_DONE(hipStreamSynchronize_spt, (void *s), (s), per_thread(s))
STREAM_IS_DONE(hipStreamQuery, (void *s), (s), s)
STREAM_IS_DONE(hipStreamQuery_spt, (void *s), (s), per_thread(s))
DEVICE_IS_DONE(hipDeviceSynchronize)
DEVICE_IS_DONE(hipCtxSynchronize)
RECORDS(hipEventRecord, (void *event, void *s), (event, s), s)
RECORDS(hipEventRecord_spt, (void *event, void *s), (event, s), per_thread(s))
RECORDS(hipEventRecordWithFlags, (void *event, void *s, uint32_t flags), (event, s, flags), s)
AROUND(hipEventSynchronize, (void *event), (event), gw_late_waits(), event_done(event))
AROUND(hipEventQuery, (void *event), (event), gw_late_waits(), event_done(event))
AROUND(hipEventElapsedTime, (float *ms, void *from, void *to), (ms, from, to), gw_late_waits(), )

AROUND(hipStreamWaitEvent, (void *s, void *event, uint32_t flags), (s, event, flags), stream_waits(s, event), )
AROUND(hipStreamWaitEvent_spt, (void *s, void *event, uint32_t flags), (s, event, flags), stream_waits(per_thread(s), event), )
AROUND(hipStreamWaitValue32, (void *s, void *at, uint32_t value, uint32_t flags, uint32_t mask), (s, at, value, flags, mask),
       stream_waits(s, NULL), )
AROUND(hipStreamWaitValue64, (void *s, void *at, uint64_t value, uint32_t flags, uint64_t mask), (s, at, value, flags, mask),
       stream_waits(s, NULL), )

AROUND(hipWaitExternalSemaphoresAsync, (const void *list, const void *params, uint32_t n, void *s), (list, params, n, s),
       stream_waits(s, NULL), )
/* Another event may get its handle. */
AROUND(hipEventDestroy, (void *event), (event), forget_recorded(event), )

/* Calls that may wait until streams are done. */
#define MAY_WAIT(name, parameters, arguments) AROUND(name, parameters, arguments, gw_late_may_wait(), )
MAY_WAIT(hipFree, (void *p), (p))
MAY_WAIT(hipHostFree, (void *p), (p))
MAY_WAIT(hipFreeHost, (void *p), (p))
MAY_WAIT(hipFreeArray, (void *array), (array))
MAY_WAIT(hipFreeAsync, (void *p, void *s), (p, s)) /* of memory that belongs to no pool it waits for all streams */
MAY_WAIT(hipArrayDestroy, (void *array), (array))
MAY_WAIT(hipFreeMipmappedArray, (void *array), (array))
MAY_WAIT(hipMipmappedArrayDestroy, (void *array), (array))
MAY_WAIT(hipIpcCloseMemHandle, (void *p), (p))
MAY_WAIT(hipMemMap, (void *at, size_t n, size_t offset, void *memory, unsigned long long flags), (at, n, offset, memory, flags))
MAY_WAIT(hipMemUnmap, (void *at, size_t n), (at, n))
MAY_WAIT(hipHostUnregister, (void *p), (p))
MAY_WAIT(hipModuleUnload, (void *module), (module))
MAY_WAIT(hipMemPoolDestroy, (void *pool), (pool))
MAY_WAIT(hipMemPoolTrimTo, (void *pool, size_t n), (pool, n))
/* Another thread or process may wait for these without a call. */
MAY_WAIT(hipStreamWriteValue32, (void *s, void *at, uint32_t value, uint32_t flags), (s, at, value, flags))
MAY_WAIT(hipStreamWriteValue64, (void *s, void *at, uint64_t value, uint32_t flags), (s, at, value, flags))
MAY_WAIT(hipSignalExternalSemaphoresAsync, (const void *list, const void *params, uint32_t n, void *s), (list, params, n, s))
/* Other processes wait for the event, or for what kernels write to the memory, by calls that are not seen here. */
#define SHARES(name, parameters, arguments) AROUND(name, parameters, arguments, gw_late_disable(), )
struct ipc_handle { /* hipIpcEventHandle_t, hipIpcMemHandle_t */
  char reserved[64];
};
SHARES(hipIpcGetEventHandle, (void *handle, void *event), (handle, event))
SHARES(hipIpcOpenEventHandle, (void **event, struct ipc_handle handle), (event, handle))
SHARES(hipIpcGetMemHandle, (void *handle, void *p), (handle, p))
SHARES(hipIpcOpenMemHandle, (void **p, struct ipc_handle handle, uint32_t flags), (p, handle, flags))
SHARES(hipMemExportToShareableHandle, (void *handle, void *memory, int type, unsigned long long flags), (handle, memory, type, flags))
SHARES(hipMemImportFromShareableHandle, (void **memory, void *handle, int type), (memory, handle, type))
SHARES(hipMemPoolExportToShareableHandle, (void *handle, void *pool, int type, uint32_t flags), (handle, pool, type, flags))
SHARES(hipMemPoolImportFromShareableHandle, (void **pool, void *handle, int type, uint32_t flags), (pool, handle, type, flags))
SHARES(hipMemPoolExportPointer, (void *data, void *p), (data, p))
SHARES(hipMemPoolImportPointer, (void **p, void *pool, void *data), (p, pool, data))

/* Captures. */

static void begin_capture(void *key) {
  void *ctx = context();
  gw_lock(&query_lock);
  gw_capture_begin(&gw_hip, ctx, key);
  gw_unlock(&query_lock);
  gw_capture_settle(&gw_hip); /* without the lock, which a query takes */
}

static bool is_capturing(void *stream) {
  int status = 0;
  return hipStreamIsCapturing() && gw_hip_own(hipStreamIsCapturing()(stream, &status)) == hipSuccess && status != 0;
}

#define BEGIN_CAPTURE(name, stream, parameters, arguments)                                                           \
  typedef int name##_type parameters;                                                                        \
  EXPORT int name parameters;                                                                                \
  int name parameters {                                                                                      \
    name##_type *real = REAL(name);                                                                          \
    if (!real) return hipErrorNotSupported;                                                                  \
    gw_late_may_wait();                                                                                      \
    begin_capture(key_of(stream));                                                                           \
    int r = real arguments;                                                                                  \
    if (r != hipSuccess) gw_capture_end(&gw_hip, GW_ALL, key_of(stream));                                    \
    return r;                                                                                                \
  }
BEGIN_CAPTURE(hipStreamBeginCapture, s, (void *s, int mode), (s, mode))
BEGIN_CAPTURE(hipStreamBeginCapture_spt, per_thread(s), (void *s, int mode), (s, mode))
BEGIN_CAPTURE(hipStreamBeginCaptureToGraph, s,
       (void *s, void *graph, const void *nodes, const void *edges, size_t n, int mode),
       (s, graph, nodes, edges, n, mode))

/* An invalidated capture ends here too, with an error. */
#define END_CAPTURE(name, stream)                                                                            \
  typedef int name##_type(void *s, void **graph);                                                            \
  EXPORT int name(void *s, void **graph);                                                                    \
  int name(void *s, void **graph) {                                                                          \
    name##_type *real = REAL(name);                                                                          \
    if (!real) return hipErrorNotSupported;                                                                  \
    bool was = is_capturing(stream);                                                                         \
    int r = real(s, graph);                                                                                  \
    if (was && !is_capturing(stream)) gw_capture_end(&gw_hip, GW_ALL, key_of(stream));                       \
    return r;                                                                                                \
  }
END_CAPTURE(hipStreamEndCapture, s)
END_CAPTURE(hipStreamEndCapture_spt, per_thread(s))

/*
 * Destruction. hipStreamDestroy waits for the stream's commands (HostQueue::terminate in ROCm's clr),
 * so they are done after it. Marks are dropped before it: a query of an event reads its stream
 * (hipEventQuery), which must not be gone.
 */

typedef int hipStreamDestroy_type(void *s);
EXPORT int hipStreamDestroy(void *s);
int hipStreamDestroy(void *s) {
  hipStreamDestroy_type *real = REAL(hipStreamDestroy);
  if (!real) return hipErrorNotSupported;
  if (s == NULL || s == LEGACY || s == PER_THREAD) return real(s); /* an error, which HIP reports */
  gw_late_may_wait();
  forget_events(NULL, s);
  uint64_t ticket = gw_suspend(&gw_hip, GW_ALL, s); /* it may be of another device than the current one */
  uint64_t capture = gw_capture_on(&gw_hip, s);
  int r = real(s);
  if (r == hipSuccess) gw_capture_ended(capture);
  gw_forget_before(&gw_hip, GW_ALL, s, ticket);
  return r;
}

typedef int hipDeviceReset_type(void);
EXPORT int hipDeviceReset(void);
int hipDeviceReset(void) {
  hipDeviceReset_type *real = REAL(hipDeviceReset);
  if (!real) return hipErrorNotSupported;
  gw_hip_late_forget(context());
  forget_events(context(), GW_ALL);
  gw_forget(&gw_hip, context(), GW_ALL);
  return real();
}

/*
 * HIP's own look-ups. For a name they may return the function of that name or its _spt form. The
 * wrapper of the one that was returned replaces it; any other function is left alone.
 */
static void wrap_found(const char *name, void **f) {
  if (!name || !f || !*f) return;
  size_t n = strlen(name);
  for (size_t i = 0; hooks[i].name; i++) {
    if (strncmp(hooks[i].name, name, n) != 0) continue;
    if (hooks[i].name[n] != 0 && strcmp(hooks[i].name + n, "_spt") != 0) continue;
    if (real_function(&hooks[i]) != *f) continue;
    *f = hooks[i].wrapper;
    return;
  }
}
AROUND(hipGetProcAddress, (const char *name, void **f, int version, uint64_t flags, int *status),
       (name, f, version, flags, status), , wrap_found(name, f))
AROUND(hipGetDriverEntryPoint, (const char *name, void **f, uint64_t flags, int *status),
       (name, f, flags, status), , wrap_found(name, f))
AROUND(hipGetDriverEntryPoint_spt, (const char *name, void **f, uint64_t flags, int *status),
       (name, f, flags, status), , wrap_found(name, f))

#define ROW(name, ...) {#name, (void *)name, NULL},
#define ROWS(name, ...) ROW(name) ROW(name##_spt)
static struct gw_hook hooks[] = {
    GW_HIP_CALLS(ROW, ROWS) OTHERS(ROW){NULL, NULL, NULL},
};

static void forked(void) {
  lock = query_lock = (gw_lock_t){0};
  memset(recorded, 0, sizeof recorded);
  nested = 0;
}

/* The runtime has destroyed the thread's default stream before, by a destructor of C++, and has waited
 * for its commands. Its functions must not be called on this thread any more. */
static void thread_ends(void) { gw_gone(&gw_hip, GW_ALL, (char *)&thread_marker + 1); }

struct gw_library gw_hip_library = {
    .stem = "libamdhip64",
    .prefix = "hip",
    .hooks = hooks,
    .count = COUNT(hooks) - 1,
    .forked = forked,
    .thread_ends = thread_ends,
};
