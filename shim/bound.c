/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#include "bound.h"

#include "page.h"

/* A program whose kernels wait for later launches must not wait here for ever: no longer
 * than this, or than what is before the next mark may take. */
#define STUCK_NS (100 * GW_MS_NS)
#define COMMAND_NS (20 * GW_MS_NS)
#define WATCH_NS 100000ull /* more than a sleep is late */
#define NAP_NS 20000ull

/* How far over the bound launches may go after nothing has moved: doubled each
 * time, so that a kernel that waits for many launches gets them soon. Nothing
 * once something moves. */
static uint32_t slack;

/* Nonsense from the page must not overflow what is reckoned with it. */
static uint32_t bound_now(void) {
  uint32_t bound = GW_READ(bound);
  return bound < (1u << 20) ? bound : 1u << 20;
}

static uint64_t bounded_in_flight(void) { return gw_in_flight() - gw_act.loose - gw_act.excused; }

/*
 * How long the device takes for a command of late, all streams together. Commands of
 * several streams end together, so a sample is of twice as many as the bound has, or of
 * SAMPLE_NS. Time in which the device had nothing to do counts as well: then it has more
 * to do with the program than with the bound.
 */
#define SAMPLE_NS (50 * GW_MS_NS)
#define LONG_NS 800000ull
#define PACE_MOST_NS (2 * LONG_NS) /* a pause is soon forgotten */

void gw_bound_pace(void) {
  uint64_t now = gw_now(), done = gw_act.completed - gw_act.pace_done, old = gw_act.pace_ns;
  if (gw_act.pace_at && done < 2 * bound_now() && now - gw_act.pace_at < SAMPLE_NS) return;
  if (gw_act.pace_at && done) {
    uint64_t ns = (now - gw_act.pace_at) / done;
    if (ns > PACE_MOST_NS) ns = PACE_MOST_NS;
    __atomic_store_n(&gw_act.pace_ns, old ? old - old / 4 + ns / 4 : ns, __ATOMIC_RELAXED);
  }
  gw_act.pace_at = now;
  gw_act.pace_done = gw_act.completed;
}

/*
 * What others wait for is the time that is in flight, and commands are only a
 * measure of it. A program whose commands are short would come to wait here for
 * nobody's good: so with a grain a bound of n is one of n commands, or of those
 * that take the device n grains, if that is more. None counts for less than SHORT_NS:
 * what comes next may be long.
 */
#define GRAIN_MOST_US 1000
#define SHORT_NS 25000ull

static uint32_t widened(uint32_t bound) {
  uint32_t us = GW_READ(grain_us);
  uint64_t grain = (us < GRAIN_MOST_US ? us : GRAIN_MOST_US) * 1000ull;
  uint64_t ns = __atomic_load_n(&gw_act.pace_ns, __ATOMIC_RELAXED);
  if (ns && ns < SHORT_NS) ns = SHORT_NS;
  return ns && ns < grain ? (uint32_t)(bound * grain / ns) : bound;
}

/* Two marks at least within the bound, or the device would run dry at each; four if
 * it is wide, so that it stays fuller, but none that stands for more than BATCH_MOST: they
 * may be long by the time it is reached. And one behind each command that is long, or
 * nothing would be seen to move for too long: which they may all be, at first. */
#define BATCH_MOST 16

static uint32_t batch_for(uint32_t bound) {
  uint32_t wide = widened(bound), batch = GW_READ(batch);
  uint64_t ns = __atomic_load_n(&gw_act.pace_ns, __ATOMIC_RELAXED);
  if (ns >= LONG_NS) return 1;
  bool said = batch != 0;
  if (!said) batch = bound / 2;
  if (batch > bound) batch = bound;
  if (!ns && batch > 2) batch = 2;
  if (said) return batch;
  wide = wide / 4 < BATCH_MOST ? wide / 4 : BATCH_MOST;
  if (batch < wide) batch = wide;
  return batch ? batch : 1;
}

