/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#include "late_plan.h"

#include <string.h>

#define US 1000ull
#define MS (1000 * US)
#define SECOND (1000 * MS)

#define MIN_COMMANDS 10u    /* requests of fewer commands enter at once */
#define MAX_COMMANDS 512u   /* more are not queued: the driver blocks launches at about a thousand */
#define MIN_HOLD_NS (500 * US) /* two context switches, and something to gain */
#define MAX_HOLD_NS (20 * MS)
#define MAX_DELAY_NS (3 * MS) /* by how much the timer may be later than planned */
#define BLIND_HOLD_NS (2 * MS) /* for a request of which nothing is known */

#define MIN_SCORE 8u /* requests that must repeat first */
#define MAX_SCORE 16u
#define PROBES 3u
#define PROBE_EVERY 2048u
#define MIN_FAR_NS (400 * US) /* two context switches */
#define MANY_FAR 8u
#define TRIAL 64u    /* requests of which every second enters at once */
#define CONTROL 32u  /* afterwards one of so many does */
#define MIN_TOLERANCE_NS (30 * US)
#define MIN_PAUSE_NS (4 * SECOND)
#define MAX_PAUSE_NS (256 * SECOND)

static struct gw_late_shape *shape_for(struct gw_late_plan *p, uint64_t key) {
  struct gw_late_shape *oldest = p->shapes;
  p->requests++;
  for (struct gw_late_shape *s = p->shapes; s < p->shapes + GW_LATE_SHAPES; s++) {
    if (s->used && s->key == key) {
      s->used = p->requests;
      return s;
    }
    if (s->used < oldest->used) oldest = s;
  }
  *oldest = (struct gw_late_shape){.key = key, .used = p->requests};
  return oldest;
}

/* The time from the first kernel to command number n: measured at the points, linear between. */
static uint64_t time_of(const struct gw_late_shape *s, uint32_t point) {
  if (point == 0) return 0;
  if (point > GW_LATE_POINTS) return s->cpu_ns;
  return s->point_ns[point - 1];
}

/* After how many commands `lead` of CPU time is left. */
static uint32_t command_at(const struct gw_late_shape *s, uint64_t lead) {
  uint64_t at = s->cpu_ns > lead ? s->cpu_ns - lead : 0;
  for (uint32_t i = 0; i < GW_LATE_POINTS; i++) {
    uint64_t from = time_of(s, i), to = time_of(s, i + 1);
    if (at > to || to <= from) continue;
    uint64_t part = at > from ? (at - from) * 1000 / (to - from) : 0;
    uint32_t n = (uint32_t)((i * 1000 + part) * s->commands / (GW_LATE_POINTS * 1000));
    return n ? n : 1;
  }
  return s->commands ? s->commands : 1; /* what is left comes after the last command */
}

static void pause_shape(struct gw_late_shape *s, uint64_t now) {
  s->pause_ns = s->pause_ns ? s->pause_ns * 2 : MIN_PAUSE_NS;
  if (s->pause_ns > MAX_PAUSE_NS) s->pause_ns = MAX_PAUSE_NS;
  s->paused_until_ns = now + s->pause_ns;
  s->probes = s->decisions = s->worse = s->pairs = 0;
}

/* Enters late, and is released when the lead is left. */
static void enter_late(struct gw_late_choice *c, uint64_t lead) {
  struct gw_late_shape *s = c->shape;
  uint64_t delay = s->lead_ns < MAX_DELAY_NS ? s->lead_ns : MAX_DELAY_NS;
  c->late = true;
  c->release_at = command_at(s, lead);
  if (c->release_at > MAX_COMMANDS) c->release_at = MAX_COMMANDS;
  c->hold_ns = s->cpu_ns > lead ? s->cpu_ns - lead : 0;
  /* The CPU is sometimes slow; then a release by the clock would be too early. */
  c->limit_ns = c->hold_ns + c->hold_ns / 4 + delay + MIN_HOLD_NS;
  if (c->limit_ns > MAX_HOLD_NS) c->limit_ns = MAX_HOLD_NS;
}

