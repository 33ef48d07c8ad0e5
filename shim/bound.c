/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#include "bound.h"

#include "page.h"

/* A kernel may wait for a later launch, so a launch waits at the bound only for a limited time: the
 * largest of STALL_NS, the time that the commands before the next mark may take, and SLOW_FACTOR times
 * what it recently took until a mark was reached; never more than MAX_STALL_NS. A device that other
 * processes use as well may be that slow, and launches that pass the bound delay them more. */
#define STALL_NS (100 * GW_MS_NS)
#define MAX_COMMAND_NS (20 * GW_MS_NS)
#define SLOW_FACTOR 4
#define MAX_STALL_NS (2 * GW_SECOND_NS)
#define POLL_CLOSELY_NS 100000ull /* longer than a sleep ends late */
#define POLL_SLEEP_NS 20000ull

/* How far launches may exceed the bound when nothing has completed. It doubles each time, so
 * that a kernel that waits for many launches gets them soon, and is reset by a completion. */
static uint32_t slack;

/* The bound in force, or 0. Limits the value from the page, so that calculations with it do not
 * overflow. */
static inline uint32_t bound_now(void) {
  uint32_t bound = GW_READ(bound);
  if (__builtin_expect(!bound, 1) || !gw_orders_hold()) return 0;
  return bound < (1u << 20) ? bound : 1u << 20;
}

static uint64_t counted_in_flight(void) { return gw_in_flight() - gw_act.untracked - gw_act.exempt; }

/*
 * Measures the recent device time per command, over all streams. Commands of several streams
 * complete together, so a sample covers twice as many commands as the bound, or SAMPLE_NS.
 * Time in which the device was idle counts too: the program is slow then, not the bound.
 */
#define SAMPLE_NS (50 * GW_MS_NS)
#define LONG_NS 800000ull
#define MAX_PACE_NS (2 * LONG_NS) /* so that a pause is soon forgotten */

void gw_bound_measure(void) {
  uint64_t now = gw_now(), done = gw_act.completed - gw_act.pace_done, old = gw_act.pace_ns;
  if (gw_act.pace_at && done < 2 * bound_now() && now - gw_act.pace_at < SAMPLE_NS) return;
  if (gw_act.pace_at && done) {
    uint64_t ns = (now - gw_act.pace_at) / done;
    if (ns > MAX_PACE_NS) ns = MAX_PACE_NS;
    __atomic_store_n(&gw_act.pace_ns, old ? old - old / 4 + ns / 4 : ns, __ATOMIC_RELAXED);
  }
  gw_act.pace_at = now;
  gw_act.pace_done = gw_act.completed;
}

/*
 * Other processes wait for the device time that is in flight; the number of commands is only
 * a measure of it. So with a grain, a bound of n admits as many commands as take n grains of
 * device time:
 *
 * - more than n if they are short: a bound of n commands would hold the program without any
 *   gain for the others. A command counts as at least SHORT_NS, because the next one may be
 *   long.
 * - fewer than n if they are long, but at least FEWEST: while one runs, the next is ready.
 */
#define MAX_GRAIN_US 1000
#define SHORT_NS 25000ull
#define FEWEST 2

/* Recent device time per command, measured while a launch waited at the bound. The device is
 * never idle then, in contrast to pace_ns. */
static uint64_t busy_ns;

static void learn_busy(uint64_t waited, uint64_t done) {
  if (!done) return;
  uint64_t old = __atomic_load_n(&busy_ns, __ATOMIC_RELAXED), ns = waited / done;
  if (ns > MAX_PACE_NS) ns = MAX_PACE_NS;
  __atomic_store_n(&busy_ns, old ? old - old / 4 + ns / 4 : ns, __ATOMIC_RELAXED);
}

static uint32_t effective_bound(uint32_t bound) {
  uint32_t us = GW_READ(grain_us);
  uint64_t grain = (us < MAX_GRAIN_US ? us : MAX_GRAIN_US) * 1000ull;
  uint64_t ns = __atomic_load_n(&gw_act.pace_ns, __ATOMIC_RELAXED), busy = __atomic_load_n(&busy_ns, __ATOMIC_RELAXED);
  if (ns && ns < SHORT_NS) ns = SHORT_NS;
  if (ns && ns < grain) return (uint32_t)(bound * grain / ns);
  if (!grain || busy <= grain || bound <= FEWEST) return bound;
  uint32_t fewer = (uint32_t)(bound * grain / busy);
  return fewer > FEWEST ? fewer : FEWEST;
}

