/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#include "unwaited.h"

#define FEW_WAITS 4         /* of the program, without a launch on the stream in between */
#define MAX_WAITS (1 << 10) /* between two questions about a stream: it may run for ever */

struct gw_bound_place gw_unwaited_next(const struct gw_runtime *rt, void *ctx) {
  uint64_t wait = ++gw_act.waits;
  if (!rt->idle || !gw_in_flight() || gw_capture_in_progress()) return (struct gw_bound_place){0};
  for (int w = 0; w < gw_stream_words(); w++) {
    for (uint64_t left = gw_act.used[w]; left; left &= left - 1) {
      int i = w * 64 + __builtin_ctzll(left);
      struct gw_stream *s = &gw_act.streams[i];
      if (s->runtime != rt || (ctx != GW_ALL && s->ctx != ctx) || s->launched == s->done || s->destroyed || s->dying) continue;
      if (s->seen_launched != s->launched) {
        s->seen_launched = s->launched;
        s->ask_after = FEW_WAITS;
        s->ask_at = wait + FEW_WAITS;
      }
      if (wait < s->ask_at) continue;
      if (s->ask_after < MAX_WAITS) s->ask_after *= 2;
      s->ask_at = wait + s->ask_after;
      uint32_t unmarked = s->unmarked;
      struct gw_bound_place place = gw_bound_reserve(i);
      s->unmarked = unmarked; /* no mark is put */
      return place;
    }
  }
  return (struct gw_bound_place){0};
}

bool gw_unwaited_ask(const struct gw_bound_place *at) {
  /* The query would invalidate a capture of the stream: see gw_bound_mark. */
  bool idle = !gw_capture_in_progress() && at->runtime->idle(at->ctx, at->stream) > 0;
  gw_bias_lock(&gw_act.lock);
  struct gw_stream *s = &gw_act.streams[at->slot];
  if (idle && s->generation == at->generation) gw_stream_done(s, at->seq);
  bool ring = gw_update();
  gw_bound_unreserve(at);
  gw_bias_unlock(&gw_act.lock);
  return ring;
}