struct gw_late_choice gw_late_choose(struct gw_late_plan *p, uint64_t key, uint64_t now_ns, bool always) {
  struct gw_late_choice c = {.shape = shape_for(p, key)};
  struct gw_late_shape *s = c.shape;
  if (always) {
    if (s->score && s->cpu_ns > MIN_HOLD_NS) enter_late(&c, s->lead_ns ? s->lead_ns : s->cpu_ns / 5);
    else c.late = true, c.limit_ns = BLIND_HOLD_NS;
    return c;
  }
  if (s->score < MIN_SCORE || s->commands < MIN_COMMANDS || now_ns < s->paused_until_ns) return c;
  if (!s->tail_ns) return c; /* all requests so far were made to enter late */
  /* If the program waits for long even though the request entered at once, the device is what it
   * waits for, and nothing can be left to others. */
  if (s->tail_ns > s->cpu_ns / 2) return c;
  uint64_t lead = s->probes < PROBES ? s->cpu_ns / 16 : s->lead_ns;
  if (s->cpu_ns < lead + MIN_HOLD_NS) {
    if (s->probes >= PROBES) pause_shape(s, now_ns);
    return c;
  }
  uint32_t decision = s->decisions++, every = decision < TRIAL ? 2 : CONTROL;
  bool probe = s->probes < PROBES;
  if (!probe && decision % every == 0) {
    c.compared = true;
    return c;
  }
  /* Of the late requests those are compared that follow one that entered at once: whatever
   * changes with time then affects both alike. */
  c.compared = !probe && decision % every == 1;
  enter_late(&c, lead);
  return c;
}

static uint64_t smooth(uint64_t old, uint64_t new) {
  if (!old) return new;
  if (new > 2 * old) new = 2 * old; /* a single slow request is chance */
  return old - old / 8 + new / 8;
}

/* Returns whether the request is like the earlier ones. */
static bool repeats(struct gw_late_shape *s, const struct gw_late_sample *q) {
  uint32_t more = q->commands > s->commands ? q->commands - s->commands : s->commands - q->commands;
  if (s->commands && more * 8 <= s->commands) {
    if (s->score < MAX_SCORE) s->score++;
    s->commands = (7 * s->commands + q->commands + 4) / 8;
    return true;
  }
  s->score = s->score > 4 ? s->score - 4 : 0;
  if (s->score) return false;
  *s = (struct gw_late_shape){.key = s->key, .used = s->used, .commands = q->commands, .score = 1,
                              .pause_ns = s->pause_ns, .paused_until_ns = s->paused_until_ns};
  return true;
}

/*
 * Adjusts the lead, but not by more than a quarter of what the probes found. A tail may be long
 * because the device came too late; then it was busy from the release until the end, for about as
 * long as in the probes. Or it came so early that it had done all that was queued, went to others,
 * and had to come back for the end; then that took longer, and a longer lead would make it worse.
 */
static void adjust_lead(struct gw_late_shape *s, uint64_t took, uint64_t excess, uint64_t tolerance) {
  uint64_t least = s->probed_ns - s->probed_ns / 4, most = s->probed_ns + s->probed_ns / 4;
  uint64_t far = s->probed_ns / 4 > MIN_FAR_NS ? s->probed_ns / 4 : MIN_FAR_NS;
  bool too_late = excess > tolerance && took <= s->probed_ns + s->probed_ns / 8;
  /* In balance about one request of ten is late by more than the tolerance. */
  if (too_late) s->lead_ns += excess / 4;
  else s->lead_ns -= s->lead_ns < tolerance / 16 ? s->lead_ns : tolerance / 16;
  bool at_limit = s->lead_ns <= least || s->lead_ns >= most;
  if (s->lead_ns < least) s->lead_ns = least;
  if (s->lead_ns > most) s->lead_ns = most;
  s->far = excess > far ? s->far + 1 : 0;
  s->since_probe++;
  /* The device time has changed, or the probes were wrong. Probes are late, so they are rare. */
  if (s->far >= MANY_FAR || (at_limit && s->since_probe >= PROBE_EVERY)) s->probes = 0;
}

static void learn_lead(struct gw_late_shape *s, const struct gw_late_sample *q) {
  if (!s->tail_ns) return; /* no request has entered at once yet */
  uint64_t tail = q->done_ns - q->waited_ns, excess = tail > s->tail_ns ? tail - s->tail_ns : 0;
  uint64_t left = q->waited_ns > q->released_ns ? q->waited_ns - q->released_ns : 0;
  uint64_t tolerance = q->done_ns / 100 > MIN_TOLERANCE_NS ? q->done_ns / 100 : MIN_TOLERANCE_NS;
  if (s->probes < PROBES) {
    /* The device was busy from the release until the end, so this is what the lead should have
     * been. The least of the probes is the one that noise has lengthened least. */
    uint64_t lead = left + (excess > tolerance ? excess : 0);
    if (!s->probes || lead < s->lead_ns) s->lead_ns = lead;
    s->probed_ns = s->lead_ns;
    s->probes++;
    s->since_probe = s->far = 0;
    return;
  }
  adjust_lead(s, q->done_ns - q->released_ns, excess, tolerance);
}

