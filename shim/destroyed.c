/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#include "destroyed.h"

#include "page.h"

#define MIN_INTERVAL_NS 20000ull
#define SLEEP_FACTOR 32      /* the program runs for so many times as long before the next sleeps */
#define MAX_SLEEP_FACTOR 4096
#define INTERVAL_FACTOR 8 /* of the time that the last queries took: they must not slow the program down */

void gw_destroyed_poll(void) {
  static uint64_t next;
  uint64_t now = gw_now();
  if (now < __atomic_load_n(&next, __ATOMIC_RELAXED)) return;
  gw_bound_poll();
  uint64_t end = gw_now(), interval = INTERVAL_FACTOR * (end - now);
  __atomic_store_n(&next, end + (interval < MIN_INTERVAL_NS ? MIN_INTERVAL_NS : interval), __ATOMIC_RELAXED);
}

/* Whether all commands in flight are of destroyed streams. */
static bool only_destroyed(void) {
  uint64_t n = 0;
  gw_bias_lock(&gw_act.lock);
  for (int w = 0; gw_act.destroyed && w < gw_stream_words(); w++) {
    for (uint64_t left = gw_act.used[w]; left; left &= left - 1) {
      const struct gw_stream *s = &gw_act.streams[w * 64 + __builtin_ctzll(left)];
      if (s->destroyed) n += s->launched - s->done;
    }
  }
  bool only = n && n == gw_in_flight();
  gw_bias_unlock(&gw_act.lock);
  return only;
}

#define SHORT_SLEEP_NS 20000ull
#define SHORT_SLEEPS 5

/* A mark is reached a moment after what the program has waited for. The sleeps take a small part of the
 * program's time, which becomes smaller each time if a destroyed stream is busy for long. */
void gw_destroyed_waited(void) {
  static uint64_t next;
  static uint32_t factor = SLEEP_FACTOR;
  gw_destroyed_poll();
  uint64_t began = gw_now();
  if (began < __atomic_load_n(&next, __ATOMIC_RELAXED) || gw_capture_in_progress() || !only_destroyed()) return;
  bool busy = true;
  for (int i = 0; i < SHORT_SLEEPS && busy; i++) {
    gw_sleep(SHORT_SLEEP_NS);
    gw_bound_poll();
    busy = only_destroyed();
  }
  uint64_t end = gw_now();
  uint32_t f = __atomic_load_n(&factor, __ATOMIC_RELAXED);
  __atomic_store_n(&next, end + f * (end - began), __ATOMIC_RELAXED);
  __atomic_store_n(&factor, busy && f < MAX_SLEEP_FACTOR ? 2 * f : busy ? f : SLEEP_FACTOR, __ATOMIC_RELAXED);
}

/* With the lock held: whether a mark is set behind all commands of the slot. */
static bool has_last_mark(int slot) {
  const struct gw_stream *s = &gw_act.streams[slot];
  for (const struct gw_mark *m = gw_act.marks; m < gw_act.marks + GW_MARKS; m++) {
    if (m->state == GW_MARK_SET && m->slot == (uint32_t)slot && m->generation == s->generation && m->seq == s->launched) return true;
  }
  return false;
}

/* With the lock held, which is released meanwhile: whether all commands of the slot are done, which
 * the program may know without a call that the library has seen. Where the runtime cannot be asked, the
 * last mark shows it within moments. The slot may be free on return, or another stream's. */
static bool is_done_now(int slot) {
  const struct gw_stream *s = &gw_act.streams[slot];
  const struct gw_runtime *rt = s->runtime;
  void *ctx = s->ctx, *stream = s->stream;
  bool done = false;
  gw_bias_unlock(&gw_act.lock);
  if (rt->idle && !gw_capture_in_progress()) done = rt->idle(ctx, stream) > 0;
  gw_bias_lock(&gw_act.lock);
  return done;
}

/* The same after the mark was put, if the slot is still the stream's. */
static void poll_shortly(const struct gw_runtime *rt, int slot) {
  const struct gw_stream *s = &gw_act.streams[slot];
  uint32_t generation = s->generation;
  for (int i = 0; i < SHORT_SLEEPS && !rt->idle && s->generation == generation && s->launched != s->done; i++) {
    gw_bias_unlock(&gw_act.lock);
    gw_sleep(SHORT_SLEEP_NS);
    gw_bound_poll();
    gw_bias_lock(&gw_act.lock);
  }
}

/* With the lock held, which is released meanwhile: puts a mark behind all commands of the slot. */
static void put_last_mark(int slot) {
  struct gw_bound_place at = gw_bound_reserve(slot);
  gw_bias_unlock(&gw_act.lock);
  if (!at.entry) {
    gw_bound_poll(); /* frees entries */
    gw_bias_lock(&gw_act.lock);
    if (gw_act.streams[slot].generation == at.generation) at = gw_bound_reserve(slot);
    gw_bias_unlock(&gw_act.lock);
  }
  gw_bound_mark_last(&at);
  gw_bias_lock(&gw_act.lock);
}

/* With the lock held: the slot keeps its commands, and is not found by the stream's handle any more. */
static void keep(int slot) {
  struct gw_stream *s = &gw_act.streams[slot];
  for (struct gw_mark *m = gw_act.marks; m < gw_act.marks + GW_MARKS; m++) {
    if (m->state != GW_MARK_FREE && m->slot == (uint32_t)slot && m->generation == s->generation) m->stream = s;
  }
  s->stream = s;
  s->unmarked = 0;
  s->destroyed = true;
  __atomic_store_n(&gw_act.destroyed, gw_act.destroyed + 1, __ATOMIC_RELAXED);
}

void gw_destroying(const struct gw_runtime *rt, void *ctx, void *stream) {
  int tried = -1;
  uint32_t tried_generation = 0;
  if (__atomic_load_n(&gw_ended, __ATOMIC_RELAXED)) { /* the driver may have ended too */
    gw_gone(rt, ctx, stream);
    return;
  }
  gw_bias_lock(&gw_act.lock);
  for (;;) {
    gw_bound_settle(rt, ctx, stream, 0);
    int slot = gw_stream_find(rt, ctx, stream);
    if (slot < 0) break;
    const struct gw_stream *s = &gw_act.streams[slot];
    if (s->launched == s->done) {
      gw_stream_free(slot);
    } else if (has_last_mark(slot)) {
      keep(slot);
    } else if (slot != tried || s->generation != tried_generation) {
      tried = slot;
      tried_generation = s->generation;
      bool done = is_done_now(slot);
      if (s->generation != tried_generation) continue; /* another thread has waited for the commands meanwhile */
      if (done) {
        gw_stream_free(slot);
        continue;
      }
      put_last_mark(slot);
      poll_shortly(rt, slot);
    } else {
      gw_stream_free(slot);
    }
  }
  bool ring = gw_update();
  gw_bias_unlock(&gw_act.lock);
  gw_bound_forget(rt, ctx, stream);
  if (ring) gw_page_ring();
}
