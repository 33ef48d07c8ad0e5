/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "gate.h"

#include <errno.h>

#include "activity.h"
#include "bound.h"
#include "class.h"
#include "destroyed.h"
#include "hook.h"
#include "kfd.h"
#include "late.h"
#include "page.h"
#include "sys.h"
#include "unwaited.h"

/* Whether a command on the stream now goes into a graph instead of to the device. */
static bool is_captured(const gw_pass *p) {
  return gw_capture_in_progress() && !p->runtime->markable(p->ctx, p->stream);
}

/* Counts this thread as held. A thread on its way through the gate makes the process ready. */
static void begin_hold(gw_pass *p) {
  gw_bias_lock(&gw_act.lock);
  gw_act.held++;
  gw_act.holds++;
  GW_WRITE(holds, gw_act.holds);
  if (!p->entering) gw_act.entering++;
  p->entering = true;
  bool ring = gw_update();
  gw_bias_unlock(&gw_act.lock);
  if (ring) gw_page_ring();
}

static void end_hold(uint64_t began) {
  gw_bias_lock(&gw_act.lock);
  gw_act.held--;
  gw_act.held_ns += gw_now() - began;
  GW_WRITE(held_ns, gw_act.held_ns);
  gw_update();
  gw_bias_unlock(&gw_act.lock);
}

/* Counts each expired lease once, however many threads notice it. */
static void count_expired_lease(uint64_t lease) {
  static uint64_t last;
  if (__atomic_exchange_n(&last, lease, __ATOMIC_RELAXED) == lease) return;
  gw_bias_lock(&gw_act.lock);
  GW_WRITE(overruns, ++gw_act.overruns);
  gw_bias_unlock(&gw_act.lock);
  gw_log("the lease of the closed gate has expired; going on");
}

/* A closed gate with its lease. */
struct closed {
  uint64_t lease, now;
  bool valid; /* the lease has not expired */
};

/* Whether the gate is closed, at the moment of c->now. It holds launches only if c->valid. */
static bool is_closed(struct closed *c) {
  if (__atomic_load_n(&gw_shared.page.gate, __ATOMIC_ACQUIRE) != GW_GATE_CLOSED) return false;
  c->lease = GW_READ(lease_ns);
  c->now = gw_now();
  c->valid = c->lease > c->now && c->lease - c->now <= GW_MAX_LEASE_NS;
  return true;
}

static bool holds_launches(void) {
  struct closed c;
  return is_closed(&c) && c.valid;
}

/*
 * How long a held thread sleeps until it queries the marks again: an eighth of the time that it
 * has waited, so the daemon learns late by at most that part when the device is free.
 */
#define MIN_DRAIN_SLEEP_NS 50000ull
#define MAX_DRAIN_SLEEP_NS (5 * GW_MS_NS)

static uint64_t drain_sleep(uint64_t waited) {
  uint64_t ns = waited / 8;
  return ns < MIN_DRAIN_SLEEP_NS ? MIN_DRAIN_SLEEP_NS : ns < MAX_DRAIN_SLEEP_NS ? ns : MAX_DRAIN_SLEEP_NS;
}

/* Waits while the gate is closed and its lease is valid. Until all commands are done it queries
 * their marks, because nothing else tells the daemon how long the held process still uses the
 * device. */
static void wait_at_gate(gw_pass *p) {
  uint64_t began = 0;
  bool draining = true;
  for (struct closed c; is_closed(&c);) {
    if (!c.valid) {
      count_expired_lease(c.lease);
      break;
    }
    if (__atomic_load_n(&gw_ended, __ATOMIC_RELAXED) || is_captured(p)) break;
    if (!began) {
      began = c.now;
      begin_hold(p);
      gw_bound_mark_all(p);
    }
    draining = draining && gw_bound_poll();
    uint64_t until = draining ? gw_now() + drain_sleep(c.now - began) : c.lease;
    long r = gw_futex_wait(&gw_shared.page.gate, GW_GATE_CLOSED, until < c.lease ? until : c.lease, 1);
    if (r != 0 && r != -EINTR && r != -EAGAIN && r != -ETIMEDOUT) break;
  }
  if (!began) return;
  end_hold(began);
  gw_page_check(gw_now_coarse());
}

