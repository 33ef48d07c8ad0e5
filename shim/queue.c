/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/*
 * Queues. A queue is a list of commands that wait, a list of those under way, and
 * one word that changes with each of them: whoever waits for anything waits for
 * that word, after a look under the lock, so that no change is missed.
 */
#define _GNU_SOURCE
#include "queue.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "activity.h"
#include "page.h"

#define EXPORT __attribute__((visibility("default")))

struct command {
  struct command *next;
  giveway_run run;
  void *arg;
  uint64_t number;
  uint64_t seq;  /* on its lane of the gate, if it is counted and has one */
  bool counted;  /* by the gate, as in flight */
  bool returned; /* from its function */
  bool told_done;
};

struct giveway_queue {
  gw_lock_t lock;
  uint32_t turn; /* a futex: another value after each change. All below are under the lock */
  struct command *waiting, *waiting_last;
  struct command *under_way, *under_way_last; /* in order of number */
  uint32_t under_way_count;
  uint64_t begun; /* commands up to this number have begun, or were dropped */
  struct giveway_queue_counts counts;
  uint32_t bound;
  uint64_t top; /* the last seq of all commands */
  bool suspended, closing, has_thread;
  uint32_t parties; /* its owner, until destroy, and its thread: the last one frees it */
  uint32_t waiters; /* threads in giveway_queue_wait */
  uint32_t life;    /* another in the child of a fork */
  struct command *stale; /* of the parent, in the child */
  char name[16];

  giveway_queue *next, **link; /* in queues, under queues_lock */
};

static giveway_queue *queues;
static gw_lock_t queues_lock;

/* The queue whose thread this is, and the command that it runs. */
static __thread giveway_queue *mine;
static __thread uint64_t running;

/* With the lock held. */
static void changed(giveway_queue *q) {
  __atomic_store_n(&q->turn, q->turn + 1, __ATOMIC_RELEASE);
  gw_futex_wake(&q->turn, INT_MAX, 0);
}

/* With the lock held, which it gives up meanwhile: waits for the next change. */
static void wait_for_change(giveway_queue *q) {
  uint32_t turn = q->turn;
  gw_unlock(&q->lock);
  gw_futex_wait(&q->turn, turn, 0, 0);
  gw_lock(&q->lock);
}

/* The gate's view. A mark is behind the commands up to a number. */
struct mark {
  giveway_queue *q;
  uint64_t number;
};

static bool over_up_to(const giveway_queue *q, uint64_t number) {
  return q->begun >= number && (!q->under_way || q->under_way->number > number);
}

static void *mark_put(void *ctx, void *stream) {
  (void)stream;
  struct mark *m = malloc(sizeof *m);
  if (!m) return NULL;
  m->q = ctx;
  gw_lock(&m->q->lock);
  m->number = m->q->begun;
  gw_unlock(&m->q->lock);
  return m;
}

static int mark_reached(void *mark) {
  struct mark *m = mark;
  gw_lock(&m->q->lock);
  int reached = over_up_to(m->q, m->number);
  gw_unlock(&m->q->lock);
  return reached;
}

static int markable(void *ctx, void *stream) {
  (void)ctx, (void)stream;
  return 1;
}

__attribute__((visibility("hidden"))) const struct gw_runtime gw_queue = {
    .name = "queue",
    .bit = 1u << 3,
    .mark = mark_put,
    .reached = mark_reached,
    .drop = free,
    .markable = markable,
};

/* The program is ready while a command runs, though nothing of it is counted as in
 * flight yet: its own launches are, and the bound must have room for them. That there is
 * a queue is shown here too: the first command may run for long, and a program whose
 * page came with a hint has told of no runtime so far. */
static void show_ready(gw_pass *p) {
  gw_bias_lock(&gw_act.lock);
  if (!p->counted) gw_act.passing++;
  gw_act.running++;
  gw_act.runtimes |= gw_queue.bit;
  GW_SHOW(runtimes, gw_act.runtimes);
  p->counted = p->running = true;
  bool ring = gw_settle();
  gw_bias_unlock(&gw_act.lock);
  if (ring) gw_page_ring();
}

/* A LATER command is in flight from here on. Its place on the queue's lane; 0: there
 * was no lane to be had. */
