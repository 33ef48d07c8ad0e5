/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/* The CUDA driver as a gw_runtime: marks are events. */
#include "cuda.h"
#include "sys.h"
#include "thread_end.h"

#define EVENTS 128 /* more than the gate ever uses at once */

/* Events are kept for later marks in the same context. */
static struct event {
  void *event; /* NULL: not created yet */
  void *ctx;
  bool used;
  bool suspended; /* used, because its context may be destroyed at any moment */
} events[EVENTS];
static gw_lock_t lock;

const struct cuda_driver *cuda_driver(void) {
  static struct cuda_driver d;
  static uint32_t known;
  if (__builtin_expect(__atomic_load_n(&known, __ATOMIC_ACQUIRE), 1)) return &d;
#define FIND(name) \
  __atomic_store_n((void **)&d.name, gw_library_symbol(&gw_cuda_library, #name), __ATOMIC_RELAXED)
  FIND(cuCtxGetCurrent);
  FIND(cuEventCreate);
  FIND(cuEventDestroy_v2);
  FIND(cuEventRecord);
  FIND(cuEventQuery);
  FIND(cuStreamIsCapturing);
  FIND(cuStreamQuery);
  FIND(cuStreamGetPriority);
  FIND(cuThreadExchangeStreamCaptureMode);
  FIND(cuDevicePrimaryCtxGetState);
#undef FIND
  /* If there is no driver yet, one may be loaded later. */
  if (d.cuCtxGetCurrent) __atomic_store_n(&known, 1, __ATOMIC_RELEASE);
  return &d;
}

void *cuda_context(void) {
  void *ctx = NULL;
  const struct cuda_driver *d = cuda_driver();
  if (!d->cuCtxGetCurrent || d->cuCtxGetCurrent(&ctx) != CUDA_SUCCESS) return NULL;
  return ctx;
}

uint32_t cuda_destroyed;

void *cuda_context_for(void *stream) {
  static __thread struct {
    void *stream, *ctx;
    uint32_t destroyed;
  } last __attribute__((tls_model("initial-exec")));
  if ((uintptr_t)stream <= (uintptr_t)PER_THREAD) return cuda_context();
  uint32_t destroyed = __atomic_load_n(&cuda_destroyed, __ATOMIC_ACQUIRE);
  if (last.stream == stream && last.destroyed == destroyed) return last.ctx;
  last.stream = stream;
  last.destroyed = destroyed;
  void *ctx = cuda_context_of(stream);
  return last.ctx = ctx ? ctx : cuda_context();
}

static __thread uint64_t this_thread __attribute__((aligned(8)));

static void *per_thread_stream(void) { return (void *)((uintptr_t)&this_thread | 3); }

void *cuda_stream(void *stream, void *if_null) {
  if (!stream) stream = if_null;
  if (stream != PER_THREAD) return stream;
  gw_thread_note();
  return per_thread_stream();
}

/* The driver may have ended its part of this thread before, and a call then is not known to be safe. So
 * nothing is asked, and the commands count as done a little too early. */
void cuda_thread_ends(void) { gw_gone(&cuda_runtime, GW_ALL, per_thread_stream()); }

void *cuda_driver_handle(void *stream) {
  if (((uintptr_t)stream & 3) != 3) return stream;
  return stream == per_thread_stream() ? PER_THREAD : NULL;
}

/*
 * While a thread captures in the strictest mode, no thread may query events, unless it has
 * chosen the relaxed mode. The library may: its events are in no graph.
 */
int cuda_leave_captures(void) {
  int mode = 2; /* CU_STREAM_CAPTURE_MODE_RELAXED */
  const struct cuda_driver *d = cuda_driver();
  int (*exchange)(int *) = d->cuThreadExchangeStreamCaptureMode;
  return exchange && exchange(&mode) == CUDA_SUCCESS ? mode : -1;
}

void cuda_restore_captures(int mode) {
  if (mode >= 0) cuda_driver()->cuThreadExchangeStreamCaptureMode(&mode);
}

/* Reserves an event of the context, or an entry whose event is still to be created. */
static struct event *reserve(void *ctx) {
  struct event *empty = NULL, *other = NULL, *e;
  gw_lock(&lock);
  for (e = events; e < events + EVENTS; e++) {
    if (!e->event && !e->used && !empty) empty = e;
    if (e->event && !e->used && e->ctx == ctx) break;
    if (e->event && !e->used) other = e;
  }
  if (e == events + EVENTS) e = empty ? empty : other;
  void *to_destroy = e && e->event && e->ctx != ctx ? e->event : NULL;
  if (e) *e = (struct event){.event = to_destroy ? NULL : e->event, .ctx = ctx, .used = true};
  gw_unlock(&lock);
  if (to_destroy && cuda_driver()->cuEventDestroy_v2) cuda_driver()->cuEventDestroy_v2(to_destroy);
  return e;
}

static void drop(void *mark) {
  struct event *e = mark;
  gw_lock(&lock);
  e->used = false;
  gw_unlock(&lock);
}

static void *mark(void *ctx, void *stream) {
  const struct cuda_driver *d = cuda_driver();
  void *to = cuda_driver_handle(stream);
  if (cuda_context() != ctx) return NULL; /* the event would be of another context */
  if (!to || !d->cuEventCreate || !d->cuEventRecord || !d->cuEventQuery) return NULL;
  struct event *e = reserve(ctx);
  if (!e) return NULL;
  int mode = cuda_leave_captures();
  bool ok = (e->event || d->cuEventCreate(&e->event, 2 /* CU_EVENT_DISABLE_TIMING */) == CUDA_SUCCESS) &&
            d->cuEventRecord(e->event, to) == CUDA_SUCCESS;
  cuda_restore_captures(mode);
  if (ok) return e;
  drop(e);
  return NULL;
}

static int reached(void *mark) {
  struct event *e = mark;
  void *event = e->event;
  if (!event) return -1; /* its context was destroyed meanwhile */
  int mode = cuda_leave_captures();
  int result = cuda_driver()->cuEventQuery(event);
  cuda_restore_captures(mode);
  return result == CUDA_SUCCESS ? 1 : result == CUDA_ERROR_NOT_READY ? 0 : -1;
}

static int markable(void *ctx, void *stream) {
  (void)ctx;
  int status = 0;
  void *to = cuda_driver_handle(stream);
  const struct cuda_driver *d = cuda_driver();
  if (!to) return 0;
  if (!d->cuStreamIsCapturing) return 1;
  /* This fails for the legacy stream while a capture is in progress that it would join. */
  return d->cuStreamIsCapturing(to, &status) == CUDA_SUCCESS && status == 0;
}

static int idle(void *ctx, void *stream) {
  const struct cuda_driver *d = cuda_driver();
  if (cuda_context() != ctx || !d->cuStreamQuery || !markable(ctx, stream)) return -1;
  int mode = cuda_leave_captures();
  int result = d->cuStreamQuery(cuda_driver_handle(stream));
  cuda_restore_captures(mode);
  return result == CUDA_SUCCESS ? 1 : result == CUDA_ERROR_NOT_READY ? 0 : -1;
}

/* A lower number is a higher priority. Default streams have priority 0, the lowest. */
static int high(void *ctx, void *stream) {
  static __thread struct {
    void *stream;
    uint32_t destroyed;
    int high;
  } last __attribute__((tls_model("initial-exec")));
  const struct cuda_driver *d = cuda_driver();
  int priority = 0;
  (void)ctx;
  if ((uintptr_t)stream & 3 || !stream || !d->cuStreamGetPriority) return 0;
  uint32_t destroyed = __atomic_load_n(&cuda_destroyed, __ATOMIC_ACQUIRE);
  if (last.stream == stream && last.destroyed == destroyed) return last.high;
  int mode = cuda_leave_captures();
  int result = d->cuStreamGetPriority(stream, &priority);
  cuda_restore_captures(mode);
  last.stream = stream;
  last.destroyed = destroyed;
  return last.high = result == CUDA_SUCCESS && priority < 0;
}

void cuda_marks_forget(void *ctx) {
  for (struct event *e = events; e < events + EVENTS; e++) {
    gw_lock(&lock);
    bool matches = ctx == GW_ALL || e->ctx == ctx;
    void *to_destroy = matches && !e->used ? e->event : NULL;
    if (matches) *e = (struct event){.used = e->used};
    gw_unlock(&lock);
    if (to_destroy && cuda_driver()->cuEventDestroy_v2) cuda_driver()->cuEventDestroy_v2(to_destroy);
  }
}

void cuda_marks_suspend(void *ctx) {
  gw_lock(&lock);
  for (struct event *e = events; e < events + EVENTS; e++) {
    if (e->event && !e->used && (ctx == GW_ALL || e->ctx == ctx)) e->used = e->suspended = true;
  }
  gw_unlock(&lock);
}

void cuda_marks_resume(void *ctx, bool gone) {
  gw_lock(&lock);
  for (struct event *e = events; e < events + EVENTS; e++) {
    if (ctx != GW_ALL && e->ctx != ctx) continue;
    bool used = e->used && !e->suspended;
    if (gone) *e = (struct event){.used = used}; /* the driver has destroyed the event */
    else e->used = used, e->suspended = false;
  }
  gw_unlock(&lock);
}

void cuda_marks_forked(void) {
  __builtin_memset(events, 0, sizeof events);
  lock = (gw_lock_t){0};
}

const struct gw_runtime cuda_runtime = {
    .name = "cuda",
    .bit = 1,
    .mark = mark,
    .reached = reached,
    .drop = drop,
    .markable = markable,
    .idle = idle,
    .high = high,
};
