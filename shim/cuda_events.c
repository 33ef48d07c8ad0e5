/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/* The CUDA driver's calls that tell that work is done, and those that create and destroy
 * streams and events. None of them is ever held. */
#include <stddef.h>

#include "activity.h"
#include "class.h"
#include "cuda.h"
#include "env.h"
#include "late.h"
#include "park.h"
#include "sys.h"

static gw_lock_t lock;

/* Where each event was last recorded. The table loses entries: an event without one says
 * nothing about its stream. */
#define RECORDINGS 512
static struct recording {
  void *event, *ctx, *stream;
  uint64_t ticket;
  uint32_t pending; /* the wait of late entry that was pending when the event was recorded; 0: none */
} recordings[RECORDINGS];

static struct recording *entry_of(void *event) {
  return &recordings[((uint64_t)(uintptr_t)event * 0x9e3779b97f4a7c15ull) >> 55];
}

static uint32_t pending_wait(void) { return __atomic_load_n(&gw_late_pending.armed, __ATOMIC_ACQUIRE); }

/* To be called after the driver's call: a wait that becomes pending later is not ahead of the event. */
static void remember(void *event, void *ctx, void *stream, uint64_t ticket) {
  uint32_t pending = pending_wait();
  gw_lock(&lock);
  *entry_of(event) = (struct recording){event, ctx, stream, ticket, pending};
  gw_unlock(&lock);
}

static struct recording find_recording(void *event) {
  gw_lock(&lock);
  struct recording p = *entry_of(event);
  gw_unlock(&lock);
  return p.event == event ? p : (struct recording){0};
}

static void forget_event(void *event) {
  gw_lock(&lock);
  if (entry_of(event)->event == event) *entry_of(event) = (struct recording){0};
  gw_unlock(&lock);
}

/* Blocking streams: they wait for the legacy stream and it waits for them. Streams are created
 * so by default. The table holds a limited number. */
#define MAX_BLOCKING 64
#define NON_BLOCKING_FLAG 1u /* CU_STREAM_NON_BLOCKING */
static struct {
  void *ctx, *stream; /* stream is NULL: the entry is free. Read without the lock */
} blocking[MAX_BLOCKING];

static void set_blocking(int i, void *ctx, void *stream) {
  __atomic_store_n(&blocking[i].stream, NULL, __ATOMIC_RELAXED);
  __atomic_store_n(&blocking[i].ctx, ctx, __ATOMIC_RELEASE);
  __atomic_store_n(&blocking[i].stream, stream, __ATOMIC_RELEASE);
}

/* The context of each stream. The table loses entries. */
#define OWNED 512
static struct owned {
  void *ctx, *stream; /* as above */
} owned[OWNED];

static struct owned *owned_by(const void *stream) {
  return &owned[((uint64_t)(uintptr_t)stream * 0x9e3779b97f4a7c15ull) >> 55];
}

static void set_owned(struct owned *o, void *ctx, void *stream) {
  __atomic_store_n(&o->stream, NULL, __ATOMIC_RELAXED);
  __atomic_store_n(&o->ctx, ctx, __ATOMIC_RELEASE);
  __atomic_store_n(&o->stream, stream, __ATOMIC_RELEASE);
}

void *cuda_context_of(void *stream) {
  struct owned *o = owned_by(stream);
  if (__atomic_load_n(&o->stream, __ATOMIC_ACQUIRE) != stream) return NULL;
  void *ctx = __atomic_load_n(&o->ctx, __ATOMIC_ACQUIRE);
  return __atomic_load_n(&o->stream, __ATOMIC_RELAXED) == stream ? ctx : NULL;
}

/* A stream of this context, or of every context with GW_ALL, ends; with stream GW_ALL all of them. */
static void forget_streams(void *ctx, void *stream) {
  gw_lock(&lock);
  for (int i = 0; i < MAX_BLOCKING; i++) {
    bool same = (ctx == GW_ALL || blocking[i].ctx == ctx) && (stream == GW_ALL || blocking[i].stream == stream);
    if (same) set_blocking(i, NULL, NULL);
  }
  for (struct owned *o = owned; o < owned + OWNED; o++) {
    bool same = (ctx == GW_ALL || o->ctx == ctx) && (stream == GW_ALL || o->stream == stream);
    if (same) set_owned(o, NULL, NULL);
  }
  gw_unlock(&lock);
}