/* At least two marks within the bound, or the device would run out of work at each mark. Four
 * if the bound is widened, so that the device has more work, but at most MAX_BATCH commands
 * per mark, because they may have become long by then. One mark per command if commands are
 * long, or no progress would be seen for too long; at first they may be. */
#define MAX_BATCH 16

static uint32_t batch_size(uint32_t bound) {
  uint32_t effective = effective_bound(bound), batch = GW_READ(batch);
  uint64_t ns = __atomic_load_n(&gw_act.pace_ns, __ATOMIC_RELAXED);
  if (ns >= LONG_NS) return 1;
  bool chosen = batch != 0;
  if (!chosen) batch = bound / 2;
  if (batch > bound) batch = bound;
  if (!ns && batch > 2) batch = 2;
  if (chosen) return batch;
  effective = effective / 4 < MAX_BATCH ? effective / 4 : MAX_BATCH;
  if (batch < effective) batch = effective;
  return batch ? batch : 1;
}

/* Not inline, like that of class.c: the check of the other function is all that most launches need. */
static __attribute__((noinline)) bool wants_mark(const struct gw_stream *s) {
  uint32_t bound = bound_now();
  return bound && s->unmarked >= batch_size(bound) && !gw_capture_in_progress();
}

bool gw_bound_wants_mark(const struct gw_stream *s) { return __builtin_expect(GW_READ(bound) != 0, 0) && wants_mark(s); }

/* With the lock held: a free entry, or NULL. */
static struct gw_mark *free_mark(void) {
  for (int i = 0; i < GW_MARKS && gw_act.marks_set < GW_MARKS; i++) {
    if (gw_act.marks[i].state == GW_MARK_FREE) return &gw_act.marks[i];
  }
  return NULL;
}

/* The entry is busy from now on, so a thread that destroys the stream waits until the mark is
 * put. */
struct gw_bound_place gw_bound_reserve(int slot) {
  struct gw_stream *s = &gw_act.streams[slot];
  struct gw_mark *m = free_mark();
  if (m) {
    s->unmarked = 0; /* one thread puts the mark for all */
    *m = (struct gw_mark){.state = GW_MARK_BUSY, .runtime = s->runtime, .ctx = s->ctx, .stream = s->stream,
                          .slot = (uint32_t)slot, .generation = s->generation, .seq = s->launched, .age = ++gw_act.marks_made};
    gw_act.marks_set++;
  }
  return (struct gw_bound_place){s->runtime, s->ctx, s->stream, (uint32_t)slot, s->generation, s->launched, m};
}

void gw_bound_unreserve(const struct gw_bound_place *at) {
  at->entry->state = GW_MARK_FREE;
  gw_act.marks_set--;
}

static bool put_mark(const struct gw_bound_place *at, bool may_put) {
  struct gw_mark *m = at->entry;
  if (!m) return false;
  void *mark = may_put && at->runtime->markable(at->ctx, at->stream) ? at->runtime->mark(at->ctx, at->stream) : NULL;
  gw_bias_lock(&gw_act.lock);
  m->mark = mark;
  m->state = mark ? GW_MARK_SET : GW_MARK_FREE;
  if (!mark) gw_act.marks_set--;
  gw_bias_unlock(&gw_act.lock);
  return mark != NULL;
}

/* A capture is counted before it begins, and then waits for busy entries (gw_capture_settle). So either
 * it is seen here, or it has not begun when the mark is put. */
bool gw_bound_mark(const struct gw_bound_place *at) { return put_mark(at, !gw_capture_in_progress()); }
bool gw_bound_mark_last(const struct gw_bound_place *at) { return put_mark(at, true); }

