/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/*
 * Level Zero, of Intel's GPUs and NPUs. docs/RUNTIMES.md shows how this adapter was made.
 *
 * Work reaches the device in two ways: regular command lists are executed on a command queue, and
 * commands are appended to an immediate command list. So command queues and immediate lists are
 * the streams, and each is its own context. What is appended to a regular list is only recorded:
 * it is not held. An execution of several lists counts as one command.
 *
 * Programs reach the wrappers by linking with libze_loader, through dlsym, or by asking a driver for
 * an extension's function. The loader's tables of functions (zeGetCommandListProcAddrTable and the
 * like) are left alone: the loader and its layers use them among themselves.
 */
#include "levelzero.h"

#include <string.h>

#include "activity.h"
#include "levelzero_calls.h"
#include "page.h"
#include "sys.h"

#define EXPORT __attribute__((visibility("default")))
#define COUNT(array) (sizeof(array) / sizeof *(array))

/*
 * Events and fences which tell how far a stream is once they are signalled. An entry may replace
 * another one; that information is lost then, and nothing else.
 */
static gw_lock_t lock;
static struct recorded {
  void *event; /* or fence */
  void *stream;
  uint64_t ticket;
} recorded[256];

static struct recorded *entry_of(const void *event) {
  return &recorded[((uintptr_t)event >> 4) * 0x9E3779B97F4A7C15u >> 56];
}

static bool is_recorded(const void *event) {
  return event && __atomic_load_n(&entry_of(event)->event, __ATOMIC_RELAXED) == event;
}

/* The event's state may change for another reason than the recorded one. */
static void forget_event(const void *event) {
  if (!is_recorded(event)) return;
  gw_lock(&lock);
  struct recorded *r = entry_of(event);
  if (r->event == event) __atomic_store_n(&r->event, NULL, __ATOMIC_RELAXED);
  gw_unlock(&lock);
}

/* All that the ticket stands for is done when the event is signalled. */
static void remember(void *event, void *stream, uint64_t ticket) {
  struct recorded *r = entry_of(event);
  if (!ticket) return;
  gw_lock(&lock);
  r->stream = stream, r->ticket = ticket;
  __atomic_store_n(&r->event, event, __ATOMIC_RELAXED);
  gw_unlock(&lock);
}

/* All that the list was given so far is done when the event is signalled. */
static void remember_all(void *event, void *list) { remember(event, list, gw_ticket(&gw_levelzero, list, list)); }

static void ask(struct gw_ze_stream *s) {
  void *handle = s->handle;
  uint64_t ticket = gw_ticket(&gw_levelzero, handle, handle);
  if (!ticket || gw_known_done(&gw_levelzero, handle, handle, ticket)) return;
  if (gw_ze_idle(s) == 1) gw_done(&gw_levelzero, handle, handle, ticket);
}

/* The program has waited for an object that is not in the table, so it is not known which commands are
 * done. The runtime knows which streams are idle. */
static void ask_all(void) {
  if (gw_page_attached() && GW_READ(launched) != GW_READ(completed)) gw_ze_each(ask);
}

static void event_done(const void *event) {
  struct recorded r = {0};
  if (is_recorded(event)) {
    gw_lock(&lock);
    r = *entry_of(event);
    gw_unlock(&lock);
  }
  if (r.event && r.event == event) gw_done(&gw_levelzero, r.stream, r.stream, r.ticket);
  else ask_all();
}

/* The calls. If the runtime calls a hooked function itself, that call is not gated again. */

static __thread int nested __attribute__((tls_model("initial-exec")));

GW_ZE_FUNCTION(zeEventQueryStatus, (void *))
GW_ZE_FUNCTION(zeFenceQueryStatus, (void *))

/* Whether an event or a fence that is passed as a signal will tell when that is done. It does not if
 * it is signalled already, or pending for an earlier command. */
static bool will_tell(void *signal, int32_t (*query)(void *)) {
  return signal && query && gw_page_attached() && query(signal) == ZE_NOT_READY && !is_recorded(signal);
}