bool gw_bound_wants_mark(const struct gw_lane *l) {
  uint32_t bound = bound_now();
  return bound && l->unmarked >= batch_for(bound) && !gw_anything_captures();
}

/* With the lock held: a free slot, or NULL. */
static struct gw_mark *free_slot(void) {
  for (int i = 0; i < GW_MARKS && gw_act.marks_set < GW_MARKS; i++) {
    if (gw_act.marks[i].state == GW_MARK_FREE) return &gw_act.marks[i];
  }
  return NULL;
}

/* Busy from here on: who destroys the stream waits until the mark is made. */
struct gw_bound_place gw_bound_reserve(int lane) {
  struct gw_lane *l = &gw_act.lanes[lane];
  struct gw_mark *m = free_slot();
  if (m) {
    l->unmarked = 0; /* one thread marks, the others need not */
    *m = (struct gw_mark){.state = GW_MARK_BUSY, .runtime = l->runtime, .ctx = l->ctx, .stream = l->stream,
                          .lane = (uint32_t)lane, .life = l->life, .seq = l->launched, .age = ++gw_act.marks_made};
    gw_act.marks_set++;
  }
  return (struct gw_bound_place){l->runtime, l->ctx, l->stream, (uint32_t)lane, l->life, l->launched, m};
}

bool gw_bound_mark(const struct gw_bound_place *at) {
  struct gw_mark *m = at->slot;
  if (!m) return false;
  void *mark = at->runtime->markable(at->ctx, at->stream) ? at->runtime->mark(at->ctx, at->stream) : NULL;
  gw_bias_lock(&gw_act.lock);
  m->mark = mark;
  m->state = mark ? GW_MARK_SET : GW_MARK_FREE;
  if (!mark) gw_act.marks_set--;
  gw_bias_unlock(&gw_act.lock);
  return mark != NULL;
}

/* Takes the next mark after `age` on a lane that is not known to be slow. */
static struct gw_mark *take(uint64_t age, const uint64_t slow[GW_LANES / 64]) {
  struct gw_mark *best = NULL;
  for (int i = 0; i < GW_MARKS && gw_act.marks_set; i++) {
    struct gw_mark *m = &gw_act.marks[i];
    if (m->state != GW_MARK_SET || m->age <= age || (slow[m->lane / 64] >> m->lane % 64 & 1)) continue;
    if (!best || m->age < best->age) best = m;
  }
  if (best) best->state = GW_MARK_BUSY;
  return best;
}

/* Asks for marks, the oldest first. Whether any was reached. Of all that were, also where
 * there is room before: what has ended by now must not count for what is yet to come, or
 * a thread that has stood still takes a slow device for a fast one. */
static bool reap(void) {
  uint64_t slow[GW_LANES / 64] = {0}, age = 0;
  bool moved = false, ring = false;
  gw_bias_lock(&gw_act.lock);
  for (struct gw_mark *m; (m = take(age, slow));) {
    const struct gw_runtime *rt = m->runtime;
    void *mark = m->mark;
    gw_bias_unlock(&gw_act.lock);
    int r = rt->reached(mark);
    gw_bias_lock(&gw_act.lock);
    age = m->age;
    if (r == 0) {
      slow[m->lane / 64] |= 1ull << m->lane % 64;
      m->state = GW_MARK_SET;
      continue;
    }
    struct gw_lane *l = &gw_act.lanes[m->lane];
    if (l->life == m->life) gw_lane_done(l, m->seq);
    moved = true;
    ring |= gw_settle();
    gw_bias_unlock(&gw_act.lock);
    rt->drop(mark);
    gw_bias_lock(&gw_act.lock);
    m->state = GW_MARK_FREE;
    gw_act.marks_set--;
  }
  if (moved) gw_bound_pace();
  gw_bias_unlock(&gw_act.lock);
  if (ring) gw_page_ring();
  return moved;
}

/* With nothing marked: marks the lane of this context that has most unmarked.
 * Another context's may only be marked by threads that use it. */