/* Takes the oldest mark that is newer than age and not on a pending stream. */
static struct gw_mark *take_mark(uint64_t age, const uint64_t pending[GW_STREAMS / 64]) {
  struct gw_mark *best = NULL;
  for (int i = 0; i < GW_MARKS && gw_act.marks_set; i++) {
    struct gw_mark *m = &gw_act.marks[i];
    if (m->state != GW_MARK_SET || m->age <= age || (pending[m->slot / 64] >> m->slot % 64 & 1)) continue;
    if (!best || m->age < best->age) best = m;
  }
  if (best) best->state = GW_MARK_BUSY;
  return best;
}

/* Queries marks, oldest first, and returns whether any was reached. It queries all of them
 * even if one is enough: a completion that is noticed late would be counted in the next
 * measurement, and a thread that was descheduled would take a slow device for a fast one. */
static bool poll_marks(void) {
  uint64_t pending[GW_STREAMS / 64] = {0}, age = 0;
  bool progressed = false, ring = false;
  gw_bias_lock(&gw_act.lock);
  for (struct gw_mark *m; (m = take_mark(age, pending));) {
    const struct gw_runtime *rt = m->runtime;
    void *mark = m->mark;
    bool is_void = gw_act.streams[m->slot].generation != m->generation; /* its stream may be gone */
    gw_bias_unlock(&gw_act.lock);
    int r = is_void ? -1 : rt->reached(mark);
    gw_bias_lock(&gw_act.lock);
    age = m->age;
    if (r == 0) {
      pending[m->slot / 64] |= 1ull << m->slot % 64;
      m->state = GW_MARK_SET;
      continue;
    }
    struct gw_stream *s = &gw_act.streams[m->slot];
    if (s->generation == m->generation) gw_stream_done(s, m->seq);
    progressed = true;
    ring |= gw_update();
    gw_bias_unlock(&gw_act.lock);
    rt->drop(mark);
    gw_bias_lock(&gw_act.lock);
    m->state = GW_MARK_FREE;
    gw_act.marks_set--;
  }
  if (progressed) gw_bound_measure();
  gw_bias_unlock(&gw_act.lock);
  if (ring) gw_page_ring();
  return progressed;
}

/* With the lock held: the stream of p's context with most unmarked commands that is not in failed,
 * or -1. Streams of another context may be marked only by threads that use that context. */
static int fullest_stream(const gw_pass *p, const uint64_t failed[GW_STREAMS / 64]) {
  int best = -1;
  for (int w = 0; w < gw_stream_words(); w++) {
    for (uint64_t left = gw_act.used[w] & ~failed[w]; left; left &= left - 1) {
      int i = w * 64 + __builtin_ctzll(left);
      struct gw_stream *s = &gw_act.streams[i];
      if (s->runtime != p->runtime || s->ctx != p->ctx || !s->unmarked || s->destroyed || s->dying) continue;
      /* A mark on the legacy stream would make all blocking streams wait for each other. */
      if ((uintptr_t)s->stream < 16 && s->stream != p->stream) continue;
      if (best < 0 || s->unmarked > gw_act.streams[best].unmarked) best = i;
    }
  }
  return best;
}

/* Tries to mark the fullest stream that is not in failed, and adds it there if it cannot be marked.
 * Returns whether there may be another one; *marked is set if it was marked. */
static bool try_fullest(const gw_pass *p, uint64_t failed[GW_STREAMS / 64], bool *marked) {
  gw_bias_lock(&gw_act.lock);
  int slot = fullest_stream(p, failed);
  if (slot < 0) {
    gw_bias_unlock(&gw_act.lock);
    return false;
  }
  uint32_t unmarked = gw_act.streams[slot].unmarked;
  struct gw_bound_place at = gw_bound_reserve(slot);
  gw_bias_unlock(&gw_act.lock);
  *marked = gw_bound_mark(&at);
  if (*marked) return true;
  if (!at.entry) return false;
  failed[slot / 64] |= 1ull << slot % 64;
  gw_bias_lock(&gw_act.lock);
  if (gw_act.streams[slot].generation == at.generation && !gw_act.streams[slot].dying) gw_act.streams[slot].unmarked += unmarked;
  gw_bias_unlock(&gw_act.lock);
  return true;
}

/* Marks the fullest stream that can be marked. Returns whether there was one. */
static bool mark_fullest(const gw_pass *p) {
  uint64_t failed[GW_STREAMS / 64] = {0};
  bool marked = false;
  while (!marked && try_fullest(p, failed, &marked)) {
  }
  return marked;
}

