/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/*
 * Streams of Level Zero, and the marks on them.
 *
 * On a command queue a mark is a fence: an empty list is executed with it, and the fence is
 * signalled when all earlier commands of the queue are done. Later lists do not wait for it. Each
 * mark has an empty list of its own, because the device may use a list until it is done.
 *
 * On an immediate list a mark is the event of a barrier. A barrier is the only call which promises
 * that all earlier commands are done; it also keeps later ones waiting until then, which they do
 * anyway on a list that is in order. Only one thread at a time may use an immediate list, so marks
 * are put on the list that the calling thread uses and on no other.
 *
 * The device may use a fence or an event until it is signalled. So a mark that is dropped earlier is
 * kept until then.
 */
#include "levelzero.h"

#include <string.h>

#include "capture.h"
#include "sys.h"

#define SETTLE_NS GW_SECOND_NS       /* for how long the end of a stream waits for the marks on it */
#define UNSETTLED_NS (10 * GW_MS_NS) /* the same, after one that waited in vain */
#define SETTLE_SLEEP_NS 20000ull

enum {
  TYPE_COMMAND_LIST_DESC = 0xf,
  TYPE_EVENT_POOL_DESC = 0x10,
  TYPE_EVENT_DESC = 0x11,
  TYPE_FENCE_DESC = 0x12,
  QUEUE_IN_ORDER = 2,
  QUEUE_SYNCHRONOUS = 1,
  HOST_VISIBLE = 1,
  HOST_SCOPE = 4,
};

struct fence_desc {
  uint32_t type;
  const void *next;
  uint32_t flags;
};
struct pair_desc { /* of a list: ordinal, flags; of an event pool: flags, count */
  uint32_t type;
  const void *next;
  uint32_t first, second;
};
struct event_desc {
  uint32_t type;
  const void *next;
  uint32_t index, signal, wait;
};

GW_ZE_FUNCTION(zeFenceCreate, (void *, const struct fence_desc *, void **))
GW_ZE_FUNCTION(zeFenceDestroy, (void *))
GW_ZE_FUNCTION(zeFenceReset, (void *))
GW_ZE_FUNCTION(zeFenceQueryStatus, (void *))
GW_ZE_FUNCTION(zeEventPoolCreate, (void *, const struct pair_desc *, uint32_t, void **, void **))
GW_ZE_FUNCTION(zeEventPoolDestroy, (void *))
GW_ZE_FUNCTION(zeEventCreate, (void *, const struct event_desc *, void **))
GW_ZE_FUNCTION(zeEventDestroy, (void *))
GW_ZE_FUNCTION(zeEventHostReset, (void *))
GW_ZE_FUNCTION(zeEventQueryStatus, (void *))
GW_ZE_FUNCTION(zeCommandListCreate, (void *, void *, const struct pair_desc *, void **))
GW_ZE_FUNCTION(zeCommandListClose, (void *))
GW_ZE_FUNCTION(zeCommandListDestroy, (void *))
GW_ZE_FUNCTION(zeCommandListAppendBarrier, (void *, void *, uint32_t, void **))
GW_ZE_FUNCTION(zeCommandListHostSynchronize, (void *, uint64_t))
GW_ZE_FUNCTION(zeCommandQueueExecuteCommandLists, (void *, uint32_t, void **, void *))
GW_ZE_FUNCTION(zeCommandQueueSynchronize, (void *, uint64_t))

static bool has_all(void) {
  return real_zeFenceCreate() && real_zeFenceDestroy() && real_zeFenceReset() && real_zeFenceQueryStatus() &&
         real_zeEventPoolCreate() && real_zeEventPoolDestroy() && real_zeEventCreate() && real_zeEventDestroy() &&
         real_zeEventHostReset() && real_zeEventQueryStatus() && real_zeCommandListCreate() &&
         real_zeCommandListClose() && real_zeCommandListDestroy() && real_zeCommandListAppendBarrier() &&
         real_zeCommandQueueExecuteCommandLists();
}

