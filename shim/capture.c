/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#include "capture.h"

#include "bound.h"

#define LISTED 32
#define SETTLE_NS (100 * GW_MS_NS) /* much longer than the calls take */

uint32_t gw_captures;

/* Guarded by gw_act.lock. */
static struct {
  const struct gw_runtime *runtime; /* NULL: the entry is free */
  void *ctx, *stream;
  uint64_t number; /* of the capture */
} list[LISTED];
static uint64_t numbers; /* given to captures so far */
static uint32_t unlisted; /* captures for which no entry was free */

/* With the lock held. */
static void write_count(int change) {
  __atomic_store_n(&gw_captures, gw_captures + (uint32_t)change, __ATOMIC_SEQ_CST);
  gw_write_flags();
}

void gw_capture_begin(const struct gw_runtime *rt, void *ctx, void *stream) {
  int at = -1;
  gw_bias_lock(&gw_act.lock);
  for (int i = LISTED - 1; i >= 0; i--) {
    if (!list[i].runtime) at = i;
  }
  if (at >= 0) list[at].runtime = rt, list[at].ctx = ctx, list[at].stream = stream, list[at].number = ++numbers;
  else unlisted++;
  write_count(+1);
  gw_bias_unlock(&gw_act.lock);
}

void gw_capture_settle(const struct gw_runtime *rt) {
  gw_bias_lock(&gw_act.lock);
  gw_bound_settle(rt, GW_ALL, GW_ALL, SETTLE_NS);
  gw_bias_unlock(&gw_act.lock);
}

/* With the lock held: removes entries of the list and returns how many. */
static int remove_listed(const struct gw_runtime *rt, void *ctx, void *stream) {
  int ended = 0;
  for (int i = 0; i < LISTED; i++) {
    bool same = (ctx == GW_ALL || list[i].ctx == ctx) && (stream == GW_ALL || list[i].stream == stream);
    if (list[i].runtime != rt || !same) continue;
    list[i].runtime = NULL;
    ended++;
    if (stream != GW_ALL) break;
  }
  return ended;
}

void gw_capture_end(const struct gw_runtime *rt, void *ctx, void *stream) {
  if (!gw_capture_in_progress()) return;
  gw_bias_lock(&gw_act.lock);
  int ended = remove_listed(rt, ctx, stream);
  if (!ended && unlisted) unlisted--, ended++;
  if (ended) write_count(-ended);
  gw_bias_unlock(&gw_act.lock);
}

uint64_t gw_capture_on(const struct gw_runtime *rt, void *stream) {
  uint64_t number = 0;
  if (!gw_capture_in_progress()) return 0;
  gw_bias_lock(&gw_act.lock);
  for (int i = 0; i < LISTED; i++) {
    if (list[i].runtime == rt && list[i].stream == stream) number = list[i].number;
  }
  gw_bias_unlock(&gw_act.lock);
  return number;
}

void gw_capture_ended(uint64_t capture) {
  if (!capture) return;
  gw_bias_lock(&gw_act.lock);
  for (int i = 0; i < LISTED; i++) {
    if (!list[i].runtime || list[i].number != capture) continue;
    list[i].runtime = NULL;
    write_count(-1);
  }
  gw_bias_unlock(&gw_act.lock);
}

void gw_capture_gone(const struct gw_runtime *rt, void *ctx, void *stream) {
  if (!gw_capture_in_progress()) return;
  gw_bias_lock(&gw_act.lock);
  int ended = remove_listed(rt, ctx, stream);
  if (ended) write_count(-ended);
  gw_bias_unlock(&gw_act.lock);
}

void gw_captures_forked(void) {
  __builtin_memset(list, 0, sizeof list);
  unlisted = gw_captures = 0;
}