struct passage {
  gw_pass pass;
  struct gw_ze_stream *stream;
  void *handle;
  uint64_t before; /* a ticket from before the call */
  bool was_idle; /* all earlier commands of the stream are known to be done */
  bool tells;    /* the event or fence will tell when the command is done */
};

static bool enter(struct passage *p, void *handle, void *signal, int32_t (*query)(void *)) {
  p->stream = nested ? NULL : gw_ze_use(handle);
  if (!p->stream || !gw_enter(&p->pass, &gw_levelzero, handle, handle)) {
    forget_event(signal);
    return false;
  }
  nested = 1;
  p->handle = handle;
  p->before = gw_ticket(&gw_levelzero, handle, handle);
  p->was_idle = !p->before || gw_known_done(&gw_levelzero, handle, handle, p->before);
  p->tells = !p->stream->waits && will_tell(signal, query);
  if (!p->tells) forget_event(signal);
  return true;
}

static bool leave(struct passage *p, int32_t result) {
  nested = 0;
  if (p->stream->waits) gw_leave_done(&p->pass, result == ZE_SUCCESS);
  else gw_leave(&p->pass, result == ZE_SUCCESS);
  return result == ZE_SUCCESS && !p->stream->waits;
}

/*
 * On a list that is not in order, an event tells about its own command only. But if each command
 * waits for the event of the one before it, or for a barrier, the last event tells about all.
 */
static bool waits_for_cover(const struct gw_ze_stream *s, uint32_t n, void *const *events) {
  bool any = false;
  for (uint32_t i = 0; s->cover && events && i < n; i++) any |= events[i] == s->cover;
  return any;
}

/* A command was appended to an immediate list. */
static void appended(const struct passage *p, void *event, uint32_t n, void *const *waits) {
  struct gw_ze_stream *s = p->stream;
  bool after_all = s->in_order || s->fresh || p->was_idle || waits_for_cover(s, n, waits);
  bool covers = after_all && p->tells;
  s->cover = covers ? event : NULL;
  s->fresh = false;
  if (covers) remember_all(event, p->handle);
}

/* Each hook has a number: its row in the table. */
#define OTHERS(HOOK)                                                                                         \
  HOOK(zeCommandQueueCreate)                                                                                 \
  HOOK(zeCommandQueueDestroy)                                                                                \
  HOOK(zeCommandQueueExecuteCommandLists)                                                                    \
  HOOK(zeCommandQueueSynchronize)                                                                            \
  HOOK(zeCommandListCreateImmediate)                                                                         \
  HOOK(zeCommandListDestroy)                                                                                 \
  HOOK(zeCommandListHostSynchronize)                                                                         \
  HOOK(zeCommandListAppendBarrier)                                                                           \
  HOOK(zeCommandListAppendWaitOnEvents)                                                                      \
  HOOK(zeCommandListAppendSignalEvent)                                                                       \
  HOOK(zeCommandListAppendMemoryRangesBarrier)                                                               \
  HOOK(zeCommandListAppendWriteGlobalTimestamp)                                                              \
  HOOK(zeCommandListAppendEventReset)                                                                        \
  HOOK(zeDeviceSynchronize)                                                                                  \
  HOOK(zeContextDestroy)                                                                                     \
  HOOK(zeEventHostSynchronize)                                                                               \
  HOOK(zeEventQueryStatus)                                                                                   \
  HOOK(zeEventQueryKernelTimestamp)                                                                          \
  HOOK(zeEventHostSignal)                                                                                    \
  HOOK(zeEventHostReset)                                                                                     \
  HOOK(zeEventDestroy)                                                                                       \
  HOOK(zeFenceHostSynchronize)                                                                               \
  HOOK(zeFenceQueryStatus)                                                                                   \
  HOOK(zeFenceReset)                                                                                         \
  HOOK(zeFenceDestroy)                                                                                       \
  HOOK(zeDriverGetExtensionFunctionAddress)