static bool mark_fullest(const gw_pass *p) {
  int best = -1;
  struct gw_bound_place at;
  gw_bias_lock(&gw_act.lock);
  bool any = gw_act.marks_set != 0;
  for (int w = 0; w < GW_LANES / 64; w++) {
    for (uint64_t left = gw_act.used[w]; left; left &= left - 1) {
      int i = w * 64 + __builtin_ctzll(left);
      struct gw_lane *l = &gw_act.lanes[i];
      if (l->runtime != p->runtime || l->ctx != p->ctx || !l->unmarked) continue;
      /* A mark in the legacy stream makes all blocking streams wait for each other. */
      if ((uintptr_t)l->stream < 16 && l->stream != p->stream) continue;
      if (best < 0 || l->unmarked > gw_act.lanes[best].unmarked) best = i;
    }
  }
  uint32_t unmarked = best >= 0 ? gw_act.lanes[best].unmarked : 0;
  if (best >= 0) at = gw_bound_reserve(best);
  gw_bias_unlock(&gw_act.lock);
  if (best < 0) return any;
  if (gw_bound_mark(&at)) return true;
  if (!at.slot) return any;
  gw_bias_lock(&gw_act.lock);
  if (gw_act.lanes[best].life == at.life) gw_act.lanes[best].unmarked += unmarked;
  gw_bias_unlock(&gw_act.lock);
  return any;
}

/* What is in flight now does not count until its lane moves: a kernel that never
 * ends would otherwise cost every launch of the other lanes that long. */
static void excuse_all(void) {
  for (int i = 0; i < GW_LANES; i++) {
    struct gw_lane *l = &gw_act.lanes[i];
    if (!l->runtime) continue;
    uint64_t stuck = l->launched - l->done;
    gw_act.excused += stuck - l->excused;
    l->excused = stuck;
  }
}

/* What the oldest mark stands for may take so long. */
static uint64_t patience(void) {
  static const uint64_t none[GW_LANES / 64];
  uint64_t commands = 0;
  gw_bias_lock(&gw_act.lock);
  struct gw_mark *m = take(0, none);
  if (m) {
    struct gw_lane *l = &gw_act.lanes[m->lane];
    if (l->life == m->life && m->seq > l->done) commands = m->seq - l->done;
    m->state = GW_MARK_SET;
  }
  gw_bias_unlock(&gw_act.lock);
  return commands * COMMAND_NS > STUCK_NS ? commands * COMMAND_NS : STUCK_NS;
}

static void let_go(uint32_t bound) {
  gw_bias_lock(&gw_act.lock);
  excuse_all();
  GW_SHOW(overruns, ++gw_act.overruns);
  uint32_t more = slack ? slack * 2 : bound;
  if (more > slack) __atomic_store_n(&slack, more, __ATOMIC_RELAXED);
  gw_bias_unlock(&gw_act.lock);
  gw_say("nothing moves at the bound: letting the launch through");
}

/*
 * With a bound of one the device stands still from the end of a command until we
 * notice, and with a larger one, if its commands are short, soon after. So a wait
 * sleeps through no more than what the shortest of late have taken, less a part,
 * and watches closely for a good while. But not where the device has a good deal to do
 * still: there a CPU is wasted, and the device may be nothing else.
 */
#define PLENTY_NS GW_MS_NS
#define NAP_MOST_NS 200000ull

static uint64_t shortest;

/* What a command has taken of late while somebody waited here: then the device is never
 * without work, as it may be in pace_ns. */
static uint64_t busy_ns;

static void learn_busy(uint64_t waited, uint64_t done) {
  if (!done) return;
  uint64_t old = __atomic_load_n(&busy_ns, __ATOMIC_RELAXED), ns = waited / done;
  if (ns > PACE_MOST_NS) ns = PACE_MOST_NS;
  __atomic_store_n(&busy_ns, old ? old - old / 4 + ns / 4 : ns, __ATOMIC_RELAXED);
}

/* What the device has to do, about, when the next mark is reached. */
static uint64_t in_store(uint32_t bound) {
  uint32_t wide = widened(bound), batch = batch_for(bound);
  return wide > batch ? (wide - batch) * __atomic_load_n(&busy_ns, __ATOMIC_RELAXED) : 0;
}