/* Ends a pass without a launch. */
static void cancel(gw_pass *p) {
  if (!p->entering) return;
  gw_bias_lock(&gw_act.lock);
  gw_act.entering--;
  if (p->started) gw_act.started--;
  bool ring = gw_update();
  gw_bias_unlock(&gw_act.lock);
  p->entering = p->started = false;
  if (ring) gw_page_ring();
}

/* For giveway_guard.h: while set, this thread's launches do not wait. They are what makes a
 * guarded kernel stop. */
static __thread int ungated __attribute__((tls_model("initial-exec")));
__attribute__((visibility("default"))) void giveway_ungated(int on) { ungated = on; }

bool gw_enter_slow(gw_pass *p) {
  int before = errno;
  bool ours = false;
  gw_late_may_wait(); /* this thread may wait until commands are done */
  if (!ungated && !__atomic_load_n(&gw_ended, __ATOMIC_RELAXED) && gw_page_attach(p->runtime->name) && !is_captured(p)) {
    do wait_at_gate(p);
    while ((gw_bound_wait(p) | gw_class_wait(p)) && holds_launches());
    ours = !is_captured(p);
    if (!ours) cancel(p);
  }
  errno = before;
  return ours;
}

/* Counts a command, on its stream if the table has a slot for it. */
static void count(gw_pass *p, bool over) {
  gw_act.launched++;
  p->slot = -1;
  if (p->entering) gw_act.entering--;
  if (p->started) gw_act.started--;
  p->entering = p->started = false;
  if (gw_act.runtimes != (gw_act.runtimes | p->runtime->bit)) {
    gw_act.runtimes |= p->runtime->bit;
    GW_WRITE(runtimes, gw_act.runtimes);
  }
  if (over) {
    gw_act.completed++;
    return;
  }
  p->slot = gw_stream_get(p->runtime, p->ctx, p->stream);
  if (p->slot < 0) {
    gw_untracked_add(p->runtime, p->ctx);
    return;
  }
  struct gw_stream *s = &gw_act.streams[p->slot];
  s->launched++;
  s->last_launch = gw_act.launched;
  s->unmarked++;
  gw_class_count(p, s);
}

/* What is done after every few launches. */
static void check_now(void) {
  gw_page_check(gw_now_coarse());
  if (__atomic_load_n(&gw_act.destroyed, __ATOMIC_RELAXED)) gw_destroyed_poll();
}

static void leave(gw_pass *p, bool launched, bool over) {
  if (__atomic_load_n(&gw_ended, __ATOMIC_RELAXED) || !launched || is_captured(p)) {
    p->slot = -1;
    cancel(p);
    return;
  }
  struct gw_bound_place place;
  gw_bias_lock(&gw_act.lock);
  count(p, over);
  bool mark = p->slot >= 0 && (gw_bound_wants_mark(&gw_act.streams[p->slot]) || gw_class_wants_mark(&gw_act.streams[p->slot]));
  if (mark) place = gw_bound_reserve(p->slot);
  bool ring = gw_update();
  bool check = gw_act.launched % 4 == 0; /* reading the clock costs time here, and threads that wait check as well */
  gw_bias_unlock(&gw_act.lock);
  if (mark) gw_bound_mark(&place);
  if (ring) gw_page_ring();
  else if (check) check_now();
}

void gw_leave(gw_pass *p, bool launched) { leave(p, launched, false); }
void gw_leave_done(gw_pass *p, bool launched) {
  leave(p, launched, true);
  gw_waited();
}

void gw_waited(void) {
  if (__builtin_expect(__atomic_load_n(&gw_act.destroyed, __ATOMIC_RELAXED) != 0, 0)) gw_destroyed_waited();
}

/*
 * A ticket for all streams is a count of all commands. One for a single stream is a count of that
 * stream's commands and, above it, the generation of the stream: one that was destroyed
 * may have the handle of a later one, and its tickets say nothing about that one.
 */
#define ALL_STREAMS (1ull << 63)
#define COUNT_BITS 43
#define COUNT_MASK ((1ull << COUNT_BITS) - 1)