#define CAPTURES(CAPTURE)                                                                                    \
  CAPTURE(zeCommandListBeginGraphCaptureExt, 1, (void *l, const void *next), (l, next))                      \
  CAPTURE(zeCommandListBeginCaptureIntoGraphExt, 1, (void *l, void *graph, const void *next),                \
          (l, graph, next))                                                                                  \
  CAPTURE(zeCommandListEndGraphCaptureExt, -1, (void *l, const void *next, void **graph), (l, next, graph))

#define NUMBER(name, ...) at_##name,
enum { GW_LEVELZERO_CALLS(NUMBER) CAPTURES(NUMBER) OTHERS(NUMBER) };
#undef NUMBER

static struct gw_hook hooks[], asked[];
#define REAL(name) ((name##_type *)gw_hook_real(&gw_levelzero_library, &hooks[at_##name]))
#define ASKED(name) ((name##_type *)__atomic_load_n(&asked[at_##name].real, __ATOMIC_RELAXED))

/* Each function has a second wrapper, asked_NAME, for programs that ask the driver for it: the
 * driver's function takes the driver's own handles, which may differ from the loader's. */
#define WRAPPER(function, found, events, parameters, arguments)                                              \
  int32_t function parameters {                                                                              \
    int32_t(*real) parameters = found;                                                                       \
    struct passage passage;                                                                                  \
    if (!real) return ZE_UNSUPPORTED;                                                                        \
    if (!enter(&passage, l, FIRST events, real_zeEventQueryStatus())) return real arguments;                 \
    int32_t result = real arguments;                                                                         \
    if (leave(&passage, result)) appended(&passage, ALL events);                                             \
    return result;                                                                                           \
  }
