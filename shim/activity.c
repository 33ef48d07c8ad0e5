/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#include "activity.h"

#include "bound.h"
#include "class.h"
#include "hook.h"
#include "late.h"
#include "page.h"

struct gw_activity gw_act;
uint32_t gw_ended;

/* Each part of the table has a number of slots for each hash: no chains, no tombstones, no
 * allocation. A small number is not a stream's handle but a default stream of every context, so
 * the context is part of its hash. */
static uint64_t hash(const struct gw_runtime *rt, void *ctx, void *stream) {
  uint64_t h = (uint64_t)(uintptr_t)stream ^ (uint64_t)(uintptr_t)rt;
  if ((uintptr_t)stream < 16) h ^= (uint64_t)(uintptr_t)ctx << 7;
  return h * 0x9e3779b97f4a7c15ull;
}

/* The first slots for a hash in the two parts, by different bits of it. */
static int first_way(uint64_t h) { return (int)(h >> 58) * GW_WAYS; }
static int first_of_more(uint64_t h) { return GW_FEW + (int)(h >> 50) % GW_MORE_SETS * GW_MORE_WAYS; }

static int find_in(int first, int ways, const struct gw_runtime *rt, void *ctx, void *stream) {
  for (int i = first; i < first + ways; i++) {
    struct gw_stream *s = &gw_act.streams[i];
    if (s->stream == stream && (s->ctx == ctx || ctx == GW_ALL) && s->runtime == rt && !s->dying) return i;
  }
  return -1;
}

int gw_stream_find(const struct gw_runtime *rt, void *ctx, void *stream) {
  uint64_t h = hash(rt, ctx, stream);
  int at = find_in(first_way(h), GW_WAYS, rt, ctx, stream);
  if (__builtin_expect(at >= 0 || !gw_act.more, 1)) return at;
  return find_in(first_of_more(h), GW_MORE_WAYS, rt, ctx, stream);
}

/* A free slot, else one that has nothing in flight: its counters are not needed. */
static int vacant_in(int first, int ways) {
  for (int i = first; i < first + ways; i++) {
    if (!gw_act.streams[i].runtime) return i;
  }
  for (int i = first; i < first + ways; i++) {
    if (gw_act.streams[i].launched == gw_act.streams[i].done) return i;
  }
  return -1;
}

int gw_stream_get(const struct gw_runtime *rt, void *ctx, void *stream) {
  int at = gw_stream_find(rt, ctx, stream);
  if (at >= 0) return at;
  uint64_t h = hash(rt, ctx, stream);
  at = vacant_in(first_way(h), GW_WAYS);
  if (at < 0) at = vacant_in(first_of_more(h), GW_MORE_WAYS);
  if (at < 0) return -1;
  struct gw_stream *s = &gw_act.streams[at];
  uint32_t generation = ++gw_act.generations;
  if (at >= GW_FEW && !s->runtime) gw_act.more++;
  *s = (struct gw_stream){.runtime = rt, .ctx = ctx, .stream = stream, .generation = generation};
  gw_act.used[at / 64] |= 1ull << at % 64;
  return at;
}

static void complete(struct gw_stream *s, uint64_t seq) {
  if (seq > s->launched) seq = s->launched;
  if (seq <= s->done) return;
  gw_act.completed += seq - s->done;
  if (s->high) gw_class_done(seq - s->done);
  s->done = seq;
  gw_act.exempt -= s->exempt;
  s->exempt = 0;
  uint64_t left = s->launched - seq;
  if (s->unmarked > left) s->unmarked = (uint32_t)left;
}

void gw_stream_free(int slot) {
  struct gw_stream *s = &gw_act.streams[slot];
  complete(s, s->launched);
  if (slot >= GW_FEW && s->runtime) gw_act.more--;
  if (s->destroyed) __atomic_store_n(&gw_act.destroyed, gw_act.destroyed - 1, __ATOMIC_RELAXED);
  *s = (struct gw_stream){.generation = ++gw_act.generations};
  gw_act.used[slot / 64] &= ~(1ull << slot % 64);
}

void gw_stream_done(struct gw_stream *s, uint64_t seq) {
  complete(s, seq);
  int slot = (int)(s - gw_act.streams);
  if (__builtin_expect(slot >= GW_FEW || s->destroyed, 0) && s->runtime && s->done == s->launched) gw_stream_free(slot);
}

void gw_untracked_add(const struct gw_runtime *rt, void *ctx) {
  struct gw_rest *r = NULL;
  for (struct gw_rest *e = gw_act.rests; e < gw_act.rests + GW_RESTS; e++) {
    if (e->count && e->runtime == rt && e->ctx == ctx) {
      r = e;
      break;
    }
    if (!e->count && !r) r = e;
  }
  gw_act.untracked++;
  if (r) *r = (struct gw_rest){rt, ctx, r->count + 1, gw_act.launched};
}

static void untracked_done(struct gw_rest *r, uint64_t n) {
  gw_act.untracked -= n;
  gw_act.completed += n;
  r->count -= n;
}

void gw_untracked_done(const struct gw_runtime *rt, void *ctx, uint64_t launched) {
  for (struct gw_rest *r = gw_act.rests; gw_act.untracked && r < gw_act.rests + GW_RESTS; r++) {
    if (r->runtime == rt && (ctx == GW_ALL || r->ctx == ctx) && r->last_launch <= launched) untracked_done(r, r->count);
  }
}

void gw_untracked_one_done(const struct gw_runtime *rt, void *ctx) {
  for (struct gw_rest *r = gw_act.rests; r < gw_act.rests + GW_RESTS; r++) {
    if (!r->count || r->runtime != rt || r->ctx != ctx) continue;
    untracked_done(r, 1);
    return;
  }
}