static uint64_t stream_ticket(const struct gw_stream *s, uint64_t n) {
  return (((uint64_t)s->generation << COUNT_BITS) & ~ALL_STREAMS) | n;
}

uint64_t gw_ticket(const struct gw_runtime *rt, void *ctx, void *stream) {
  if (!gw_page_attached()) return 0;
  gw_bias_lock(&gw_act.lock);
  uint64_t t = gw_act.launched | ALL_STREAMS;
  if (stream != GW_ALL) {
    int at = gw_stream_find(rt, ctx, stream);
    const struct gw_stream *s = &gw_act.streams[at < 0 ? 0 : at];
    t = at < 0 || s->launched > COUNT_MASK ? 0 : stream_ticket(s, s->launched);
  }
  gw_bias_unlock(&gw_act.lock);
  return t;
}

uint64_t gw_ticket_with(const gw_pass *p, uint64_t before) {
  if (p->slot < 0) return 0;
  gw_bias_lock(&gw_act.lock);
  const struct gw_stream *s = &gw_act.streams[p->slot];
  uint64_t t = s->runtime == p->runtime && s->ctx == p->ctx && s->stream == p->stream ? stream_ticket(s, 1) : 0;
  gw_bias_unlock(&gw_act.lock);
  return before ? before + 1 : t;
}

/* How many commands of the stream a ticket stands for: 0 if it is of another stream. */
static uint64_t count_of(const struct gw_stream *s, uint64_t ticket) {
  uint64_t n = ticket & COUNT_MASK;
  return ticket == stream_ticket(s, n) ? n : 0;
}

static void stream_reached(struct gw_stream *s, uint64_t ticket) {
  if (!(ticket & ALL_STREAMS)) gw_stream_done(s, count_of(s, ticket));
  else if (s->last_launch <= (ticket & ~ALL_STREAMS)) gw_stream_done(s, s->launched);
  /* Otherwise commands were launched on it after the ticket, and how many is not known. */
}

void gw_done(const struct gw_runtime *rt, void *ctx, void *stream, uint64_t ticket) {
  if (!gw_page_attached()) return;
  if (!ticket) {
    if (__atomic_load_n(&gw_act.destroyed, __ATOMIC_RELAXED)) gw_destroyed_poll();
    return;
  }
  gw_bias_lock(&gw_act.lock);
  if (stream != GW_ALL) {
    int at = gw_stream_find(rt, ctx, stream);
    if (at >= 0) stream_reached(&gw_act.streams[at], ticket);
  } else {
    for (int w = 0; w < gw_stream_words(); w++) {
      for (uint64_t left = gw_act.used[w]; left; left &= left - 1) {
        struct gw_stream *s = &gw_act.streams[w * 64 + __builtin_ctzll(left)];
        if (s->runtime == rt && s->ctx == ctx) stream_reached(s, ticket);
      }
    }
    gw_untracked_done(rt, ctx, ticket & ~ALL_STREAMS);
  }
  if (GW_READ(bound)) gw_bound_measure();
  struct gw_bound_place unwaited = gw_unwaited_next(rt, ctx);
  bool ring = gw_update(), poll = gw_act.destroyed != 0;
  gw_bias_unlock(&gw_act.lock);
  if (unwaited.entry && gw_unwaited_ask(&unwaited)) ring = true;
  if (poll) gw_destroyed_poll();
  if (ring) gw_page_ring();
  else gw_page_check(gw_now_coarse());
}

bool gw_known_done(const struct gw_runtime *rt, void *ctx, void *stream, uint64_t ticket) {
  if (!ticket || ticket & ALL_STREAMS || !gw_page_attached()) return false;
  gw_bias_lock(&gw_act.lock);
  int at = gw_stream_find(rt, ctx, stream);
  uint64_t n = at < 0 ? 0 : count_of(&gw_act.streams[at], ticket);
  bool done = n && n <= gw_act.streams[at].done;
  gw_bias_unlock(&gw_act.lock);
  return done;
}