/* The driver may give a stream the handle of one that ended without a call of the program. */
void cuda_stream_created(void *stream, unsigned flags) {
  forget_streams(GW_ALL, stream);
  void *ctx = cuda_context();
  gw_lock(&lock);
  set_owned(owned_by(stream), ctx, stream);
  for (int i = 0; i < MAX_BLOCKING && !(flags & NON_BLOCKING_FLAG); i++) {
    if (blocking[i].stream) continue;
    set_blocking(i, ctx, stream);
    break;
  }
  gw_unlock(&lock);
}

void cuda_green_stream_created(void *stream) { forget_streams(GW_ALL, stream); }

/* How often a library was unloaded or a context destroyed: kernels are not loaded any more then, and later
 * ones may have their handles. */
static uint64_t unloads;
static void count_unload(void) { __atomic_add_fetch(&unloads, 1, __ATOMIC_RELAXED); }

void cuda_events_context_gone(void *ctx) {
  forget_streams(ctx, GW_ALL);
  count_unload();
}

void cuda_copied(void *ctx, void *stream, uint64_t ticket) {
  gw_done(&cuda_runtime, ctx, stream, ticket);
  for (int i = 0; i < MAX_BLOCKING && stream == LEGACY; i++) {
    void *s = __atomic_load_n(&blocking[i].stream, __ATOMIC_ACQUIRE);
    if (s && __atomic_load_n(&blocking[i].ctx, __ATOMIC_RELAXED) == ctx) gw_done(&cuda_runtime, ctx, s, ticket);
  }
  gw_waited();
}

void cuda_events_forked(void) {
  lock = (gw_lock_t){0};
  __builtin_memset(recordings, 0, sizeof recordings);
  __builtin_memset(blocking, 0, sizeof blocking);
  __builtin_memset(owned, 0, sizeof owned);
}

/* Before a call that waits for work of the program. */
static void will_wait(void) {
  cuda_unpark();
  gw_late_waits();
}

/* Before a call that asks whether work is done. It does not wait for parked kernels. */
static void will_ask(void) { gw_late_waits(); }

/* Before a call that may wait although that is not its purpose. */
static void may_wait(void) {
  cuda_unpark();
  gw_late_may_wait();
}

/* The driver reads CUDA_LAUNCH_BLOCKING, which programs also set for themselves before this call. */
EXPORTED int cuInit(unsigned flags) {
  gw_env_read_launches_block();
  CALL(cuInit, (unsigned), (flags));
  return result;
}

/* Completed work. */

EXPORTED int cuCtxSynchronize(void) {
  void *ctx = cuda_context();
  uint64_t ticket = gw_ticket(&cuda_runtime, ctx, GW_ALL);
  will_wait();
  CALL(cuCtxSynchronize, (void), ());
  if (result == CUDA_SUCCESS) gw_done(&cuda_runtime, ctx, GW_ALL, ticket), gw_waited();
  return result;
}

/* Of the current context if NULL. */
EXPORTED int cuCtxSynchronize_v2(void *ctx) {
  void *waits_for = ctx ? ctx : cuda_context();
  uint64_t ticket = gw_ticket(&cuda_runtime, waits_for, GW_ALL);
  will_wait();
  CALL(cuCtxSynchronize_v2, (void *), (ctx));
  if (result == CUDA_SUCCESS) gw_done(&cuda_runtime, waits_for, GW_ALL, ticket), gw_waited();
  return result;
}

/* A created stream may be waited for in any context, and an event recorded in it; a default stream only in
 * its own. */
static void *context_of(void *key) { return (uintptr_t)key & 3 ? cuda_context() : GW_ALL; }

/* A query must not wait, so it has no end. */
#define STREAM_IS_DONE(symbol, if_null, begin, end)                                \
  EXPORTED int symbol(void *stream) {                                              \
    void *key = cuda_stream(stream, if_null), *ctx = context_of(key);              \
    uint64_t ticket = gw_ticket(&cuda_runtime, ctx, key);                          \
    begin();                                                                       \
    CALL(symbol, (void *), (stream));                                              \
    if (result != CUDA_SUCCESS) return result;                                     \
    gw_done(&cuda_runtime, ctx, key, ticket);                                      \
    end;                                                                           \
    return result;                                                                 \
  }
