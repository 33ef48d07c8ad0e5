/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "class.h"

#include "bound.h"
#include "page.h"
#include "sys.h"

#define ACTIVE_NS (10 * GW_SECOND_NS) /* a process or thread uses high streams for so long after its last launch on one */
#define LOW_WORK_NS GW_MS_NS          /* of low commands in flight */
#define FEWEST 2                      /* while one runs, the next is ready */
#define MOST 64
#define POLL_NS 20000ull
#define HIGH_BATCH 4 /* commands between two marks of a high stream: without marks its progress is not seen */

/* When this thread last launched on a high stream; 0: never. */
static __thread uint64_t feeds_ns __attribute__((tls_model("initial-exec")));

static bool is_recent(uint64_t at, uint64_t now) { return at && gw_class_age(at, now) < ACTIVE_NS; }

/* What is in flight, with the lock held. */
struct flight {
  uint64_t low;       /* commands on low streams that the bound counts */
  bool waits_for_low; /* a high stream with commands in flight waits for others */
};

static struct flight look(void) {
  struct flight f = {0, false};
  for (int w = 0; w < gw_stream_words(); w++) {
    for (uint64_t left = gw_act.used[w]; left; left &= left - 1) {
      const struct gw_stream *s = &gw_act.streams[w * 64 + __builtin_ctzll(left)];
      if (!s->high) f.low += s->launched - s->done - s->exempt;
      else if (s->launched != s->done && s->done < s->waits_until) f.waits_for_low = true;
    }
  }
  return f;
}

/* How many low commands may be in flight. */
static uint32_t low_bound(void) {
  uint64_t ns = __atomic_load_n(&gw_act.low_pace_ns, __ATOMIC_RELAXED);
  uint64_t n = ns ? LOW_WORK_NS / ns : FEWEST;
  return (uint32_t)(n < FEWEST ? FEWEST : n < MOST ? n : MOST);
}

/* With the lock held: learns the device time of a low command. The device had low commands all the
 * time, because a launch waited for them. */
static void learn_pace(uint64_t waited, uint64_t done) {
  if (!done) return;
  uint64_t old = gw_act.low_pace_ns, ns = waited / done;
  __atomic_store_n(&gw_act.low_pace_ns, old ? old - old / 4 + ns / 4 : ns ? ns : 1, __ATOMIC_RELAXED);
}

static __attribute__((noinline)) bool wants_mark(const struct gw_stream *s) {
  if (!gw_class_wanted() || gw_capture_in_progress()) return false;
  if (!s->high) return gw_act.classes.launched && s->unmarked >= low_bound() / 2;
  /* Only if there are launches that could wait. */
  return s->unmarked >= HIGH_BATCH && gw_act.launched != gw_act.classes.launched;
}

bool gw_class_wants_mark(const struct gw_stream *s) {
  return __builtin_expect(GW_READ(stream_classes) == 1, 0) && wants_mark(s);
}

/* One launch that waits. */
struct hold {
  uint64_t began;     /* 0: it did not have to wait */
  uint64_t for_high;  /* how long it has waited for high streams until `at` */
  uint64_t at;
  uint64_t low_began; /* since when it waits for low commands only; 0: it does not */
  uint64_t low_done, low_done_then, progress_ns;
  bool let_go;
};

/* With the lock held: whether the launch has to wait for low commands in flight. */
static bool wait_for_low(struct hold *h, uint64_t low, uint64_t now) {
  uint64_t done = gw_act.completed - gw_act.classes.done;
  if (low < low_bound() || gw_act.low_let_go == gw_act.completed + 1) return false;
  if (!h->low_began) {
    h->low_began = h->progress_ns = now;
    h->low_done_then = done;
  }
  if (done != h->low_done) h->progress_ns = now;
  h->low_done = done;
  if (h->began && now - h->began >= GW_CLASS_MAX_HOLD_NS) {
    h->let_go = true; /* other threads launch whenever there is room */
    return false;
  }
  if (now - h->progress_ns < GW_CLASS_STALL_NS) return true;
  /* Kernels may wait for launches that are still to come, or are much longer than the last ones were
   * and have no mark between them. */
  uint64_t slower = 4 * gw_act.low_pace_ns;
  __atomic_store_n(&gw_act.low_pace_ns, slower < LOW_WORK_NS ? slower : LOW_WORK_NS, __ATOMIC_RELAXED);
  gw_act.low_let_go = gw_act.completed + 1;
  gw_bound_exempt();
  h->let_go = true;
  return false;
}

