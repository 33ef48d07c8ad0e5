/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#include "queue_rank.h"

#include <limits.h>
#include <stddef.h>

#include "activity.h"
#include "gate.h"
#include "page.h"
#include "sys.h"

#define LOOK_AGAIN_NS GW_MS_NS

static gw_lock_t lock;
static struct gw_rank *ranks;
static uint32_t changes; /* a futex: changes when a queue may have to wait no longer */
static uint32_t waiting; /* threads that wait for it */

/* What the daemon was told. */
static struct {
  bool class_given, priority_given;
  uint32_t class;
  int32_t priority;
} told;

/* The most urgent class has the highest number. */
static int urgency(uint32_t class) {
  static const int of[] = {2 /* standard */, 3 /* online */, 1 /* batch */, 0 /* idle */};
  return class < sizeof of / sizeof *of ? of[class] : 2;
}

static bool is_higher(const struct gw_rank *a, const struct gw_rank *b) {
  int ua = urgency(a->class), ub = urgency(b->class);
  return ua != ub ? ua > ub : a->priority > b->priority;
}

static void notify(void) {
  __atomic_store_n(&changes, changes + 1, __ATOMIC_RELEASE);
  if (__atomic_load_n(&waiting, __ATOMIC_SEQ_CST)) gw_futex_wake(&changes, INT_MAX, 0);
}

/* Tells the daemon what the highest queue with commands is. Queues without a class or a priority
 * of their own leave the process's as it is. Only where there is a connection: the attempt to make
 * one takes long if the daemon hangs, and locks are held here. */
static void tell(void) {
  struct gw_rank *top = NULL;
  if (!gw_page_attached()) return;
  for (struct gw_rank *r = ranks; r; r = r->next) {
    if (r->busy && (!top || is_higher(r, top))) top = r;
  }
  if (!top) return;
  if (top->class_given && (!told.class_given || told.class != top->class)) {
    told.class_given = gw_hint(GW_HINT_CLASS, top->class) == 0;
    told.class = top->class;
  }
  if (top->priority_given && (!told.priority_given || told.priority != top->priority)) {
    told.priority_given = gw_hint(GW_HINT_PRIORITY, top->priority) == 0;
    told.priority = top->priority;
  }
}

void gw_rank_add(struct gw_rank *r) {
  gw_lock(&lock);
  r->next = ranks;
  r->link = &ranks;
  if (ranks) ranks->link = &r->next;
  ranks = r;
  gw_unlock(&lock);
}

void gw_rank_remove(struct gw_rank *r) {
  gw_lock(&lock);
  *r->link = r->next;
  if (r->next) r->next->link = r->link;
  r->next = NULL;
  r->link = &r->next; /* a second call removes nothing */
  notify();
  gw_unlock(&lock);
}

void gw_rank_set_class(struct gw_rank *r, uint32_t class) {
  gw_lock(&lock);
  r->class = class;
  r->class_given = true;
  tell();
  notify();
  gw_unlock(&lock);
}

void gw_rank_set_priority(struct gw_rank *r, int32_t priority) {
  gw_lock(&lock);
  r->priority = priority;
  r->priority_given = true;
  tell();
  notify();
  gw_unlock(&lock);
}

void gw_rank_update(struct gw_rank *r, bool has_next, bool in_flight, uint64_t done) {
  bool busy = has_next || in_flight;
  gw_lock(&lock);
  bool changed = r->busy != busy;
  r->busy = busy;
  if (r->done != done) r->done_ns = gw_now();
  r->done = done;
  r->has_next = has_next;
  if (!has_next) r->held_ns = 0; /* dropped or suspended: a later command has its own wait */
  if (changed) {
    tell();
    notify();
  }
  gw_unlock(&lock);
}

void gw_rank_tell(const char *runtime) {
  if (__atomic_load_n(&gw_ended, __ATOMIC_RELAXED) || !gw_page_attach(runtime)) return;
  gw_lock(&lock);
  tell();
  gw_unlock(&lock);
}

void gw_rank_waits(struct gw_rank *r, int change) {
  gw_lock(&lock);
  r->waits += (uint32_t)change;
  notify();
  gw_unlock(&lock);
}

/* The queues of higher rank, as one. */
static struct gw_class_state above(const struct gw_rank *r, bool *waits) {
  struct gw_class_state s = {.let_go = r->let_go};
  *waits = false;
  for (const struct gw_rank *o = ranks; o; o = o->next) {
    if (o == r || !is_higher(o, r)) continue;
    s.done += o->done;
    s.launched += o->done + o->busy;
    if (o->done_ns > s.done_ns) s.done_ns = o->done_ns;
    *waits |= o->busy && o->waits;
  }
  return s;
}

bool gw_rank_holds(struct gw_rank *r) {
  bool waits;
  gw_lock(&lock);
  uint64_t now = gw_now();
  struct gw_class_state s = above(r, &waits);
  bool holds = gw_class_rule(&s, waits, r->held_ns ? r->held_ns : now, now) == GW_CLASS_WAIT;
  if (holds && r->has_next && !r->held_ns) r->held_ns = now;
  r->let_go = s.let_go;
  gw_unlock(&lock);
  return holds;
}

void gw_rank_wait(void) {
  uint32_t seen = __atomic_load_n(&changes, __ATOMIC_ACQUIRE);
  __atomic_add_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
  gw_futex_wait(&changes, seen, gw_now() + LOOK_AGAIN_NS, 0);
  __atomic_sub_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
}

void gw_rank_begun(struct gw_rank *r) {
  gw_lock(&lock);
  r->held_ns = 0;
  gw_unlock(&lock);
}

void gw_rank_before_fork(void) { gw_lock(&lock); }
void gw_rank_after_fork(void) { gw_unlock(&lock); }

void gw_rank_in_child(void) {
  for (struct gw_rank *r = ranks; r; r = r->next) {
    r->busy = r->has_next = false;
    r->waits = 0;
    r->done = r->done_ns = r->held_ns = r->let_go = 0;
  }
  told.class_given = told.priority_given = false; /* the child has its own page */
  waiting = 0;
  lock = (gw_lock_t){0};
}