STREAM_IS_DONE(cuStreamSynchronize, LEGACY, will_wait, gw_waited())
STREAM_IS_DONE(cuStreamSynchronize_ptsz, PER_THREAD, will_wait, gw_waited())
STREAM_IS_DONE(cuStreamQuery, LEGACY, will_ask, )
STREAM_IS_DONE(cuStreamQuery_ptsz, PER_THREAD, will_ask, )

/* Whether the event may be behind the pending wait. That all commands of its own stream are done does not
 * tell: the stream may wait for an event of another one, or for the default stream. */
static bool is_behind_wait(const struct recording *p) { return p->pending && p->pending == pending_wait(); }

#define EVENT_IS_DONE(symbol, begin, end)                                                        \
  EXPORTED int symbol(void *event) {                                                             \
    struct recording p = find_recording(event);                                                  \
    /* An event that is known to be reached releases nothing: allocators ask for old events all  \
     * the time. */                                                                              \
    bool known = gw_known_done(&cuda_runtime, p.ctx, p.stream, p.ticket) && !is_behind_wait(&p); \
    if (!known) begin();                                                                         \
    CALL(symbol, (void *), (event));                                                             \
    if (result != CUDA_SUCCESS) return result;                                                   \
    gw_done(&cuda_runtime, p.ctx, p.stream, p.ticket);                                           \
    end;                                                                                         \
    return result;                                                                               \
  }
EVENT_IS_DONE(cuEventSynchronize, will_wait, gw_waited())
EVENT_IS_DONE(cuEventQuery, will_ask, )

static void event_recorded(void *event, void *ctx, void *key, uint64_t ticket) {
  /* An event recorded into a graph says nothing about the stream now. */
  bool graph = ticket && gw_capture_in_progress() && !cuda_runtime.markable(ctx, key);
  if (graph) forget_event(event);
  else remember(event, ctx, key, ticket);
}

#define RECORD(symbol, if_null)                                          \
  EXPORTED int symbol(void *event, void *stream) {                       \
    void *key = cuda_stream(stream, if_null), *ctx = context_of(key);    \
    uint64_t ticket = gw_ticket(&cuda_runtime, ctx, key);                \
    CALL(symbol, (void *, void *), (event, stream));                     \
    if (result == CUDA_SUCCESS) event_recorded(event, ctx, key, ticket); \
    return result;                                                       \
  }
RECORD(cuEventRecord, LEGACY)
RECORD(cuEventRecord_ptsz, PER_THREAD)

#define RECORD_WITH_FLAGS(symbol, if_null)                               \
  EXPORTED int symbol(void *event, void *stream, unsigned flags) {       \
    void *key = cuda_stream(stream, if_null), *ctx = context_of(key);    \
    uint64_t ticket = gw_ticket(&cuda_runtime, ctx, key);                \
    CALL(symbol, (void *, void *, unsigned), (event, stream, flags));    \
    if (result == CUDA_SUCCESS) event_recorded(event, ctx, key, ticket); \
    return result;                                                       \
  }
RECORD_WITH_FLAGS(cuEventRecordWithFlags, LEGACY)
RECORD_WITH_FLAGS(cuEventRecordWithFlags_ptsz, PER_THREAD)

/* Streams that wait for others: see class.h. Waits in a graph have no effect now. */

static void stream_waits(void *stream, void *if_null, struct recording p) {
  if (gw_capture_in_progress() || gw_known_done(&cuda_runtime, p.ctx, p.stream, p.ticket)) return;
  gw_class_waits(&cuda_runtime, cuda_context(), cuda_stream(stream, if_null), p.ctx, p.stream);
}
#define UNKNOWN ((struct recording){0})

#define WAIT_EVENT(symbol, if_null)                                                     \
  EXPORTED int symbol(void *stream, void *event, unsigned flags) {                      \
    if (gw_class_wanted()) stream_waits(stream, if_null, find_recording(event));        \
    CALL(symbol, (void *, void *, unsigned), (stream, event, flags));                   \
    return result;                                                                      \
  }
WAIT_EVENT(cuStreamWaitEvent, LEGACY)
WAIT_EVENT(cuStreamWaitEvent_ptsz, PER_THREAD)

#define WAIT_VALUE(symbol, type, if_null)                                               \
  EXPORTED int symbol(void *stream, unsigned long long at, type value, unsigned flags) { \
    if (gw_class_wanted()) stream_waits(stream, if_null, UNKNOWN);                      \
    CALL(symbol, (void *, unsigned long long, type, unsigned), (stream, at, value, flags)); \
    return result;                                                                      \
  }