static bool any_mark(void) {
  gw_bias_lock(&gw_act.lock);
  bool any = gw_act.marks_set != 0;
  gw_bias_unlock(&gw_act.lock);
  return any;
}

void gw_bound_mark_all(const gw_pass *p) {
  uint64_t failed[GW_STREAMS / 64] = {0};
  bool marked;
  while (!gw_capture_in_progress() && try_fullest(p, failed, &marked)) {
  }
}

bool gw_bound_poll(void) {
  if (gw_capture_in_progress()) return true;
  poll_marks();
  return any_mark();
}

void gw_bound_exempt(void) {
  for (int w = 0; w < gw_stream_words(); w++) {
    for (uint64_t left = gw_act.used[w]; left; left &= left - 1) {
      struct gw_stream *s = &gw_act.streams[w * 64 + __builtin_ctzll(left)];
      uint64_t in_flight = s->launched - s->done;
      gw_act.exempt += in_flight - s->exempt;
      s->exempt = in_flight;
    }
  }
}

/* The longest of the recent times without progress that ended with progress. */
static uint64_t slowest_ns;

static void learn_slowest(uint64_t without) {
  uint64_t old = __atomic_load_n(&slowest_ns, __ATOMIC_RELAXED), faded = old - old / 8;
  __atomic_store_n(&slowest_ns, without > faded ? without : faded, __ATOMIC_RELAXED);
}

/* For how long a launch waits without progress. */
static uint64_t stall_limit(void) {
  static const uint64_t none[GW_STREAMS / 64];
  uint64_t commands = 0, slow = SLOW_FACTOR * __atomic_load_n(&slowest_ns, __ATOMIC_RELAXED);
  gw_bias_lock(&gw_act.lock);
  struct gw_mark *m = take_mark(0, none);
  if (m) {
    struct gw_stream *s = &gw_act.streams[m->slot];
    if (s->generation == m->generation && m->seq > s->done) commands = m->seq - s->done;
    m->state = GW_MARK_SET;
  }
  gw_bias_unlock(&gw_act.lock);
  uint64_t until_mark = commands < MAX_STALL_NS / MAX_COMMAND_NS ? commands * MAX_COMMAND_NS : MAX_STALL_NS;
  uint64_t limit = slow < MAX_STALL_NS ? slow : MAX_STALL_NS;
  if (limit < STALL_NS) limit = STALL_NS;
  return until_mark > limit ? until_mark : limit;
}

static void overrun(uint32_t bound) {
  gw_bias_lock(&gw_act.lock);
  gw_bound_exempt();
  GW_WRITE(overruns, ++gw_act.overruns);
  uint32_t more = slack ? slack * 2 : bound;
  if (more > slack) __atomic_store_n(&slack, more, __ATOMIC_RELAXED);
  gw_bias_unlock(&gw_act.lock);
  gw_log("no command completes at the bound; letting the launch through");
}

/*
 * With a bound of one the device is idle from the end of a command until the waiting thread
 * notices it; with a larger bound and short commands soon after. So a waiting thread sleeps
 * for less than the shortest recent wait and then polls closely for a while. If the device
 * still has much work, it sleeps instead: polling would waste a CPU, which an OpenCL device
 * may itself be.
 */
#define ENOUGH_WORK_NS GW_MS_NS
#define MAX_SLEEP_NS 200000ull

static uint64_t shortest_wait_ns;

/* About how much work the device still has when the next mark is reached. */
static uint64_t queued_work_ns(uint32_t bound) {
  uint32_t effective = effective_bound(bound), batch = batch_size(bound);
  return effective > batch ? (effective - batch) * __atomic_load_n(&busy_ns, __ATOMIC_RELAXED) : 0;
}

static void learn_shortest(uint64_t waited) {
  uint64_t old = __atomic_load_n(&shortest_wait_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&shortest_wait_ns, waited < old ? waited : old + (waited - old) / 32, __ATOMIC_RELAXED);
}