static void sort(int64_t *v, int n) {
  for (int i = 1; i < n; i++) {
    int64_t x = v[i];
    int j = i;
    for (; j > 0 && v[j - 1] > x; j--) v[j] = v[j - 1];
    v[j] = x;
  }
}

/*
 * Decides by a set of pairs whether late entry makes requests slower. The two of a pair follow one
 * another, because the speed of a CPU may change by half from one second to the next, which would
 * hide what late entry costs, or look like a cost of it.
 */
static void compare(struct gw_late_plan *p, struct gw_late_shape *s, uint64_t now_ns) {
  int64_t *more = s->more_ns, away[GW_LATE_PAIRS], tolerance = (int64_t)(s->usual_ns / 50);
  sort(more, GW_LATE_PAIRS);
  int64_t median = more[GW_LATE_PAIRS / 2], least = more[GW_LATE_PAIRS / 10], most = more[GW_LATE_PAIRS - 1 - GW_LATE_PAIRS / 10];
  for (int i = 0; i < GW_LATE_PAIRS; i++) away[i] = more[i] > median ? more[i] - median : median - more[i];
  sort(away, GW_LATE_PAIRS);
  /* The standard error of the median of 32 pairs is about half of the median absolute deviation. Noise
   * is symmetric, so a distribution that is much longer towards slow shows a cost of late entry. */
  int64_t noise = away[GW_LATE_PAIRS / 2];
  bool worse = median > tolerance + noise / 2 || most + least > 2 * (tolerance + noise);
  s->pairs = 0;
  s->worse = worse ? s->worse + 1 : 0;
  if (!worse) s->pause_ns = 0;
  if (s->worse == 1) {
    s->probes = 0;    /* perhaps the lead is wrong */
    s->decisions = 0; /* and the next comparison comes soon */
  } else if (s->worse > 1) {
    p->given_up++;
    pause_shape(s, now_ns);
  }
}

/* The entry of late_ratios for a pair. */
static uint32_t entry_of(uint64_t late, uint64_t once) {
  uint64_t ratio = late / once > 100 ? 100 * 1000 : late * 1000 / once; /* in thousandths */
  uint64_t entry = ratio < GW_RATIO_FIRST ? 0 : (ratio - GW_RATIO_FIRST) / GW_RATIO_STEP;
  return (uint32_t)(entry < GW_RATIO_ENTRIES ? entry : GW_RATIO_ENTRIES - 1);
}

/* Adds a request that is compared. */
static void pair(struct gw_late_plan *p, struct gw_late_shape *s, bool late, uint64_t took, uint64_t now_ns) {
  if (!late) {
    s->once_ns = took;
    s->usual_ns = smooth(s->usual_ns, took);
    return;
  }
  if (!s->once_ns) return; /* the one before it was not like the others */
  p->ratios[entry_of(took, s->once_ns)]++;
  s->more_ns[s->pairs++] = (int64_t)took - (int64_t)s->once_ns;
  s->once_ns = 0;
  if (s->pairs == GW_LATE_PAIRS) compare(p, s, now_ns);
}

void gw_late_learn(struct gw_late_plan *p, const struct gw_late_choice *c, const struct gw_late_sample *q, uint64_t now_ns) {
  struct gw_late_shape *s = c->shape;
  if (!s) return;
  if (!repeats(s, q)) {
    s->once_ns = 0;
    return;
  }
  s->cpu_ns = smooth(s->cpu_ns, q->waited_ns);
  for (int i = 0; i < GW_LATE_POINTS; i++) {
    if (q->point_ns[i]) s->point_ns[i] = smooth(s->point_ns[i], q->point_ns[i]);
  }
  if (!c->late) s->tail_ns = smooth(s->tail_ns, q->done_ns - q->waited_ns);
  else if (c->release_at) learn_lead(s, q);
  if (c->compared) pair(p, s, c->late, q->done_ns, now_ns);
}
