/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "gate.h"

#include <errno.h>

#include "activity.h"
#include "bound.h"
#include "hook.h"
#include "kfd.h"
#include "page.h"
#include "sys.h"

/* Whether what is put on the stream now goes into a graph, and not to a device. */
static bool captured(const gw_pass *p) {
  return gw_anything_captures() && !p->runtime->markable(p->ctx, p->stream);
}

/* This thread is on its way through the gate: that alone makes the program ready. */
static void start_hold(gw_pass *p) {
  gw_bias_lock(&gw_act.lock);
  gw_act.held++;
  gw_act.holds++;
  GW_SHOW(holds, gw_act.holds);
  if (!p->counted) gw_act.passing++;
  p->counted = true;
  bool ring = gw_settle();
  gw_bias_unlock(&gw_act.lock);
  if (ring) gw_page_ring();
}

static void end_hold(uint64_t began) {
  gw_bias_lock(&gw_act.lock);
  gw_act.held--;
  gw_act.held_ns += gw_now() - began;
  GW_SHOW(held_ns, gw_act.held_ns);
  gw_settle();
  gw_bias_unlock(&gw_act.lock);
}

/* Each lease that ran out is counted once, however many threads saw it. */
static void count_lapse(uint64_t lease) {
  static uint64_t last;
  if (__atomic_exchange_n(&last, lease, __ATOMIC_RELAXED) == lease) return;
  gw_bias_lock(&gw_act.lock);
  GW_SHOW(overruns, ++gw_act.overruns);
  gw_bias_unlock(&gw_act.lock);
  gw_say("the daemon holds the gate and does not say for how long: going on");
}

/* Waits while the gate is closed and the daemon keeps its lease up. */
static void hold(gw_pass *p) {
  uint64_t began = 0;
  for (;;) {
    uint32_t gate = __atomic_load_n(&gw_shared.page.gate, __ATOMIC_ACQUIRE);
    if (gate != GW_GATE_CLOSED) break;
    uint64_t lease = GW_READ(lease_ns), now = gw_now();
    if (lease <= now || lease - now > GW_MAX_LEASE_NS) {
      count_lapse(lease);
      break;
    }
    if (__atomic_load_n(&gw_gone, __ATOMIC_RELAXED) || captured(p)) break;
    if (!began) {
      began = now;
      start_hold(p);
    }
    long r = gw_futex_wait(&gw_shared.page.gate, GW_GATE_CLOSED, lease, 1);
    if (r != 0 && r != -EINTR && r != -EAGAIN && r != -ETIMEDOUT) break;
  }
  if (!began) return;
  end_hold(began);
  gw_page_check(gw_now_coarse());
}

/* The pass ends without a launch. */
static void withdraw(gw_pass *p) {
  if (!p->counted) return;
  gw_bias_lock(&gw_act.lock);
  gw_act.passing--;
  if (p->running) gw_act.running--;
  bool ring = gw_settle();
  gw_bias_unlock(&gw_act.lock);
  p->counted = p->running = false;
  if (ring) gw_page_ring();
}

/* For giveway_guard.h: what this thread puts on a device while that is set is what makes
 * work give way, and must not wait itself. */
static __thread int ungated __attribute__((tls_model("initial-exec")));
__attribute__((visibility("default"))) void giveway_ungated(int on) { ungated = on; }

bool gw_enter_slowly(gw_pass *p) {
  int before = errno;
  bool ours = false;
  if (!ungated && !__atomic_load_n(&gw_gone, __ATOMIC_RELAXED) && gw_page_attach(p->runtime->name) && !captured(p)) {
    do hold(p);
    while (gw_bound_wait(p) && GW_READ(gate) == GW_GATE_CLOSED);
    ours = !captured(p);
    if (!ours) withdraw(p);
  }
  errno = before;
  return ours;
}

/* Counts a command, on a lane if there is one. */
static void count(gw_pass *p, bool over) {
  gw_act.launched++;
  p->lane = -1;
  if (p->counted) gw_act.passing--;
  if (p->running) gw_act.running--;
  p->counted = p->running = false;
  if (gw_act.runtimes != (gw_act.runtimes | p->runtime->bit)) {
    gw_act.runtimes |= p->runtime->bit;
    GW_SHOW(runtimes, gw_act.runtimes);
  }
  if (over) {
    gw_act.completed++;
    return;
  }
  p->lane = gw_lane_take(p->runtime, p->ctx, p->stream);
  if (p->lane < 0) {
    gw_act.loose++;
    gw_act.loose_last = gw_act.launched;
    return;
  }
  struct gw_lane *l = &gw_act.lanes[p->lane];
  l->launched++;
  l->last = gw_act.launched;
  l->unmarked++;
}