/* Forgets streams, whose marks are dropped, unless there were launches on them after the ticket. */
static void forget_streams(const struct gw_runtime *rt, void *ctx, void *stream, uint64_t ticket) {
  gw_bias_lock(&gw_act.lock);
  for (int w = gw_stream_words() - 1; w >= 0; w--) {
    for (uint64_t left = gw_act.used[w]; left; left &= left - 1) {
      int i = w * 64 + __builtin_ctzll(left);
      struct gw_stream *s = &gw_act.streams[i];
      bool gone = (ctx == GW_ALL || s->ctx == ctx) && (stream == GW_ALL || s->stream == stream);
      if (s->runtime == rt && gone && s->last_launch <= ticket) gw_stream_free(i);
    }
  }
  if (stream == GW_ALL) gw_untracked_done(rt, ctx, ticket);
  bool ring = gw_update();
  gw_bias_unlock(&gw_act.lock);
  if (ring) gw_page_ring();
}

void gw_forget(const struct gw_runtime *rt, void *ctx, void *stream) {
  gw_capture_gone(rt, ctx, stream);
  gw_bound_forget(rt, ctx, stream);
  forget_streams(rt, ctx, stream, ~0ull);
}

void gw_gone(const struct gw_runtime *rt, void *ctx, void *stream) {
  gw_capture_gone(rt, ctx, stream);
  forget_streams(rt, ctx, stream, ~0ull);
}

/* With the lock held: from now on no thread uses the streams for a new mark. */
static void set_dying(const struct gw_runtime *rt, void *ctx, void *stream) {
  for (int slot; (slot = gw_stream_find(rt, ctx, stream)) >= 0;) {
    gw_act.streams[slot].dying = true;
    gw_act.streams[slot].unmarked = 0;
  }
}

uint64_t gw_suspend(const struct gw_runtime *rt, void *ctx, void *stream) {
  gw_bias_lock(&gw_act.lock);
  if (stream != GW_ALL) set_dying(rt, ctx, stream);
  gw_bias_unlock(&gw_act.lock);
  gw_bound_forget(rt, ctx, stream);
  gw_bias_lock(&gw_act.lock);
  for (int w = 0; w < gw_stream_words(); w++) {
    for (uint64_t left = gw_act.used[w]; left; left &= left - 1) {
      struct gw_stream *s = &gw_act.streams[w * 64 + __builtin_ctzll(left)];
      if (s->runtime != rt || (ctx != GW_ALL && s->ctx != ctx) || (stream != GW_ALL && s->stream != stream) || s->dying) continue;
      /* If the stream lives on, the next mark is for all commands in flight. One that was destroyed
       * can get no other mark. */
      if (!s->destroyed) s->unmarked = (uint32_t)(s->launched - s->done);
      else gw_stream_free((int)(s - gw_act.streams));
    }
  }
  uint64_t ticket = gw_act.launched;
  bool ring = gw_update();
  gw_bias_unlock(&gw_act.lock);
  if (ring) gw_page_ring();
  return ticket;
}

void gw_forget_before(const struct gw_runtime *rt, void *ctx, void *stream, uint64_t ticket) {
  if (stream == GW_ALL) gw_capture_gone(rt, ctx, GW_ALL);
  forget_streams(rt, ctx, stream, ticket);
}

/* A child of fork has its own threads, no context, and nothing in flight. */
static void forked(void) {
  gw_filters_forked();
  gw_page_forked();
  gw_activity_forked();
  gw_captures_forked();
  gw_kfd_forked();
  gw_hint_forked();
  gw_late_forked();
  gw_hook_forked();
}

/* glibc has it since 2.3.2; pthread_atfork has been in different libraries. musl has no such
 * function, and with musl this library does nothing. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));

__attribute__((constructor)) static void load(void) {
  if (__register_atfork) {
    __register_atfork(0, 0, forked, 0);
    return;
  }
  gw_log_always("this C library is not glibc; programs that use it run without giveway");
  __atomic_store_n(&gw_ended, 1, __ATOMIC_RELAXED);
}

__attribute__((destructor)) static void unload(void) {
  gw_kfd_leave();
  __atomic_store_n(&gw_ended, 1, __ATOMIC_SEQ_CST);
}

/* For giveway_guard.h: whether the process is held now. */
__attribute__((visibility("default"))) int giveway_closed(void) {
  return gw_page_attached() && holds_launches();
}