static uint64_t count_later(gw_pass *p, giveway_queue *q) {
  gw_leave(p, true);
  gw_bias_lock(&gw_act.lock);
  int lane = gw_lane_find(&gw_queue, q, q);
  uint64_t seq = lane >= 0 ? gw_act.lanes[lane].launched : 0;
  gw_bias_unlock(&gw_act.lock);
  return seq;
}

/* All of the lane up to seq is done; without a lane, one command is. */
static void tell_gate(giveway_queue *q, uint64_t seq) {
  gw_bias_lock(&gw_act.lock);
  int lane = gw_lane_find(&gw_queue, q, q);
  if (seq && lane >= 0) gw_lane_done(&gw_act.lanes[lane], seq);
  if (!seq && gw_act.loose) {
    gw_act.loose--;
    gw_act.completed++;
  }
  bool ring = gw_settle();
  gw_bias_unlock(&gw_act.lock);
  if (ring) gw_page_ring();
}

/* With the lock held: takes a command from those under way. Until which place on its
 * lane all is done by that is *seq, if the gate must be told. */
static bool take_off(giveway_queue *q, struct command *c, uint64_t *seq) {
  struct command **link = &q->under_way, *before = NULL;
  while (*link != c) {
    before = *link;
    link = &before->next;
  }
  *link = c->next;
  if (q->under_way_last == c) q->under_way_last = before;
  q->under_way_count--;
  q->counts.completed++;
  changed(q);
  *seq = c->seq;
  if (!c->counted) return false;
  if (!c->seq) return true;
  /* Others before it are in flight: they will say it for this one too. */
  for (struct command *o = q->under_way; o && o->number < c->number; o = o->next) {
    if (o->counted && o->seq) return false;
  }
  /* Those behind it that were done earlier waited for this one. */
  for (struct command *o = q->under_way; o; o = o->next) {
    if (!o->counted || !o->seq || o->number < c->number) continue;
    *seq = o->seq - 1;
    return true;
  }
  *seq = q->top;
  return true;
}

/* With the lock held, which is free afterwards: a command is done. The gate is told
 * before the lock goes: destroy must not free the queue in between. */
static void finish(giveway_queue *q, struct command *c) {
  uint64_t seq;
  if (take_off(q, c, &seq)) tell_gate(q, seq);
  gw_unlock(&q->lock);
  free(c);
}

static bool may_begin(const giveway_queue *q) {
  return q->waiting && !q->suspended && (!q->bound || q->under_way_count < q->bound);
}

/* With the lock held: the first that waits is under way. */
static struct command *begin(giveway_queue *q) {
  struct command *c = q->waiting;
  q->waiting = c->next;
  if (!q->waiting) q->waiting_last = NULL;
  c->next = NULL;
  if (q->under_way_last) q->under_way_last->next = c;
  else q->under_way = c;
  q->under_way_last = c;
  q->under_way_count++;
  q->begun = c->number;
  q->counts.launched++;
  changed(q);
  return c;
}

/* Passes the gate with the first command and runs it. With the lock held, which is
 * given up meanwhile. False: this is the child of a fork, and not its thread. */
static bool run_first(giveway_queue *q) {
  uint32_t life = q->life;
  gw_pass pass;
  gw_unlock(&q->lock);
  bool gated = gw_enter(&pass, &gw_queue, q, q);
  gw_lock(&q->lock);
  if (q->closing || !may_begin(q)) { /* suspended or dropped while it was held */
    gw_unlock(&q->lock);
    if (gated) gw_leave(&pass, false);
    gw_lock(&q->lock);
    return true;
  }
  struct command *c = begin(q);
  gw_unlock(&q->lock);
  if (gated) show_ready(&pass);
  running = c->number;
  int how = c->run(c->arg, c->number);
  if (__atomic_load_n(&q->life, __ATOMIC_RELAXED) != life) return false;
  running = 0;
  uint64_t seq = 0;
  if (gated && how == GIVEWAY_LATER) seq = count_later(&pass, q);
  else if (gated) gw_leave_done(&pass, true);
  gw_lock(&q->lock);
  c->returned = true;
  c->counted = gated && how == GIVEWAY_LATER;
  c->seq = seq;
  if (seq) q->top = seq;
  if (how != GIVEWAY_LATER || c->told_done) {
    finish(q, c);
    gw_lock(&q->lock);
  }
  return true;
}