static void leave(gw_pass *p, bool launched, bool over) {
  if (__atomic_load_n(&gw_gone, __ATOMIC_RELAXED) || !launched || captured(p)) {
    withdraw(p);
    return;
  }
  struct gw_bound_place place;
  gw_bias_lock(&gw_act.lock);
  count(p, over);
  bool mark = p->lane >= 0 && gw_bound_wants_mark(&gw_act.lanes[p->lane]);
  if (mark) place = gw_bound_reserve(p->lane);
  bool ring = gw_settle();
  bool look = gw_act.launched % 4 == 0; /* the clock is dear here; who waits looks then */
  gw_bias_unlock(&gw_act.lock);
  if (ring) gw_page_ring();
  else if (look) gw_page_check(gw_now_coarse());
  if (mark) gw_bound_mark(&place);
}

void gw_leave(gw_pass *p, bool launched) { leave(p, launched, false); }
void gw_leave_done(gw_pass *p, bool launched) { leave(p, launched, true); }

/* A ticket of all lanes counts the program's commands, that of one lane the lane's. */
#define OF_ALL (1ull << 63)

uint64_t gw_ticket(const struct gw_runtime *rt, void *ctx, void *stream) {
  if (!gw_page_is_there()) return 0;
  gw_bias_lock(&gw_act.lock);
  uint64_t t = gw_act.launched | OF_ALL;
  if (stream != GW_ALL) {
    int at = gw_lane_find(rt, ctx, stream);
    t = at < 0 ? 0 : gw_act.lanes[at].launched;
  }
  gw_bias_unlock(&gw_act.lock);
  return t;
}

static void lane_reached(struct gw_lane *l, uint64_t ticket) {
  if (!(ticket & OF_ALL)) gw_lane_done(l, ticket);
  else if (l->last <= (ticket & ~OF_ALL)) gw_lane_done(l, l->launched);
  /* Otherwise something was launched on it since: how much, nobody has counted. */
}

void gw_done(const struct gw_runtime *rt, void *ctx, void *stream, uint64_t ticket) {
  if (!ticket || !gw_page_is_there()) return;
  gw_bias_lock(&gw_act.lock);
  if (stream != GW_ALL) {
    int at = gw_lane_find(rt, ctx, stream);
    if (at >= 0) lane_reached(&gw_act.lanes[at], ticket);
  } else {
    for (int w = 0; w < GW_LANES / 64; w++) {
      for (uint64_t left = gw_act.used[w]; left; left &= left - 1) {
        struct gw_lane *l = &gw_act.lanes[w * 64 + __builtin_ctzll(left)];
        if (l->runtime == rt && l->ctx == ctx) lane_reached(l, ticket);
      }
    }
    if (gw_act.loose && gw_act.loose_last <= (ticket & ~OF_ALL)) {
      gw_act.completed += gw_act.loose;
      gw_act.loose = 0;
    }
  }
  if (GW_READ(bound)) gw_bound_pace();
  bool ring = gw_settle();
  gw_bias_unlock(&gw_act.lock);
  if (ring) gw_page_ring();
  else gw_page_check(gw_now_coarse());
}

void gw_forget(const struct gw_runtime *rt, void *ctx, void *stream) {
  gw_bound_forget(rt, ctx, stream);
  gw_bias_lock(&gw_act.lock);
  for (int i = 0; i < GW_LANES; i++) {
    struct gw_lane *l = &gw_act.lanes[i];
    bool gone = (ctx == GW_ALL || l->ctx == ctx) && (stream == GW_ALL || l->stream == stream);
    if (l->runtime == rt && gone) gw_lane_free(i);
  }
  bool ring = gw_settle();
  gw_bias_unlock(&gw_act.lock);
  if (ring) gw_page_ring();
}

void gw_capturing(int change) {
  gw_bias_lock(&gw_act.lock);
  uint32_t n = gw_captures;
  if (change > 0 || n > 0) __atomic_store_n(&gw_captures, n + (uint32_t)change, __ATOMIC_SEQ_CST);
  gw_show_flags();
  gw_bias_unlock(&gw_act.lock);
}

/* A child has its own threads, no context, and nothing in flight. */
static void forked(void) {
  gw_page_forked();
  __builtin_memset(&gw_act, 0, sizeof gw_act);
  gw_captures = 0;
  gw_kfd_forked();
  gw_hint_forked();
  gw_hook_forked();
}

/* In libc since 2.3.2; pthread_atfork itself has moved about. musl has none, and
 * there this library does nothing. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));

__attribute__((constructor)) static void loaded(void) {
  if (__register_atfork) {
    __register_atfork(0, 0, forked, 0);
    return;
  }
  __atomic_store_n(&gw_gone, 1, __ATOMIC_RELAXED);
  gw_say_always("this C library is not glibc: programs that use it run without giveway");
}

__attribute__((destructor)) static void leaving(void) {
  gw_kfd_leave();
  __atomic_store_n(&gw_gone, 1, __ATOMIC_SEQ_CST);
}

/* For giveway_guard.h: whether the program is held now. */
__attribute__((visibility("default"))) int giveway_closed(void) {
  if (!gw_page_is_there() || GW_READ(gate) != GW_GATE_CLOSED) return 0;
  uint64_t lease = GW_READ(lease_ns), now = gw_now();
  return lease > now && lease - now <= GW_MAX_LEASE_NS;
}