/* Memory that was never used stays so. */
void gw_activity_forked(void) {
  for (int i = GW_FEW; gw_act.more && i < GW_STREAMS; i++) {
    if (gw_act.streams[i].runtime) gw_act.streams[i] = (struct gw_stream){0}, gw_act.more--;
  }
  __builtin_memset(&gw_act, 0, (size_t)((char *)&gw_act.streams[GW_FEW] - (char *)&gw_act));
}

/* The release of a late request rings without the lock. If two threads store their numbers in the
 * other order, the daemon sees a new number all the same. */
void gw_count_ring(void) {
  uint32_t n = __atomic_add_fetch(&gw_act.doorbell, 1, __ATOMIC_RELAXED);
  __atomic_store_n(&gw_shared.page.doorbell, n, __ATOMIC_SEQ_CST);
}

bool gw_log_request(uint64_t begin_ns, uint64_t end_ns) {
  struct gw_request *r = &gw_shared.page.log[gw_act.requests % GW_REQUEST_ENTRIES];
  __atomic_store_n(&r->begin_ns, begin_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&r->end_ns, end_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&gw_shared.page.requests, ++gw_act.requests, __ATOMIC_RELEASE);
  return GW_READ(watch) & GW_WATCH_REQUESTS;
}

/* Whether all commands in flight are on one stream: while a request waits to enter late, that is
 * the stream that waits. */
static bool on_one_stream(void) {
  int streams = gw_act.untracked ? 2 : 0;
  for (int w = 0; w < gw_stream_words() && streams < 2; w++) {
    for (uint64_t left = gw_act.used[w]; left; left &= left - 1) {
      const struct gw_stream *s = &gw_act.streams[w * 64 + __builtin_ctzll(left)];
      streams += s->launched != s->done;
    }
  }
  return streams < 2;
}

/* Whether late entry keeps all that is in flight from the device. Only where the daemon acts on
 * it: looking at all streams costs time. */
static bool waits_late(void) {
  return __builtin_expect(__atomic_load_n(&gw_late_pending.armed, __ATOMIC_SEQ_CST) != 0, 0) &&
         GW_READ(watch) & GW_WATCH_READY && gw_in_flight() && !gw_act.held && on_one_stream();
}

uint32_t gw_write_flags(void) {
  uint32_t flags = (gw_act.ready ? GW_READY : 0) | (gw_act.held ? GW_HELD : 0) |
                   (gw_capture_in_progress() ? GW_CAPTURING : 0) | (waits_late() ? GW_WAITS_LATE : 0);
  __atomic_store_n(&gw_shared.page.flags, flags, __ATOMIC_SEQ_CST);
  /* A release in between has not seen the flag that it clears. */
  if (flags & GW_WAITS_LATE && !__atomic_load_n(&gw_late_pending.armed, __ATOMIC_SEQ_CST)) {
    gw_write_entered();
    flags &= ~GW_WAITS_LATE;
  }
  return flags;
}

void gw_write_entered(void) { __atomic_fetch_and(&gw_shared.page.flags, ~GW_WAITS_LATE, __ATOMIC_SEQ_CST); }

bool gw_update(void) {
  bool ready = gw_in_flight() != 0 || gw_act.entering != 0;
  /* The daemon has closed the gate and waits until the device is free. */
  bool draining = gw_act.held != 0 && gw_in_flight() != 0;
  bool ring = gw_act.draining && !draining && gw_act.held != 0;
  gw_act.draining = draining;
  GW_WRITE(launched, gw_act.launched + gw_act.started);
  GW_WRITE(completed, gw_act.completed);
  if (ready != gw_act.ready) {
    uint32_t watch = GW_READ(watch);
    uint64_t now = watch ? gw_now() : 0;
    bool guess = watch && !(watch & GW_EXPLICIT_REQUESTS);
    if (!ready && guess && gw_act.changed_ns && !gw_act.explicit_requests && gw_log_request(gw_act.changed_ns, now)) ring = true;
    if (ready && watch) gw_hook_ready();
    if (!ready) {
      GW_WRITE(idled, ++gw_act.idled);
      gw_late_idle();
    }
    if (!gw_act.explicit_requests) GW_WRITE(open_requests, ready && guess);
    gw_act.ready = ready;
    gw_act.changed_ns = now;
    /* While the device is left to others, the daemon need not know; the release tells it. */
    if (!(gw_write_flags() & GW_WAITS_LATE && ready) && watch & GW_WATCH_READY) ring = true;
  } else {
    uint32_t flags = GW_READ(flags), wanted = (gw_act.held ? GW_HELD : 0) | (waits_late() ? GW_WAITS_LATE : 0);
    if ((flags & (GW_HELD | GW_WAITS_LATE)) != wanted) {
      if (flags & ~wanted & GW_WAITS_LATE) ring = true;
      gw_write_flags();
    }
  }
  if (ring) gw_count_ring();
  return ring;
}

void gw_activity_publish(void) {
  gw_bias_lock(&gw_act.lock);
  GW_WRITE(launched, gw_act.launched + gw_act.started);
  GW_WRITE(completed, gw_act.completed);
  GW_WRITE(held_ns, gw_act.held_ns);
  GW_WRITE(holds, gw_act.holds);
  GW_WRITE(overruns, gw_act.overruns);
  GW_WRITE(idled, gw_act.idled);
  GW_WRITE(open_requests, gw_act.open_requests);
  GW_WRITE(runtimes, gw_act.runtimes);
  /* The new page's log and ring are empty. */
  gw_act.requests = gw_act.hints = 0;
  gw_hint_republish();
  gw_late_publish();
  gw_class_publish();
  gw_write_flags();
  gw_bias_unlock(&gw_act.lock);
}