#define WAIT_VALUE_4(symbol, type)                                                      \
  WAIT_VALUE(symbol, type, LEGACY) WAIT_VALUE(symbol##_ptsz, type, PER_THREAD)          \
  WAIT_VALUE(symbol##_v2, type, LEGACY) WAIT_VALUE(symbol##_v2_ptsz, type, PER_THREAD)
WAIT_VALUE_4(cuStreamWaitValue32, uint32_t)
WAIT_VALUE_4(cuStreamWaitValue64, uint64_t)

#define WAIT_SEMAPHORES(symbol, if_null)                                                \
  EXPORTED int symbol(void *list, void *params, unsigned n, void *stream) {             \
    if (gw_class_wanted()) stream_waits(stream, if_null, UNKNOWN);                      \
    CALL(symbol, (void *, void *, unsigned, void *), (list, params, n, stream));        \
    return result;                                                                      \
  }
WAIT_SEMAPHORES(cuWaitExternalSemaphoresAsync, LEGACY)
WAIT_SEMAPHORES(cuWaitExternalSemaphoresAsync_ptsz, PER_THREAD)

/* Captures. */

static int is_capturing(void *stream, void *if_null) {
  int status = 0;
  const struct cuda_driver *d = cuda_driver();
  if (!stream) stream = if_null;
  if (!d->cuStreamIsCapturing || d->cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS) return 0;
  return status;
}

#define BEGIN(symbol, if_null, types, params, args)                                                             \
  EXPORTED int symbol params {                                                                                  \
    void *key = cuda_stream(s, if_null);                                                                        \
    int(*real) types = REAL(symbol);                                                                            \
    if (!real) return CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;                                                \
    may_wait();                                                                                                 \
    gw_capture_begin(&cuda_runtime, cuda_context(), key);                                                       \
    gw_capture_settle(&cuda_runtime);                                                                           \
    int result = real args;                                                                                     \
    if (result != CUDA_SUCCESS) gw_capture_end(&cuda_runtime, GW_ALL, key);                                     \
    return result;                                                                                              \
  }
#define BEGIN_BOTH(symbol, types, params, args) \
  BEGIN(symbol, LEGACY, types, params, args) BEGIN(symbol##_ptsz, PER_THREAD, types, params, args)
BEGIN_BOTH(cuStreamBeginCapture, (void *), (void *s), (s))
BEGIN_BOTH(cuStreamBeginCapture_v2, (void *, int), (void *s, int mode), (s, mode))
BEGIN_BOTH(cuStreamBeginCaptureToGraph, (void *, void *, void *, void *, size_t, int),
           (void *s, void *graph, void *after, void *edges, size_t n, int mode),
           (s, graph, after, edges, n, mode))
BEGIN_BOTH(cuStreamBeginRecaptureToGraph, (void *, int, void *, void *, void *),
           (void *s, int mode, void *graph, void *callback, void *data), (s, mode, graph, callback, data))

/* The call may fail and end the capture, or fail and not end it, so the stream is asked. */
#define END(symbol, if_null)                                                                                    \
  EXPORTED int symbol(void *stream, void **graph) {                                                             \
    int before = is_capturing(stream, if_null);                                                                 \
    CALL(symbol, (void *, void **), (stream, graph));                                                           \
    bool ended = before && !is_capturing(stream, if_null);                                                      \
    if (ended) gw_capture_end(&cuda_runtime, GW_ALL, cuda_stream(stream, if_null));                             \
    return result;                                                                                              \
  }
END(cuStreamEndCapture, LEGACY)
END(cuStreamEndCapture_ptsz, PER_THREAD)

/* Streams and events that are created and destroyed: contexts are in cuda_contexts.c. */

EXPORTED int cuStreamCreate(void **stream, unsigned flags) {
  CALL(cuStreamCreate, (void **, unsigned), (stream, flags));
  if (result == CUDA_SUCCESS) cuda_stream_created(*stream, flags);
  return result;
}

EXPORTED int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
  CALL(cuStreamCreateWithPriority, (void **, unsigned, int), (stream, flags, priority));
  if (result == CUDA_SUCCESS) cuda_stream_created(*stream, flags);
  return result;
}

#define DESTROY_STREAM(symbol)                                                          \
  EXPORTED int symbol(void *stream) {                                                   \
    gw_late_may_wait();                                                                 \
    uint64_t capture = 0;                                                               \
    if (stream && stream != LEGACY && stream != PER_THREAD) {                           \
      capture = gw_capture_on(&cuda_runtime, stream);                                   \
      gw_destroying(&cuda_runtime, GW_ALL, stream);                                     \
      forget_streams(GW_ALL, stream);                                                   \
      cuda_green_forget(stream);                                                        \
    }                                                                                   \
    cuda_count_destroyed();                                                             \
    CALL(symbol, (void *), (stream));                                                   \
    if (result == CUDA_SUCCESS) gw_capture_ended(capture);                              \
    return result;                                                                      \
  }
DESTROY_STREAM(cuStreamDestroy)
DESTROY_STREAM(cuStreamDestroy_v2)

#define DESTROY_EVENT(symbol)            \
  EXPORTED int symbol(void *event) {     \
    forget_event(event);                 \
    CALL(symbol, (void *), (event));     \
    return result;                       \
  }
DESTROY_EVENT(cuEventDestroy)
DESTROY_EVENT(cuEventDestroy_v2)

void cuda_event_recorded_elsewhere(void *event) { forget_event(event); }

/* Recorded behind the work of all streams of a context. */
#define RECORD_ALL(symbol)                        \
  EXPORTED int symbol(void *ctx, void *event) {   \
    forget_event(event);                          \
    CALL(symbol, (void *, void *), (ctx, event)); \
    return result;                                \
  }
RECORD_ALL(cuCtxRecordEvent)
RECORD_ALL(cuGreenCtxRecordEvent)

/* A launched graph may record the event again without a call that the library sees. */
EXPORTED int cuGraphAddEventRecordNode(void **node, void *graph, const void *after, size_t n, void *event) {
  forget_event(event);
  CALL(cuGraphAddEventRecordNode, (void **, void *, const void *, size_t, void *), (node, graph, after, n, event));
  return result;
}

EXPORTED int cuGraphEventRecordNodeSetEvent(void *node, void *event) {
  forget_event(event);
  CALL(cuGraphEventRecordNodeSetEvent, (void *, void *), (node, event));
  return result;
}

EXPORTED int cuGraphExecEventRecordNodeSetEvent(void *graph, void *node, void *event) {
  forget_event(event);
  CALL(cuGraphExecEventRecordNodeSetEvent, (void *, void *, void *), (graph, node, event));
  return result;
}

/* Calls that wait, or may wait, for all work of a context although their names do not say so.
 * Loading code is one of them. */
#define WAITS(symbol, types, params, args) \
  EXPORTED int symbol params {             \
    may_wait();                            \
    CALL(symbol, types, args);             \
    return result;                         \
  }
#define WAITS_1(symbol, type) WAITS(symbol, (type), (type a), (a))
#define WAITS_2(symbol, first, second) WAITS(symbol, (first, second), (first a, second b), (a, b))
typedef unsigned long long address;
WAITS_2(cuMemAlloc_v2, address *, size_t)
WAITS(cuMemAllocPitch_v2, (address *, size_t *, size_t, size_t, unsigned),
      (address *a, size_t *pitch, size_t width, size_t height, unsigned n), (a, pitch, width, height, n))
WAITS(cuMemAllocManaged, (address *, size_t, unsigned), (address *a, size_t n, unsigned flags), (a, n, flags))
WAITS_2(cuMemAllocHost_v2, void **, size_t)
WAITS(cuMemHostAlloc, (void **, size_t, unsigned), (void **a, size_t n, unsigned flags), (a, n, flags))
/* The same for arrays, and in parts. */
WAITS_2(cuArrayCreate_v2, void **, const void *)
WAITS_2(cuArray3DCreate_v2, void **, const void *)
WAITS(cuMipmappedArrayCreate, (void **, const void *, unsigned), (void **array, const void *desc, unsigned levels),
      (array, desc, levels))
WAITS(cuMemCreate, (uint64_t *, size_t, const void *, uint64_t), (uint64_t *memory, size_t n, const void *properties, uint64_t flags),
      (memory, n, properties, flags))
WAITS(cuMemMap, (address, size_t, size_t, uint64_t, uint64_t), (address a, size_t n, size_t offset, uint64_t memory, uint64_t flags),
      (a, n, offset, memory, flags))
WAITS(cuMemSetAccess, (address, size_t, const void *, size_t), (address a, size_t n, const void *list, size_t count), (a, n, list, count))
WAITS_2(cuMemUnmap, address, size_t)
WAITS_1(cuMemRelease, uint64_t)
WAITS_1(cuMemFree_v2, address)
WAITS_1(cuMemFreeHost, void *)
WAITS(cuMemHostRegister_v2, (void *, size_t, unsigned), (void *a, size_t n, unsigned flags), (a, n, flags))
WAITS_1(cuMemHostUnregister, void *)
WAITS_2(cuMemPoolTrimTo, void *, size_t)
WAITS_1(cuMemPoolDestroy, void *)
WAITS_2(cuModuleLoad, void **, const char *)
WAITS_2(cuModuleLoadData, void **, const void *)
WAITS(cuModuleLoadDataEx, (void **, const void *, unsigned, void *, void **),
      (void **module, const void *code, unsigned n, void *options, void **values), (module, code, n, options, values))
WAITS_2(cuModuleLoadFatBinary, void **, const void *)
WAITS(cuModuleGetFunction, (void **, void *, const char *), (void **f, void *module, const char *name), (f, module, name))
WAITS(cuModuleGetGlobal_v2, (address *, size_t *, void *, const char *),
      (address *a, size_t *n, void *module, const char *name), (a, n, module, name))
WAITS_1(cuModuleUnload, void *)
#define LIBRARY_TYPES (void **, const void *, void *, void **, unsigned, void *, void **, unsigned)
#define LIBRARY_PARAMS \
  (void **lib, const void *from, void *jit, void **jits, unsigned n, void *option, void **options, unsigned m)
WAITS(cuLibraryLoadData, LIBRARY_TYPES, LIBRARY_PARAMS, (lib, from, jit, jits, n, option, options, m))
WAITS(cuLibraryLoadFromFile, LIBRARY_TYPES, LIBRARY_PARAMS, (lib, from, jit, jits, n, option, options, m))
WAITS_2(cuLibraryGetModule, void **, void *)
#define LIBRARY_VARIABLE(symbol)                              \
  WAITS(symbol, (address *, size_t *, void *, const char *),   \
        (address *a, size_t *n, void *lib, const char *name), (a, n, lib, name))
LIBRARY_VARIABLE(cuLibraryGetGlobal)
LIBRARY_VARIABLE(cuLibraryGetManaged)
/* The runtime library asks for the function of a kernel ahead of many launches. Only the first time in a
 * context may the kernel have to be loaded: a kernel is the same for all contexts, its function is not. */
static bool is_new_kernel(const void *kernel) {
  static uint64_t known[1 << 12];
  const uint64_t factor = 0x9e3779b97f4a7c15ull;
  uint64_t key = ((uintptr_t)kernel * factor + (uintptr_t)cuda_context()) * factor + __atomic_load_n(&unloads, __ATOMIC_RELAXED);
  uint64_t *at = &known[key >> (64 - 12)];
  if (__atomic_load_n(at, __ATOMIC_RELAXED) == key) return false;
  __atomic_store_n(at, key, __ATOMIC_RELAXED);
  return true;
}
EXPORTED int cuKernelGetFunction(void **function, void *kernel) {
  if (is_new_kernel(kernel)) may_wait();
  CALL(cuKernelGetFunction, (void **, void *), (function, kernel));
  return result;
}
EXPORTED int cuLibraryUnload(void *library) {
  may_wait();
  CALL(cuLibraryUnload, (void *), (library));
  count_unload();
  return result;
}
WAITS_1(cuFuncLoad, void *)
WAITS_1(cuArrayDestroy, void *)
WAITS_1(cuMipmappedArrayDestroy, void *)
WAITS_1(cuIpcCloseMemHandle, address)
#define INSTANTIATE(symbol)                                                                     \
  WAITS(symbol, (void **, void *, void *, char *, size_t),                                      \
        (void **exec, void *graph, void *node, char *log, size_t n), (exec, graph, node, log, n))
INSTANTIATE(cuGraphInstantiate)
INSTANTIATE(cuGraphInstantiate_v2)
WAITS(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long),
      (void **exec, void *graph, unsigned long long flags), (exec, graph, flags))
WAITS(cuGraphInstantiateWithParams, (void **, void *, void *), (void **exec, void *graph, void *params), (exec, graph, params))
WAITS(cuGraphInstantiateWithParams_ptsz, (void **, void *, void *), (void **exec, void *graph, void *params), (exec, graph, params))
WAITS_1(cuGraphExecDestroy, void *)
WAITS_1(cuDeviceGraphMemTrim, int)
WAITS_2(cuCtxSetLimit, int, size_t)

/* Not a wait, but it says whether the events were reached. */
WAITS(cuEventElapsedTime, (float *, void *, void *), (float *ms, void *a, void *b), (ms, a, b))
WAITS(cuEventElapsedTime_v2, (float *, void *, void *), (float *ms, void *a, void *b), (ms, a, b))

/* Another thread or process may wait for these without a call. */
#define WRITE_VALUE(symbol, type) \
  WAITS(symbol, (void *, address, type, unsigned), (void *s, address to, type value, unsigned flags), (s, to, value, flags))
#define WRITE_VALUE_4(symbol, type) \
  WRITE_VALUE(symbol, type) WRITE_VALUE(symbol##_ptsz, type) WRITE_VALUE(symbol##_v2, type) WRITE_VALUE(symbol##_v2_ptsz, type)
WRITE_VALUE_4(cuStreamWriteValue32, uint32_t)
WRITE_VALUE_4(cuStreamWriteValue64, uint64_t)
#define MEMORY_OPERATIONS(symbol, if_null)                                              \
  EXPORTED int symbol(void *s, unsigned n, void *list, unsigned flags) {                \
    may_wait();                                                                         \
    if (gw_class_wanted()) stream_waits(s, if_null, UNKNOWN); /* one may be a wait */   \
    CALL(symbol, (void *, unsigned, void *, unsigned), (s, n, list, flags));            \
    return result;                                                                      \
  }
MEMORY_OPERATIONS(cuStreamBatchMemOp, LEGACY)
MEMORY_OPERATIONS(cuStreamBatchMemOp_ptsz, PER_THREAD)
MEMORY_OPERATIONS(cuStreamBatchMemOp_v2, LEGACY)
MEMORY_OPERATIONS(cuStreamBatchMemOp_v2_ptsz, PER_THREAD)
#define SIGNAL(symbol) \
  WAITS(symbol, (void *, void *, unsigned, void *), (void *list, void *params, unsigned n, void *s), (list, params, n, s))
SIGNAL(cuSignalExternalSemaphoresAsync)
SIGNAL(cuSignalExternalSemaphoresAsync_ptsz)

/* Another process may wait at any time for the event, or for what kernels write to the memory. */
#define SHARES(symbol, types, params, args) \
  EXPORTED int symbol params {              \
    gw_late_disable();                      \
    CALL(symbol, types, args);              \
    return result;                          \
  }
SHARES(cuIpcGetEventHandle, (void *, void *), (void *handle, void *event), (handle, event))
SHARES(cuIpcGetMemHandle, (void *, address), (void *handle, address a), (handle, a))
SHARES(cuMemExportToShareableHandle, (void *, uint64_t, int, uint64_t), (void *handle, uint64_t memory, int type, uint64_t flags),
       (handle, memory, type, flags))
SHARES(cuMemImportFromShareableHandle, (uint64_t *, void *, int), (uint64_t *memory, void *handle, int type), (memory, handle, type))
struct ipc_handle { /* CUipcEventHandle, CUipcMemHandle */
  char bytes[64];
};
SHARES(cuIpcOpenEventHandle, (void **, struct ipc_handle), (void **event, struct ipc_handle handle), (event, handle))
#define OPEN_MEMORY(symbol)                                                                                      \
  SHARES(symbol, (address *, struct ipc_handle, unsigned), (address *a, struct ipc_handle handle, unsigned flags), \
         (a, handle, flags))
OPEN_MEMORY(cuIpcOpenMemHandle)
OPEN_MEMORY(cuIpcOpenMemHandle_v2)
SHARES(cuMemPoolExportToShareableHandle, (void *, void *, int, uint64_t), (void *handle, void *pool, int type, uint64_t flags),
       (handle, pool, type, flags))
SHARES(cuMemPoolImportFromShareableHandle, (void **, void *, int, uint64_t), (void **pool, void *handle, int type, uint64_t flags),
       (pool, handle, type, flags))
SHARES(cuMemPoolExportPointer, (void *, address), (void *data, address a), (data, a))
SHARES(cuMemPoolImportPointer, (address *, void *, void *), (address *a, void *pool, void *data), (a, pool, data))