static void learn(uint64_t waited) {
  uint64_t old = __atomic_load_n(&shortest, __ATOMIC_RELAXED);
  __atomic_store_n(&shortest, waited < old ? waited : old + (waited - old) / 32, __ATOMIC_RELAXED);
}

static void doze(uint64_t waited, uint64_t store) {
  if (store >= PLENTY_NS) {
    gw_sleep(store / 16 < NAP_MOST_NS ? store / 16 : NAP_MOST_NS);
    return;
  }
  uint64_t expected = __atomic_load_n(&shortest, __ATOMIC_RELAXED);
  uint64_t early = WATCH_NS + (expected / 8 < 2 * WATCH_NS ? expected / 8 : 2 * WATCH_NS);
  if (waited + early < expected) gw_sleep(expected - early - waited < GW_MS_NS ? expected - early - waited : GW_MS_NS);
  else if (waited > expected + 5 * WATCH_NS) gw_sleep(NAP_NS);
}

bool gw_bound_wait(gw_pass *p) {
  uint64_t began = 0, moved = 0, seen = 0, first = 0, last = 0;
  for (;;) {
    uint32_t said = bound_now(), bound = widened(said);
    if (!said || gw_anything_captures() || __atomic_load_n(&gw_gone, __ATOMIC_RELAXED)) break;
    /* At a glance, which is enough for most: it shows more in flight than counts here. */
    uint64_t done = __atomic_load_n(&gw_shared.page.completed, __ATOMIC_ACQUIRE); /* before what it is a part of */
    if (!began && GW_READ(launched) - done < bound) break;
    gw_bias_lock(&gw_act.lock);
    bool room = bounded_in_flight() < (uint64_t)bound + __atomic_load_n(&slack, __ATOMIC_RELAXED);
    uint64_t completed = gw_act.completed;
    gw_bias_unlock(&gw_act.lock);
    last = completed;
    if (room) break;
    if (reap()) {
      __atomic_store_n(&slack, 0, __ATOMIC_RELAXED);
      moved = gw_now();
      continue;
    }
    if (!mark_fullest(p)) break; /* nothing that one could wait for */
    uint64_t now = gw_now();
    if (!began || completed != seen) moved = now;
    if (!began) began = now, first = completed;
    seen = completed;
    if (now - moved >= STUCK_NS && now - moved >= patience()) {
      let_go(bound);
      break;
    }
    doze(now - began, in_store(said));
  }
  if (!began) return false;
  uint64_t now = gw_now();
  learn(now - began);
  learn_busy(now - began, last - first);
  gw_page_check(now);
  return true;
}

/* With the lock held: the first mark of the stream that is not free. */
static struct gw_mark *mark_of(const struct gw_runtime *rt, void *ctx, void *stream) {
  for (int i = 0; i < GW_MARKS; i++) {
    struct gw_mark *m = &gw_act.marks[i];
    if (m->state == GW_MARK_FREE || m->runtime != rt || (ctx != GW_ALL && m->ctx != ctx)) continue;
    if (stream == GW_ALL || m->stream == stream) return m;
  }
  return NULL;
}

void gw_bound_forget(const struct gw_runtime *rt, void *ctx, void *stream) {
  gw_bias_lock(&gw_act.lock);
  for (struct gw_mark *m; (m = mark_of(rt, ctx, stream));) {
    if (m->state == GW_MARK_BUSY) { /* for as long as it takes to ask */
      gw_bias_unlock(&gw_act.lock);
      gw_sleep(NAP_NS);
      gw_bias_lock(&gw_act.lock);
      continue;
    }
    void *mark = m->mark;
    m->state = GW_MARK_BUSY;
    gw_bias_unlock(&gw_act.lock);
    rt->drop(mark);
    gw_bias_lock(&gw_act.lock);
    m->state = GW_MARK_FREE;
    gw_act.marks_set--;
  }
  gw_bias_unlock(&gw_act.lock);
}
