/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#include "activity.h"

#include "bound.h"
#include "hook.h"
#include "page.h"

struct gw_activity gw_act;
uint32_t gw_captures;
uint32_t gw_gone;

/* A set of GW_WAYS slots for each hash: no chains, no tombstones, no allocation.
 * Small numbers are no handles but every context's, and told apart by it. */
static int set_of(const struct gw_runtime *rt, void *ctx, void *stream) {
  uint64_t h = (uint64_t)(uintptr_t)stream ^ (uint64_t)(uintptr_t)rt;
  if ((uintptr_t)stream < 16) h ^= (uint64_t)(uintptr_t)ctx << 7;
  h *= 0x9e3779b97f4a7c15ull;
  return (int)(h >> 58) * GW_WAYS;
}

int gw_lane_find(const struct gw_runtime *rt, void *ctx, void *stream) {
  int first = set_of(rt, ctx, stream);
  for (int i = first; i < first + GW_WAYS; i++) {
    struct gw_lane *l = &gw_act.lanes[i];
    if (l->stream == stream && (l->ctx == ctx || ctx == GW_ALL) && l->runtime == rt) return i;
  }
  return -1;
}

int gw_lane_take(const struct gw_runtime *rt, void *ctx, void *stream) {
  int at = gw_lane_find(rt, ctx, stream);
  if (at >= 0) return at;
  int first = set_of(rt, ctx, stream);
  for (int i = first; i < first + GW_WAYS && at < 0; i++) {
    if (!gw_act.lanes[i].runtime) at = i;
  }
  for (int i = first; i < first + GW_WAYS && at < 0; i++) {
    /* Nothing in flight: nobody will miss it. */
    if (gw_act.lanes[i].launched == gw_act.lanes[i].done) at = i;
  }
  if (at < 0) return -1;
  struct gw_lane *l = &gw_act.lanes[at];
  uint32_t life = l->life + 1;
  *l = (struct gw_lane){.runtime = rt, .ctx = ctx, .stream = stream, .life = life};
  gw_act.used[at / 64] |= 1ull << at % 64;
  return at;
}

void gw_lane_done(struct gw_lane *l, uint64_t seq) {
  if (seq > l->launched) seq = l->launched;
  if (seq <= l->done) return;
  gw_act.completed += seq - l->done;
  l->done = seq;
  gw_act.excused -= l->excused;
  l->excused = 0;
  uint64_t left = l->launched - seq;
  if (l->unmarked > left) l->unmarked = (uint32_t)left;
}

void gw_lane_free(int lane) {
  struct gw_lane *l = &gw_act.lanes[lane];
  gw_lane_done(l, l->launched);
  *l = (struct gw_lane){.life = l->life + 1};
  gw_act.used[lane / 64] &= ~(1ull << lane % 64);
}

void gw_bump(void) { __atomic_store_n(&gw_shared.page.doorbell, ++gw_act.bell, __ATOMIC_SEQ_CST); }

bool gw_log_request(uint64_t begin_ns, uint64_t end_ns) {
  struct gw_request *r = &gw_shared.page.log[gw_act.requests % GW_REQUEST_ENTRIES];
  __atomic_store_n(&r->begin_ns, begin_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&r->end_ns, end_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&gw_shared.page.requests, ++gw_act.requests, __ATOMIC_RELEASE);
  return GW_READ(watch) & GW_WATCH_REQUESTS;
}

void gw_show_flags(void) {
  uint32_t flags = (gw_act.ready ? GW_READY : 0) | (gw_act.held ? GW_HELD : 0) |
                   (gw_anything_captures() ? GW_CAPTURING : 0);
  __atomic_store_n(&gw_shared.page.flags, flags, __ATOMIC_RELEASE);
}

bool gw_settle(void) {
  bool ring = false;
  bool ready = gw_in_flight() != 0 || gw_act.passing != 0;
  GW_SHOW(launched, gw_act.launched + gw_act.running);
  GW_SHOW(completed, gw_act.completed);
  if (ready != gw_act.ready) {
    uint32_t watch = GW_READ(watch);
    uint64_t now = watch ? gw_now() : 0;
    bool guess = watch && !(watch & GW_EXPLICIT_REQUESTS);
    ring = watch & GW_WATCH_READY;
    if (!ready && guess && gw_act.since_ns && !gw_act.explicit_requests && gw_log_request(gw_act.since_ns, now)) ring = true;
    if (ready && watch) gw_hook_ready(now);
    if (!gw_act.explicit_requests) GW_SHOW(open_requests, ready && guess);
    gw_act.ready = ready;
    gw_act.since_ns = now;
    gw_show_flags();
  } else if ((GW_READ(flags) & GW_HELD) != (gw_act.held ? GW_HELD : 0)) {
    gw_show_flags();
  }
  if (ring) gw_bump();
  return ring;
}

void gw_activity_publish(void) {
  gw_bias_lock(&gw_act.lock);
  GW_SHOW(launched, gw_act.launched + gw_act.running);
  GW_SHOW(completed, gw_act.completed);
  GW_SHOW(held_ns, gw_act.held_ns);
  GW_SHOW(holds, gw_act.holds);
  GW_SHOW(overruns, gw_act.overruns);
  GW_SHOW(open_requests, gw_act.open);
  GW_SHOW(runtimes, gw_act.runtimes);
  /* Of these the page has a log, which begins empty. */
  gw_act.requests = gw_act.hints = 0;
  gw_hint_again();
  gw_show_flags();
  gw_bias_unlock(&gw_act.lock);
}