void *gw_ze_function(void **cache, const char *name) {
  void *f = __atomic_load_n(cache, __ATOMIC_RELAXED);
  if (!f) __atomic_store_n(cache, f = gw_library_symbol(&gw_levelzero_library, name), __ATOMIC_RELAXED);
  return f;
}

static gw_lock_t lock; /* of streams and marks; never held during a call of the runtime */

/* Streams. The table is read without the lock. */

#define SETS 64
#define WAYS 8
#define ENDING ((void *)-1) /* the handle of an entry that is about to become free */
static struct gw_ze_stream streams[SETS][WAYS];

static struct gw_ze_stream *set_of(const void *handle) {
  return streams[((uintptr_t)handle >> 4) * 0x9E3779B97F4A7C15u >> 58];
}

static void *handle_of(const struct gw_ze_stream *s) { return __atomic_load_n(&s->handle, __ATOMIC_SEQ_CST); }

void gw_ze_add(void *handle, bool is_list, void *context, void *device, const struct gw_ze_queue_desc *desc) {
  struct gw_ze_stream *s = set_of(handle), *end = s + WAYS;
  gw_lock(&lock);
  while (s < end && handle_of(s)) s++;
  if (s < end) {
    s->is_list = is_list, s->context = context, s->device = device;
    s->ordinal = desc->ordinal;
    s->in_order = !is_list || desc->flags & QUEUE_IN_ORDER;
    s->waits = desc->mode == QUEUE_SYNCHRONOUS;
    s->cover = NULL, s->thread = NULL;
    s->fresh = false;
    __atomic_store_n(&s->handle, handle, __ATOMIC_SEQ_CST);
  }
  gw_unlock(&lock);
  if (s == end) gw_log("levelzero: too many command queues and immediate lists; some are not held");
}

struct gw_ze_stream *gw_ze_find(const void *handle) {
  for (struct gw_ze_stream *s = set_of(handle), *end = s + WAYS; handle && s < end; s++) {
    if (handle_of(s) == handle) return s;
  }
  return NULL;
}

static __thread char self __attribute__((tls_model("initial-exec"))); /* its address is the thread's name */
static const char several; /* the name of more than one thread */