#define FIRST(a, b, c) a
#define ALL(a, b, c) a, b, c
#define CALL(name, events, parameters, arguments)                                                            \
  typedef int32_t name##_type parameters;                                                                    \
  EXPORT int32_t name parameters;                                                                            \
  WRAPPER(name, REAL(name), events, parameters, arguments)                                                   \
  static WRAPPER(asked_##name, ASKED(name), events, parameters, arguments)
GW_LEVELZERO_CALLS(CALL)

/* What is appended during a capture is recorded too. Appending the graph is work. */
#define CAPTURE_WRAPPER(function, found, change, parameters, arguments)                                      \
  int32_t function parameters {                                                                              \
    int32_t(*real) parameters = found;                                                                       \
    if (!real) return ZE_UNSUPPORTED;                                                                        \
    if ((change) > 0) gw_capture_begin(&gw_levelzero, l, l);                                                 \
    int32_t result = real arguments;                                                                         \
    if (((change) > 0) != (result == ZE_SUCCESS)) gw_capture_end(&gw_levelzero, l, l);                       \
    return result;                                                                                           \
  }
#define CAPTURE(name, change, parameters, arguments)                                                         \
  typedef int32_t name##_type parameters;                                                                    \
  EXPORT int32_t name parameters;                                                                            \
  CAPTURE_WRAPPER(name, REAL(name), change, parameters, arguments)                                           \
  static CAPTURE_WRAPPER(asked_##name, ASKED(name), change, parameters, arguments)
CAPTURES(CAPTURE)

typedef int32_t zeCommandQueueExecuteCommandLists_type(void *q, uint32_t n, void **lists, void *fence);
EXPORT int32_t zeCommandQueueExecuteCommandLists(void *q, uint32_t n, void **lists, void *fence);
int32_t zeCommandQueueExecuteCommandLists(void *q, uint32_t n, void **lists, void *fence) {
  zeCommandQueueExecuteCommandLists_type *real = REAL(zeCommandQueueExecuteCommandLists);
  struct passage passage;
  if (!real) return ZE_UNSUPPORTED;
  if (!enter(&passage, q, fence, real_zeFenceQueryStatus())) return real(q, n, lists, fence);
  int32_t result = real(q, n, lists, fence);
  /* Other threads may have executed lists on the queue since, which the fence does not wait for. */
  if (leave(&passage, result) && passage.tells) remember(fence, q, gw_ticket_with(&passage.pass, passage.before));
  return result;
}

/* Calls around which something else is done: `before` in any case, `after` if they succeed. */
#define AROUND(name, parameters, arguments, before, after)                                                   \
  typedef int32_t name##_type parameters;                                                                    \
  EXPORT int32_t name parameters;                                                                            \
  int32_t name parameters {                                                                                  \
    name##_type *real = REAL(name);                                                                          \
    if (!real) return ZE_UNSUPPORTED;                                                                        \
    before;                                                                                                  \
    int32_t result = real arguments;                                                                         \
    if (result == ZE_SUCCESS) {                                                                              \
      after;                                                                                                 \
    }                                                                                                        \
    return result;                                                                                           \
  }

AROUND(zeCommandQueueCreate, (void *context, void *device, const struct gw_ze_queue_desc *desc, void **q),
       (context, device, desc, q), , if (!nested && desc) gw_ze_add(*q, false, context, device, desc))
AROUND(zeCommandListCreateImmediate,
       (void *context, void *device, const struct gw_ze_queue_desc *desc, void **l), (context, device, desc, l), ,
       if (!nested && desc) gw_ze_add(*l, true, context, device, desc))

/* State is cleared before the call: after it the handle may be reused. */
AROUND(zeCommandQueueDestroy, (void *q), (q), gw_ze_remove(q), )
AROUND(zeCommandListDestroy, (void *l), (l), gw_capture_gone(&gw_levelzero, l, l); gw_ze_remove(l), )
AROUND(zeContextDestroy, (void *context), (context), gw_ze_context_ends(context), )
AROUND(zeEventDestroy, (void *event), (event), forget_event(event), )
AROUND(zeFenceDestroy, (void *fence), (fence), forget_event(fence), )

/* Calls that wait, or ask for completion. */
#define STREAM_IS_DONE(name)                                                                                 \
  AROUND(name, (void *s, uint64_t timeout), (s, timeout), gw_ze_use(s);                                      \
         uint64_t ticket = gw_ticket(&gw_levelzero, s, s), gw_done(&gw_levelzero, s, s, ticket))
STREAM_IS_DONE(zeCommandQueueSynchronize)
STREAM_IS_DONE(zeCommandListHostSynchronize)
AROUND(zeDeviceSynchronize, (void *device), (device), , ask_all())
AROUND(zeEventHostSynchronize, (void *event, uint64_t timeout), (event, timeout), , event_done(event))
AROUND(zeEventQueryStatus, (void *event), (event), , event_done(event))
AROUND(zeEventQueryKernelTimestamp, (void *event, void *to), (event, to), , event_done(event))
AROUND(zeFenceHostSynchronize, (void *fence, uint64_t timeout), (fence, timeout), , event_done(fence))
AROUND(zeFenceQueryStatus, (void *fence), (fence), , event_done(fence))

/* Calls that change an event's state. */
AROUND(zeEventHostSignal, (void *event), (event), forget_event(event), )
AROUND(zeEventHostReset, (void *event), (event), , forget_event(event))
AROUND(zeFenceReset, (void *fence), (fence), , forget_event(fence))
AROUND(zeCommandListAppendEventReset, (void *l, void *event), (l, event), gw_ze_use(l), forget_event(event))
AROUND(zeCommandListAppendMemoryRangesBarrier,
       (void *l, uint32_t n, const size_t *sizes, const void **ranges, void *event, uint32_t wn, void **waits),
       (l, n, sizes, ranges, event, wn, waits), gw_ze_use(l); forget_event(event), )
AROUND(zeCommandListAppendWriteGlobalTimestamp, (void *l, uint64_t *to, void *event, uint32_t n, void **waits),
       (l, to, event, n, waits), gw_ze_use(l); forget_event(event), )

/* An event is signalled, on an immediate list when all its commands so far are done, if after_all. */
static void ordered(struct gw_ze_stream *s, void *list, void *event, bool after_all, bool tells) {
  if (s && after_all && tells) {
    s->cover = event;
    remember_all(event, list);
  } else {
    forget_event(event);
  }
}

/* A barrier without events waits for all earlier commands, and later commands wait for it. */
typedef int32_t zeCommandListAppendBarrier_type(void *l, void *event, uint32_t n, void **waits);
EXPORT int32_t zeCommandListAppendBarrier(void *l, void *event, uint32_t n, void **waits);
int32_t zeCommandListAppendBarrier(void *l, void *event, uint32_t n, void **waits) {
  zeCommandListAppendBarrier_type *real = REAL(zeCommandListAppendBarrier);
  if (!real) return ZE_UNSUPPORTED;
  struct gw_ze_stream *s = gw_ze_use(l);
  bool after_all = s && (s->in_order || s->fresh || n == 0 || waits_for_cover(s, n, waits));
  bool tells = s && will_tell(event, real_zeEventQueryStatus());
  int32_t result = real(l, event, n, waits);
  if (result != ZE_SUCCESS) return result;
  if (after_all) s->fresh = true;
  ordered(s, l, event, after_all, tells);
  return result;
}

typedef int32_t zeCommandListAppendWaitOnEvents_type(void *l, uint32_t n, void **events);
EXPORT int32_t zeCommandListAppendWaitOnEvents(void *l, uint32_t n, void **events);
int32_t zeCommandListAppendWaitOnEvents(void *l, uint32_t n, void **events) {
  zeCommandListAppendWaitOnEvents_type *real = REAL(zeCommandListAppendWaitOnEvents);
  if (!real) return ZE_UNSUPPORTED;
  struct gw_ze_stream *s = gw_ze_use(l);
  bool after_all = s && waits_for_cover(s, n, events);
  int32_t result = real(l, n, events);
  if (result == ZE_SUCCESS && after_all) s->fresh = true;
  return result;
}

typedef int32_t zeCommandListAppendSignalEvent_type(void *l, void *event);
EXPORT int32_t zeCommandListAppendSignalEvent(void *l, void *event);
int32_t zeCommandListAppendSignalEvent(void *l, void *event) {
  zeCommandListAppendSignalEvent_type *real = REAL(zeCommandListAppendSignalEvent);
  if (!real) return ZE_UNSUPPORTED;
  struct gw_ze_stream *s = gw_ze_use(l);
  bool tells = s && will_tell(event, real_zeEventQueryStatus());
  int32_t result = real(l, event);
  if (result == ZE_SUCCESS) ordered(s, l, event, s && (s->in_order || s->fresh), tells);
  return result;
}

/* A function that the program asked of its driver is replaced with the second wrapper. Only the
 * functions of one driver are. */
static void replace(const char *name, void **f) {
  for (size_t i = 0; asked[i].name; i++) {
    if (strcmp(asked[i].name, name) != 0) continue;
    void *known = NULL, **real = &asked[i].real;
    __atomic_compare_exchange_n(real, &known, *f, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    if (known && known != *f) gw_log("levelzero: an extension of a second driver is not held");
    else *f = asked[i].wrapper;
    return;
  }
}
AROUND(zeDriverGetExtensionFunctionAddress, (void *driver, const char *name, void **f), (driver, name, f), ,
       if (name && f && *f) replace(name, f))

#define ROW(name, ...) {#name, (void *)name, NULL},
#define ASKED_ROW(name, ...) {#name, (void *)asked_##name, NULL},
static struct gw_hook hooks[] = {
    GW_LEVELZERO_CALLS(ROW) CAPTURES(ROW) OTHERS(ROW){NULL, NULL, NULL},
};
static struct gw_hook asked[] = {
    GW_LEVELZERO_CALLS(ASKED_ROW) CAPTURES(ASKED_ROW){NULL, NULL, NULL},
};

static void forked(void) {
  lock = (gw_lock_t){0};
  memset(recorded, 0, sizeof recorded);
  nested = 0;
  gw_ze_streams_forked();
}

struct gw_library gw_levelzero_library = {
    .stem = "libze_loader",
    .prefix = "ze",
    .hooks = hooks,
    .count = COUNT(hooks) - 1,
    .forked = forked,
};