/* With the lock held: whether the launch has to wait. */
static bool must_wait(struct hold *h, uint64_t now) {
  struct flight f = look();
  uint64_t since = h->began ? h->began : now;
  enum gw_class_answer answer = gw_class_rule(&gw_act.classes, f.waits_for_low, since, now);
  if (answer == GW_CLASS_WAIT) {
    h->low_began = 0;
    return true;
  }
  h->let_go = answer == GW_CLASS_LET_GO;
  return wait_for_low(h, f.low, now);
}

static void end_hold(struct hold *h, uint64_t now) {
  gw_bias_lock(&gw_act.lock);
  if (h->low_began) learn_pace(now - h->low_began, gw_act.completed - gw_act.classes.done - h->low_done_then);
  if (h->for_high) {
    gw_act.class_held_ns += h->for_high;
    gw_act.class_holds++;
  }
  if (h->let_go) gw_act.class_let_go++;
  gw_class_publish();
  gw_bias_unlock(&gw_act.lock);
}

static bool wait_here(const gw_pass *p) {
  struct hold h = {0};
  while (gw_class_wanted() && !gw_capture_in_progress() && !__atomic_load_n(&gw_ended, __ATOMIC_RELAXED)) {
    gw_bias_lock(&gw_act.lock);
    uint64_t now = gw_now(); /* not before a completion that the rule sees */
    if (h.began && !h.low_began) h.for_high += now - h.at;
    h.at = now;
    bool wait = must_wait(&h, now);
    gw_bias_unlock(&gw_act.lock);
    if (!wait) break;
    if (!h.began) h.began = now;
    gw_bound_mark_all(p);
    gw_bound_poll();
    gw_sleep(POLL_NS);
  }
  if (!h.began && !h.let_go) return false;
  uint64_t now = gw_now();
  end_hold(&h, now);
  gw_page_check(now);
  return h.began != 0;
}

bool gw_class_wait(gw_pass *p) {
  if (!gw_class_wanted() || !p->runtime->high) return false;
  p->high = p->runtime->high(p->ctx, p->stream) == 1;
  uint64_t now = gw_now_coarse();
  if (p->high) feeds_ns = now;
  if (p->high || is_recent(feeds_ns, now)) return false;
  if (!is_recent(__atomic_load_n(&gw_act.classes.launched_ns, __ATOMIC_RELAXED), now)) return false;
  return wait_here(p);
}

void gw_class_count(const gw_pass *p, struct gw_stream *s) {
  if (!p->high && !s->high) return;
  /* A stream that is known to be high counts even if the pass did not ask: its completions count too. */
  uint64_t added = s->high ? 1 : s->launched - s->done; /* all commands since the class is known */
  s->high = true;
  gw_act.classes.launched += added;
  __atomic_store_n(&gw_act.classes.launched_ns, gw_now_coarse(), __ATOMIC_RELAXED);
}

void gw_class_done(uint64_t n) {
  gw_act.classes.done += n;
  gw_act.classes.done_ns = gw_now();
}

void gw_class_waits(const struct gw_runtime *rt, void *ctx, void *stream, void *other_ctx, void *other) {
  if (!gw_class_wanted() || !gw_page_attached()) return;
  gw_bias_lock(&gw_act.lock);
  int of = other ? gw_stream_find(rt, other_ctx, other) : -1;
  bool behind_high = of >= 0 && gw_act.streams[of].high;
  int at = behind_high ? -1 : gw_stream_get(rt, ctx, stream);
  if (at >= 0) gw_act.streams[at].waits_until = gw_act.streams[at].launched + 1;
  gw_bias_unlock(&gw_act.lock);
}

void gw_class_publish(void) {
  GW_WRITE(class_holds, gw_act.class_holds);
  GW_WRITE(class_held_ns, gw_act.class_held_ns);
  GW_WRITE(class_let_go, gw_act.class_let_go);
}