struct gw_ze_stream *gw_ze_use(const void *handle) {
  struct gw_ze_stream *s = gw_ze_find(handle);
  const char *before = NULL;
  if (!s || !s->is_list || __atomic_load_n(&s->thread, __ATOMIC_RELAXED) == &self) return s;
  if (__atomic_compare_exchange_n(&s->thread, &before, &self, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return s;
  if (before == &several) return s;
  __atomic_store_n(&s->thread, &several, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&s->users, __ATOMIC_SEQ_CST)) gw_sleep(SETTLE_SLEEP_NS); /* the other thread may be asking */
  return s;
}

void gw_ze_each(void (*f)(struct gw_ze_stream *s)) {
  for (struct gw_ze_stream *s = &streams[0][0], *end = s + SETS * WAYS; s < end; s++) {
    if (!handle_of(s)) continue;
    __atomic_fetch_add(&s->users, 1, __ATOMIC_SEQ_CST);
    void *handle = handle_of(s); /* gw_ze_remove changes it and then waits for the users */
    if (handle && handle != ENDING) f(s);
    __atomic_fetch_sub(&s->users, 1, __ATOMIC_SEQ_CST);
  }
}

int gw_ze_idle(struct gw_ze_stream *s) {
  int32_t r = -1;
  __atomic_fetch_add(&s->users, 1, __ATOMIC_SEQ_CST); /* gw_ze_use changes the thread and then waits for the users */
  bool ours = !s->is_list || __atomic_load_n(&s->thread, __ATOMIC_SEQ_CST) == &self;
  if (ours && s->is_list && real_zeCommandListHostSynchronize()) r = real_zeCommandListHostSynchronize()(handle_of(s), 0);
  if (!s->is_list && real_zeCommandQueueSynchronize()) r = real_zeCommandQueueSynchronize()(handle_of(s), 0);
  __atomic_fetch_sub(&s->users, 1, __ATOMIC_SEQ_CST);
  return r == ZE_SUCCESS ? 1 : r == ZE_NOT_READY ? 0 : -1;
}

/* Marks. The gate has up to 64 at a time. */

enum state {
  UNUSED,
  SPARE,   /* not on a stream; it has an unsignalled fence or event that can be used again */
  BUSY,    /* a thread is calling the runtime about it */
  SET,     /* the gate has it */
  DROPPED, /* the gate has dropped it, and the device may still use it */
  LOST,    /* the stream has ended or the device is lost, and nothing tells whether it is still used */
};

static struct mark {
  enum state state;
  void *stream;  /* the handle; a spare event has none */
  void *context; /* of the event */
  void *fence, *empty; /* the empty list is executed with the fence */
  void *pool, *event;
} marks[128];

static void set_state(struct mark *m, enum state state) {
  gw_lock(&lock);
  m->state = state;
  gw_unlock(&lock);
}

/* Takes the first mark in a state, of a queue's fence or a context's event, or of any. */
static struct mark *take(enum state state, const void *stream, const void *context) {
  struct mark *found = NULL;
  gw_lock(&lock);
  for (struct mark *m = marks; m < marks + sizeof marks / sizeof *marks && !found; m++) {
    if (m->state != state || (stream && m->stream != stream) || (context && m->context != context)) continue;
    (found = m)->state = BUSY;
  }
  gw_unlock(&lock);
  return found;
}

static int status(const struct mark *m) {
  int32_t r = m->fence ? real_zeFenceQueryStatus()(m->fence) : real_zeEventQueryStatus()(m->event);
  return r == ZE_SUCCESS ? 1 : r == ZE_NOT_READY ? 0 : -1;
}

/* Makes a signalled mark spare. */
static void recycle(struct mark *m) {
  if (m->fence) real_zeFenceReset()(m->fence);
  else real_zeEventHostReset()(m->event), m->stream = NULL;
  set_state(m, SPARE);
}

/* Frees what a busy mark has, which the device does not use. */
static void clear(struct mark *m) {
  if (m->fence) real_zeFenceDestroy()(m->fence);
  if (m->empty) real_zeCommandListDestroy()(m->empty);
  if (m->event) real_zeEventDestroy()(m->event);
  if (m->pool) real_zeEventPoolDestroy()(m->pool);
  m->fence = m->empty = m->event = m->pool = m->stream = m->context = NULL;
}

/* Looks at each dropped mark once. A mark of which the runtime knows nothing, as after the loss of
 * the device, never becomes spare. */
static void recycle_dropped(void) {
  struct mark *unreached[sizeof marks / sizeof *marks], *m;
  size_t n = 0;
  while ((m = take(DROPPED, NULL, NULL))) {
    int now = status(m);
    if (now > 0) recycle(m);
    else if (now < 0) set_state(m, LOST);
    else unreached[n++] = m;
  }
  while (n) set_state(unreached[--n], DROPPED);
}

/* A busy mark with a fence of the queue or an event of the list's context, or NULL. */
static struct mark *prepare(const struct gw_ze_stream *s, void *handle) {
  const struct fence_desc fence = {.type = TYPE_FENCE_DESC};
  const struct pair_desc list = {.type = TYPE_COMMAND_LIST_DESC, .first = s->ordinal};
  const struct pair_desc pool = {.type = TYPE_EVENT_POOL_DESC, .first = HOST_VISIBLE, .second = 1};
  const struct event_desc event = {.type = TYPE_EVENT_DESC, .signal = HOST_SCOPE};
  struct mark *m = s->is_list ? take(SPARE, NULL, s->context) : take(SPARE, handle, NULL);
  if (m) return m->stream = handle, m;
  recycle_dropped();
  m = take(UNUSED, NULL, NULL);
  if (!m) m = take(SPARE, NULL, NULL); /* of another queue or context */
  if (!m) return NULL;
  clear(m);
  m->stream = handle;
  int32_t r = ZE_SUCCESS;
  if (!s->is_list) {
    r = real_zeFenceCreate()(handle, &fence, &m->fence);
    if (r == ZE_SUCCESS) r = real_zeCommandListCreate()(s->context, s->device, &list, &m->empty);
    if (r == ZE_SUCCESS) r = real_zeCommandListClose()(m->empty);
  } else {
    m->context = s->context;
    r = real_zeEventPoolCreate()(s->context, &pool, 0, NULL, &m->pool);
    if (r == ZE_SUCCESS) r = real_zeEventCreate()(m->pool, &event, &m->event);
  }
  if (r == ZE_SUCCESS) return m;
  clear(m);
  set_state(m, UNUSED);
  return NULL;
}

static void *mark(void *ctx, void *handle) {
  struct gw_ze_stream *s = gw_ze_find(handle);
  (void)ctx;
  if (!s || !has_all()) return NULL;
  struct mark *m = prepare(s, handle);
  if (!m) return NULL;
  int32_t r = s->is_list ? real_zeCommandListAppendBarrier()(handle, m->event, 0, NULL)
                         : real_zeCommandQueueExecuteCommandLists()(handle, 1, &m->empty, m->fence);
  set_state(m, r == ZE_SUCCESS ? SET : SPARE);
  return r == ZE_SUCCESS ? m : NULL;
}

static int reached(void *m) { return status(m); }

static void drop(void *dropped) {
  struct mark *m = dropped;
  if (status(m) == 1) recycle(m);
  else set_state(m, DROPPED);
}

/* While there is a capture, nothing is held or marked. */
static int markable(void *ctx, void *handle) {
  (void)ctx, (void)handle;
  return !gw_capture_in_progress();
}

static int idle(void *ctx, void *handle) {
  struct gw_ze_stream *s = gw_ze_find(handle);
  (void)ctx;
  return s ? gw_ze_idle(s) : -1;
}

const struct gw_runtime gw_levelzero = {"levelzero", 1u << 4, mark, reached, drop, markable, idle, NULL};

/* The end of streams and contexts. */

/* Whether a mark of the stream is left that is not lost. */
static bool any_left(const void *handle) {
  bool any = false;
  gw_lock(&lock);
  for (struct mark *m = marks; m < marks + sizeof marks / sizeof *marks; m++) {
    any |= m->stream == handle && m->state != UNUSED && m->state != LOST;
  }
  gw_unlock(&lock);
  return any;
}

/* Frees the fences of a queue, and makes the events on a list spare, once the device uses none of
 * them any more. */
static void settle(void *handle) {
  static bool in_vain; /* a program must not wait that long at the end of each of its streams */
  struct mark *m;
  uint64_t most = __atomic_load_n(&in_vain, __ATOMIC_RELAXED) ? UNSETTLED_NS : SETTLE_NS;
  for (uint64_t end = gw_now() + most;; gw_sleep(SETTLE_SLEEP_NS)) {
    recycle_dropped();
    while ((m = take(SPARE, handle, NULL))) clear(m), set_state(m, UNUSED);
    if (!any_left(handle)) return;
    if (gw_now() > end) break;
  }
  __atomic_store_n(&in_vain, true, __ATOMIC_RELAXED);
  while ((m = take(DROPPED, handle, NULL))) set_state(m, LOST);
  gw_log("levelzero: a stream was destroyed while the device uses it");
}

void gw_ze_remove(void *handle) {
  struct gw_ze_stream *s = gw_ze_find(handle);
  if (!s) return;
  gw_forget(&gw_levelzero, handle, handle); /* drops all marks of the gate, and none is put after it */
  __atomic_store_n(&s->handle, ENDING, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&s->users, __ATOMIC_SEQ_CST)) gw_sleep(SETTLE_SLEEP_NS);
  if (has_all()) settle(handle);
  __atomic_store_n(&s->handle, NULL, __ATOMIC_SEQ_CST);
}

void gw_ze_context_ends(void *context) {
  struct mark *m;
  if (!context || !has_all()) return;
  recycle_dropped();
  while ((m = take(SPARE, NULL, context))) clear(m), set_state(m, UNUSED);
}

void gw_ze_streams_forked(void) { /* the handles are the parent's */
  lock = (gw_lock_t){0};
  memset(streams, 0, sizeof streams);
  memset(marks, 0, sizeof marks);
}