static void sleep_before_poll(uint64_t waited, uint64_t queued) {
  if (queued >= ENOUGH_WORK_NS) {
    gw_sleep(queued / 16 < MAX_SLEEP_NS ? queued / 16 : MAX_SLEEP_NS);
    return;
  }
  uint64_t expected = __atomic_load_n(&shortest_wait_ns, __ATOMIC_RELAXED);
  uint64_t early = POLL_CLOSELY_NS + (expected / 8 < 2 * POLL_CLOSELY_NS ? expected / 8 : 2 * POLL_CLOSELY_NS);
  if (waited + early < expected) gw_sleep(expected - early - waited < GW_MS_NS ? expected - early - waited : GW_MS_NS);
  else if (waited > expected + 5 * POLL_CLOSELY_NS) gw_sleep(POLL_SLEEP_NS);
}

bool gw_bound_wait(gw_pass *p) {
  uint64_t began = 0, progress_ns = 0, seen = 0, first = 0, last = 0;
  for (;;) {
    uint32_t page_bound = bound_now(), bound = effective_bound(page_bound);
    if (!page_bound || gw_capture_in_progress() || __atomic_load_n(&gw_ended, __ATOMIC_RELAXED)) break;
    /* A check without the lock, which is enough most of the time: the page shows at least as
     * many commands in flight as the bound counts. */
    uint64_t done = __atomic_load_n(&gw_shared.page.completed, __ATOMIC_ACQUIRE); /* before launched */
    if (!began && GW_READ(launched) - done < bound) break;
    gw_bias_lock(&gw_act.lock);
    bool below_bound = counted_in_flight() < (uint64_t)bound + __atomic_load_n(&slack, __ATOMIC_RELAXED);
    uint64_t completed = gw_act.completed;
    gw_bias_unlock(&gw_act.lock);
    last = completed;
    if (below_bound) break;
    if (poll_marks()) {
      uint64_t now = gw_now();
      __atomic_store_n(&slack, 0, __ATOMIC_RELAXED);
      if (progress_ns) learn_slowest(now - progress_ns);
      progress_ns = now;
      continue;
    }
    if (!mark_fullest(p) && !any_mark()) break; /* there is no mark to wait for */
    uint64_t now = gw_now();
    if (!began || completed != seen) progress_ns = now;
    if (!began) began = now, first = completed;
    seen = completed;
    if (now - progress_ns >= STALL_NS && now - progress_ns >= stall_limit()) {
      overrun(bound);
      break;
    }
    sleep_before_poll(now - began, queued_work_ns(page_bound));
  }
  if (!began) return false;
  uint64_t now = gw_now();
  learn_shortest(now - began);
  learn_busy(now - began, last - first);
  gw_page_check(now);
  return true;
}

/* With the lock held: an entry of the stream that is not free, or NULL. Busy ones are found first. */
static struct gw_mark *find_mark(const struct gw_runtime *rt, void *ctx, void *stream) {
  struct gw_mark *set = NULL;
  for (int i = 0; i < GW_MARKS && gw_act.marks_set; i++) {
    struct gw_mark *m = &gw_act.marks[i];
    if (m->state == GW_MARK_FREE || m->runtime != rt || (ctx != GW_ALL && m->ctx != ctx)) continue;
    if (stream != GW_ALL && m->stream != stream) continue;
    if (m->state == GW_MARK_BUSY) return m;
    set = m;
  }
  return set;
}

void gw_bound_settle(const struct gw_runtime *rt, void *ctx, void *stream, uint64_t limit_ns) {
  uint64_t until = 0;
  for (struct gw_mark *m; (m = find_mark(rt, ctx, stream)) && m->state == GW_MARK_BUSY;) {
    if (!until) until = limit_ns ? gw_now() + limit_ns : ~0ull;
    else if (gw_now() >= until) return;
    gw_bias_unlock(&gw_act.lock); /* as long as a query takes */
    gw_sleep(POLL_SLEEP_NS);
    gw_bias_lock(&gw_act.lock);
  }
}

void gw_bound_forget(const struct gw_runtime *rt, void *ctx, void *stream) {
  gw_bias_lock(&gw_act.lock);
  for (struct gw_mark *m; gw_bound_settle(rt, ctx, stream, 0), (m = find_mark(rt, ctx, stream));) {
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