static void free_all(struct command *c) {
  while (c) {
    struct command *next = c->next;
    free(c);
    c = next;
  }
}

/* With the lock held, which is free afterwards, as the queue may be. */
static void let_go(giveway_queue *q) {
  bool last = --q->parties == 0;
  gw_unlock(&q->lock);
  if (!last) return;
  gw_forget(&gw_queue, q, q);
  free_all(q->stale);
  free(q);
}

static void *thread(void *arg) {
  giveway_queue *q = mine = arg;
  gw_sys(SYS_prctl, PR_SET_NAME, (long)q->name, 0, 0, 0, 0);
  gw_lock(&q->lock);
  while (!q->closing) {
    if (!may_begin(q)) wait_for_change(q);
    else if (!run_first(q)) return NULL;
  }
  let_go(q);
  return NULL;
}

/* With the lock held. pthread_create has moved from one library to another, and old
 * programs need not have either. */
static int start_thread(giveway_queue *q) {
  typedef int create_fn(unsigned long *, const void *, void *(*)(void *), void *);
  create_fn *create = gw_real_dlsym(RTLD_DEFAULT, "pthread_create");
  int (*detach)(unsigned long) = gw_real_dlsym(RTLD_DEFAULT, "pthread_detach");
  if (!create || !detach) return -ENOSYS;
  /* The program's signals are for threads that it knows. */
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, &before);
  unsigned long id;
  int r = create(&id, NULL, thread, q);
  sigprocmask(SIG_SETMASK, &before, NULL);
  if (r) return -r;
  detach(id);
  q->has_thread = true;
  q->parties++;
  return 0;
}

/* Nobody is in the middle of anything when the child begins. */
static void before_fork(void) {
  gw_lock(&queues_lock);
  for (giveway_queue *q = queues; q; q = q->next) gw_lock(&q->lock);
}

static void after_fork(void) {
  for (giveway_queue *q = queues; q; q = q->next) gw_unlock(&q->lock);
  gw_unlock(&queues_lock);
}

static void append(struct command **list, struct command *more) {
  while (*list) list = &(*list)->next;
  *list = more;
}

static void in_child(void) {
  for (giveway_queue *q = queues; q; q = q->next) {
    append(&q->stale, q->waiting);
    append(&q->stale, q->under_way);
    q->waiting = q->waiting_last = q->under_way = q->under_way_last = NULL;
    q->under_way_count = q->waiters = 0;
    q->begun = q->top = 0;
    q->counts = (struct giveway_queue_counts){0};
    q->suspended = q->has_thread = false;
    q->parties = 1;
    q->life++;
    q->lock = (gw_lock_t){0};
  }
  queues_lock = (gw_lock_t){0};
}

extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));

EXPORT int giveway_queue_create(giveway_queue **made, const char *name) {
  static bool watched; /* forks are */
  if (!made) return -EINVAL;
  giveway_queue *q = calloc(1, sizeof *q);
  if (!q) return -ENOMEM;
  q->parties = 1;
  strncpy(q->name, name ? name : "giveway", sizeof q->name - 1);
  gw_lock(&queues_lock);
  if (!watched && __register_atfork) __register_atfork(before_fork, after_fork, in_child, NULL);
  watched = true;
  q->next = queues;
  q->link = &queues;
  if (queues) queues->link = &q->next;
  queues = q;
  gw_unlock(&queues_lock);
  *made = q;
  return 0;
}

/* With the lock held: takes all that waits out of the queue. */
static struct command *empty(giveway_queue *q, uint64_t *count) {
  struct command *all = q->waiting;
  *count = q->counts.submitted - q->begun;
  q->waiting = q->waiting_last = NULL;
  q->begun = q->counts.submitted;
  q->counts.dropped += *count;
  if (all) changed(q);
  return all;
}

EXPORT int giveway_queue_destroy(giveway_queue *q) {
  uint64_t count;
  if (!q) return -EINVAL;
  if (mine == q) return -EDEADLK;
  gw_lock(&queues_lock);
  *q->link = q->next;
  if (q->next) q->next->link = q->link;
  gw_unlock(&queues_lock);
  gw_lock(&q->lock);
  q->closing = true;
  struct command *dropped = empty(q, &count);
  changed(q);
  while (q->under_way || q->waiters) wait_for_change(q);
  let_go(q); /* its thread may be held at the gate, and frees it when it comes back */
  free_all(dropped);
  return 0;
}

EXPORT int giveway_queue_submit(giveway_queue *q, giveway_run run, void *arg, uint64_t *number) {
  if (!q || !run) return -EINVAL;
  struct command *c = calloc(1, sizeof *c);
  if (!c) return -ENOMEM;
  c->run = run;
  c->arg = arg;
  gw_lock(&q->lock);
  int r = q->has_thread ? 0 : start_thread(q);
  if (r == 0) {
    c->number = ++q->counts.submitted;
    if (number) *number = c->number;
    if (q->waiting_last) q->waiting_last->next = c;
    else q->waiting = c;
    q->waiting_last = c;
    changed(q);
  }
  gw_unlock(&q->lock);
  if (r != 0) free(c);
  return r;
}

static struct command *find_under_way(const giveway_queue *q, uint64_t number) {
  struct command *c = q->under_way;
  while (c && c->number < number) c = c->next;
  return c && c->number == number ? c : NULL;
}

EXPORT int giveway_queue_done(giveway_queue *q, uint64_t number) {
  if (!q) return -EINVAL;
  gw_lock(&q->lock);
  struct command *c = find_under_way(q, number);
  if (c && !c->told_done && c->returned) {
    finish(q, c);
    return 0;
  }
  int r = c && !c->told_done ? 0 : -ENOENT;
  if (c) c->told_done = true; /* its thread sees to the rest */
  gw_unlock(&q->lock);
  return r;
}

static bool over(const giveway_queue *q, uint64_t number) {
  return number <= q->begun && !find_under_way(q, number);
}

EXPORT int giveway_queue_wait(giveway_queue *q, uint64_t number) {
  if (!q) return -EINVAL;
  int r = 0;
  gw_lock(&q->lock);
  bool all = number == 0;
  if (all) number = q->counts.submitted;
  if (number > q->counts.submitted) r = -EINVAL;
  q->waiters++;
  while (r == 0 && !(all ? over_up_to(q, number) : over(q, number))) {
    if (mine == q && running && number >= running) r = -EDEADLK;
    else wait_for_change(q);
  }
  q->waiters--;
  if (q->closing) changed(q);
  gw_unlock(&q->lock);
  return r;
}

static int set_suspended(giveway_queue *q, bool suspended) {
  if (!q) return -EINVAL;
  gw_lock(&q->lock);
  q->suspended = suspended;
  changed(q);
  gw_unlock(&q->lock);
  return 0;
}

EXPORT int giveway_queue_suspend(giveway_queue *q) { return set_suspended(q, true); }
EXPORT int giveway_queue_resume(giveway_queue *q) { return set_suspended(q, false); }

EXPORT int giveway_queue_drop(giveway_queue *q) {
  uint64_t count;
  if (!q) return -EINVAL;
  gw_lock(&q->lock);
  struct command *dropped = empty(q, &count);
  gw_unlock(&q->lock);
  free_all(dropped);
  return count > INT_MAX ? INT_MAX : (int)count;
}

EXPORT int giveway_queue_level(const giveway_queue *q) { return q ? 1 : -EINVAL; }

EXPORT int giveway_queue_bound(giveway_queue *q, uint32_t most) {
  if (!q) return -EINVAL;
  gw_lock(&q->lock);
  q->bound = most;
  changed(q);
  gw_unlock(&q->lock);
  return 0;
}

EXPORT int giveway_queue_state(giveway_queue *q) {
  if (!q) return -EINVAL;
  gw_lock(&q->lock);
  int state = q->suspended ? GIVEWAY_SUSPENDED : q->waiting || q->under_way ? GIVEWAY_READY : GIVEWAY_IDLE;
  gw_unlock(&q->lock);
  return state;
}

EXPORT int giveway_queue_counts(giveway_queue *q, struct giveway_queue_counts *counts) {
  if (!q || !counts) return -EINVAL;
  gw_lock(&q->lock);
  *counts = q->counts;
  gw_unlock(&q->lock);
  return 0;
}
