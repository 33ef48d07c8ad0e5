/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/*
 * Queues of commands. A queue has a list of waiting commands, a list of commands in flight, and
 * a word that changes with both. Every wait is a wait for that word, after a check under the
 * lock, so no change is missed.
 */
#define _GNU_SOURCE
#include "queue.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "activity.h"
#include "elf.h"
#include "page.h"
#include "queue_rank.h"

#define EXPORT __attribute__((visibility("default")))

struct command {
  struct command *next;
  giveway_run run;
  void *arg;
  uint64_t number;
  uint64_t submitted_ns;
  enum giveway_kind kind;
  uint64_t seq;  /* its number on the gate's stream, if it is counted and the stream has a slot */
  bool counted;  /* the gate counts it as in flight */
  bool returned; /* its function has returned */
  bool done_called;
};

struct giveway_queue {
  gw_lock_t lock;
  uint32_t changes; /* a futex: changes with everything below, which the lock guards */
  struct command *waiting, *waiting_last;
  struct command *in_flight, *in_flight_last; /* by number */
  uint32_t in_flight_count;
  uint64_t begun; /* all commands up to this number have begun or were dropped */
  struct giveway_queue_counts counts;
  uint32_t bound;
  uint64_t last_seq; /* the highest seq of all commands */
  bool suspended, closing, has_thread;
  uint32_t refs;         /* held by the program until destroy, and by the queue's thread */
  uint32_t waiters;      /* threads in giveway_queue_wait */
  uint32_t generation;   /* changes in the child of a fork */
  struct command *stale; /* in the child of a fork: commands of the parent */
  char name[16];
  struct gw_rank rank;

  giveway_queue *next, **link; /* in the list of queues, guarded by queues_lock */
};

static giveway_queue *queues;
static gw_lock_t queues_lock;

/* In a queue's thread: the queue, and the command that runs. */
static __thread giveway_queue *current_queue;
static __thread uint64_t current_command;

/* Wakes all threads that wait for a change. With the lock held. */
static void notify(giveway_queue *q) {
  gw_rank_update(&q->rank, q->waiting && !q->suspended, q->in_flight != NULL, q->counts.completed);
  __atomic_store_n(&q->changes, q->changes + 1, __ATOMIC_RELEASE);
  gw_futex_wake(&q->changes, INT_MAX, 0);
}

/* Waits for the next change. With the lock held, which it releases meanwhile. */
static void wait_for_change(giveway_queue *q) {
  uint32_t changes = q->changes;
  gw_unlock(&q->lock);
  gw_futex_wait(&q->changes, changes, 0, 0);
  gw_lock(&q->lock);
}

/* Queues as a gw_runtime. A mark is a command number: it is reached when all commands up to
 * it are over. */
struct mark {
  giveway_queue *q;
  uint64_t number;
};

static bool all_over(const giveway_queue *q, uint64_t number) {
  return q->begun >= number && (!q->in_flight || q->in_flight->number > number);
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
  int reached = all_over(m->q, m->number);
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

/* Makes the process ready while a command runs. The command itself is not counted as in flight
 * yet, because its own launches are counted and must fit in the bound. The runtime is written
 * here too: the first command may run for long, and if the page was attached by a hint the
 * daemon knows of no runtime yet. */
static void report_started(gw_pass *p) {
  gw_bias_lock(&gw_act.lock);
  if (!p->entering) gw_act.entering++;
  gw_act.started++;
  gw_act.runtimes |= gw_queue.bit;
  GW_WRITE(runtimes, gw_act.runtimes);
  p->entering = p->started = true;
  bool ring = gw_update();
  gw_bias_unlock(&gw_act.lock);
  if (ring) gw_page_ring();
}

/* Counts a GIVEWAY_LATER command as in flight. Returns its number on the queue's stream, or 0
 * if that has no slot. */
static uint64_t report_launched(gw_pass *p, giveway_queue *q) {
  gw_leave(p, true);
  gw_bias_lock(&gw_act.lock);
  int slot = gw_stream_find(&gw_queue, q, q);
  uint64_t seq = slot >= 0 ? gw_act.streams[slot].launched : 0;
  gw_bias_unlock(&gw_act.lock);
  return seq;
}

/* All commands of the stream up to seq are done; with a seq of 0 one command without a slot
 * is. */
static void report_done(giveway_queue *q, uint64_t seq) {
  gw_bias_lock(&gw_act.lock);
  int slot = gw_stream_find(&gw_queue, q, q);
  if (seq && slot >= 0) gw_stream_done(&gw_act.streams[slot], seq);
  if (!seq) gw_untracked_one_done(&gw_queue, q);
  bool ring = gw_update();
  gw_bias_unlock(&gw_act.lock);
  if (ring) gw_page_ring();
}

/* With the lock held: removes a command from those in flight. Returns whether the gate must be
 * told, and then sets *seq to the number up to which all commands are done. */
static bool remove_in_flight(giveway_queue *q, struct command *c, uint64_t *seq) {
  struct command **link = &q->in_flight, *before = NULL;
  while (*link != c) {
    before = *link;
    link = &before->next;
  }
  *link = c->next;
  if (q->in_flight_last == c) q->in_flight_last = before;
  q->in_flight_count--;
  q->counts.completed++;
  notify(q);
  *seq = c->seq;
  if (!c->counted) return false;
  if (!c->seq) return true;
  /* An earlier command is in flight: its completion will cover this one too. */
  for (struct command *o = q->in_flight; o && o->number < c->number; o = o->next) {
    if (o->counted && o->seq) return false;
  }
  /* Later commands that are done already are covered by this completion. */
  for (struct command *o = q->in_flight; o; o = o->next) {
    if (!o->counted || !o->seq || o->number < c->number) continue;
    *seq = o->seq - 1;
    return true;
  }
  *seq = q->last_seq;
  return true;
}

/* A command is done. With the lock held, which it releases. The gate learns of it before that,
 * so that destroy does not free the queue meanwhile. */
static void complete(giveway_queue *q, struct command *c) {
  uint64_t seq;
  if (remove_in_flight(q, c, &seq)) report_done(q, seq);
  gw_unlock(&q->lock);
  free(c);
}

static bool may_begin(const giveway_queue *q) {
  return q->waiting && !q->suspended && (!q->bound || q->in_flight_count < q->bound);
}

/* With the lock held: begins the first waiting command. */
static struct command *begin(giveway_queue *q) {
  struct command *c = q->waiting;
  q->waiting = c->next;
  if (!q->waiting) q->waiting_last = NULL;
  c->next = NULL;
  if (q->in_flight_last) q->in_flight_last->next = c;
  else q->in_flight = c;
  q->in_flight_last = c;
  q->in_flight_count++;
  q->begun = c->number;
  q->counts.launched++;
  notify(q);
  return c;
}

/* Passes the gate and runs the first command. With the lock held, which it releases meanwhile.
 * Returns false in the child of a fork, where this is not the queue's thread. */
static bool run_first(giveway_queue *q) {
  uint32_t generation = q->generation;
  gw_pass pass;
  gw_unlock(&q->lock);
  gw_rank_tell(gw_queue.name);
  if (gw_rank_holds(&q->rank)) {
    gw_rank_wait();
    gw_lock(&q->lock);
    return true;
  }
  bool gated = gw_enter(&pass, &gw_queue, q, q);
  gw_lock(&q->lock);
  /* Suspended or dropped while it waited at the gate, or a higher queue has got commands. */
  if (q->closing || !may_begin(q) || gw_rank_holds(&q->rank)) {
    gw_unlock(&q->lock);
    if (gated) gw_leave(&pass, false);
    gw_lock(&q->lock);
    return true;
  }
  struct command *c = begin(q);
  gw_rank_begun(&q->rank);
  gw_unlock(&q->lock);
  if (gated) report_started(&pass);
  current_command = c->number;
  int how = c->run(c->arg, c->number);
  if (__atomic_load_n(&q->generation, __ATOMIC_RELAXED) != generation) return false;
  current_command = 0;
  uint64_t seq = 0;
  if (gated && how == GIVEWAY_LATER) seq = report_launched(&pass, q);
  else if (gated) gw_leave_done(&pass, true);
  gw_lock(&q->lock);
  c->returned = true;
  c->counted = gated && how == GIVEWAY_LATER;
  c->seq = seq;
  if (seq) q->last_seq = seq;
  if (how != GIVEWAY_LATER || c->done_called) {
    complete(q, c);
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

/* Drops a reference. With the lock held, which it releases; it may free the queue. */
static void unref(giveway_queue *q) {
  bool last = --q->refs == 0;
  gw_unlock(&q->lock);
  if (!last) return;
  gw_forget(&gw_queue, q, q);
  free_all(q->stale);
  free(q);
}

static void *run_queue(void *arg) {
  giveway_queue *q = current_queue = arg;
  gw_sys(SYS_prctl, PR_SET_NAME, (long)q->name, 0, 0, 0, 0);
  gw_lock(&q->lock);
  while (!q->closing) {
    if (!may_begin(q)) wait_for_change(q);
    else if (!run_first(q)) return NULL;
  }
  unref(q);
  return NULL;
}

/* With the lock held. pthread_create has been in different libraries, and an old program need
 * not have loaded it. */
static int start_thread(giveway_queue *q) {
  typedef int create_fn(unsigned long *, const void *, void *(*)(void *), void *);
  create_fn *create = gw_elf_function_first("pthread_create");
  int (*detach)(unsigned long) = gw_elf_function_first("pthread_detach");
  if (!create || !detach) return -ENOSYS;
  /* The program's signals go to its own threads. */
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, &before);
  unsigned long id;
  int r = create(&id, NULL, run_queue, q);
  sigprocmask(SIG_SETMASK, &before, NULL);
  if (r) return -r;
  detach(id);
  q->has_thread = true;
  q->refs++;
  return 0;
}

/* All locks are taken before a fork, so that the child finds consistent queues. */
static void before_fork(void) {
  gw_lock(&queues_lock);
  for (giveway_queue *q = queues; q; q = q->next) gw_lock(&q->lock);
  gw_rank_before_fork();
}

static void after_fork(void) {
  gw_rank_after_fork();
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
    append(&q->stale, q->in_flight);
    q->waiting = q->waiting_last = q->in_flight = q->in_flight_last = NULL;
    q->in_flight_count = q->waiters = 0;
    q->begun = q->last_seq = 0;
    q->counts = (struct giveway_queue_counts){0};
    q->suspended = q->has_thread = false;
    q->refs = 1;
    q->generation++;
    q->lock = (gw_lock_t){0};
  }
  queues_lock = (gw_lock_t){0};
  gw_rank_in_child();
}

extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));

EXPORT int giveway_queue_create(giveway_queue **made, const char *name) {
  static bool registered; /* the fork handlers are */
  if (!made) return -EINVAL;
  giveway_queue *q = calloc(1, sizeof *q);
  if (!q) return -ENOMEM;
  q->refs = 1;
  strncpy(q->name, name ? name : "giveway", sizeof q->name - 1);
  gw_lock(&queues_lock);
  if (!registered && __register_atfork) __register_atfork(before_fork, after_fork, in_child, NULL);
  registered = true;
  q->next = queues;
  q->link = &queues;
  if (queues) queues->link = &q->next;
  queues = q;
  gw_rank_add(&q->rank);
  gw_unlock(&queues_lock);
  *made = q;
  return 0;
}

/* With the lock held: removes all waiting commands from the queue. */
static struct command *take_waiting(giveway_queue *q, uint64_t *count) {
  struct command *all = q->waiting;
  *count = q->counts.submitted - q->begun;
  q->waiting = q->waiting_last = NULL;
  q->begun = q->counts.submitted;
  q->counts.dropped += *count;
  if (all) notify(q);
  return all;
}

EXPORT int giveway_queue_destroy(giveway_queue *q) {
  uint64_t count;
  if (!q) return -EINVAL;
  if (current_queue == q) return -EDEADLK;
  gw_lock(&queues_lock);
  *q->link = q->next;
  if (q->next) q->next->link = q->link;
  gw_rank_remove(&q->rank);
  gw_unlock(&queues_lock);
  gw_lock(&q->lock);
  q->closing = true;
  struct command *dropped = take_waiting(q, &count);
  notify(q);
  while (q->in_flight || q->waiters) wait_for_change(q);
  unref(q); /* the queue's thread may be waiting at the gate; it frees the queue then */
  free_all(dropped);
  return 0;
}

EXPORT int giveway_queue_submit(giveway_queue *q, giveway_run run, void *arg, uint64_t *number) {
  return giveway_queue_submit_kind(q, GIVEWAY_UNKNOWN, run, arg, number);
}

EXPORT int giveway_queue_submit_kind(giveway_queue *q, enum giveway_kind kind, giveway_run run, void *arg, uint64_t *number) {
  if (!q || !run || (unsigned)kind > GIVEWAY_SYNC) return -EINVAL;
  struct command *c = calloc(1, sizeof *c);
  if (!c) return -ENOMEM;
  c->run = run;
  c->arg = arg;
  c->kind = kind;
  c->submitted_ns = gw_now();
  gw_lock(&q->lock);
  int r = q->has_thread ? 0 : start_thread(q);
  if (r == 0) {
    c->number = ++q->counts.submitted;
    if (number) *number = c->number;
    if (q->waiting_last) q->waiting_last->next = c;
    else q->waiting = c;
    q->waiting_last = c;
    notify(q);
  }
  gw_unlock(&q->lock);
  if (r != 0) free(c);
  return r;
}

static struct command *find_in_flight(const giveway_queue *q, uint64_t number) {
  struct command *c = q->in_flight;
  while (c && c->number < number) c = c->next;
  return c && c->number == number ? c : NULL;
}

EXPORT int giveway_queue_done(giveway_queue *q, uint64_t number) {
  if (!q) return -EINVAL;
  gw_lock(&q->lock);
  struct command *c = find_in_flight(q, number);
  if (c && !c->done_called && c->returned) {
    complete(q, c);
    return 0;
  }
  int r = c && !c->done_called ? 0 : -ENOENT;
  if (c) c->done_called = true; /* the queue's thread does the rest */
  gw_unlock(&q->lock);
  return r;
}

static bool is_over(const giveway_queue *q, uint64_t number) {
  return number <= q->begun && !find_in_flight(q, number);
}

EXPORT int giveway_queue_wait(giveway_queue *q, uint64_t number) {
  if (!q) return -EINVAL;
  int r = 0;
  gw_lock(&q->lock);
  bool all = number == 0;
  if (all) number = q->counts.submitted;
  if (number > q->counts.submitted) r = -EINVAL;
  q->waiters++;
  bool for_other = current_queue && current_queue != q;
  if (for_other) gw_rank_waits(&current_queue->rank, +1);
  while (r == 0 && !(all ? all_over(q, number) : is_over(q, number))) {
    if (current_queue == q && current_command && number >= current_command) r = -EDEADLK;
    else wait_for_change(q);
  }
  if (for_other) gw_rank_waits(&current_queue->rank, -1);
  q->waiters--;
  if (q->closing) notify(q);
  gw_unlock(&q->lock);
  return r;
}

static int set_suspended(giveway_queue *q, bool suspended) {
  if (!q) return -EINVAL;
  gw_lock(&q->lock);
  q->suspended = suspended;
  notify(q);
  gw_unlock(&q->lock);
  return 0;
}

EXPORT int giveway_queue_suspend(giveway_queue *q) { return set_suspended(q, true); }
EXPORT int giveway_queue_resume(giveway_queue *q) { return set_suspended(q, false); }

EXPORT int giveway_queue_drop(giveway_queue *q) {
  uint64_t count;
  if (!q) return -EINVAL;
  gw_lock(&q->lock);
  struct command *dropped = take_waiting(q, &count);
  gw_unlock(&q->lock);
  free_all(dropped);
  return count > INT_MAX ? INT_MAX : (int)count;
}

EXPORT int giveway_queue_level(const giveway_queue *q) { return q ? 1 : -EINVAL; }

EXPORT int giveway_queue_bound(giveway_queue *q, uint32_t limit) {
  if (!q) return -EINVAL;
  gw_lock(&q->lock);
  q->bound = limit;
  notify(q);
  gw_unlock(&q->lock);
  return 0;
}

EXPORT int giveway_queue_state(giveway_queue *q) {
  if (!q) return -EINVAL;
  gw_lock(&q->lock);
  int state = q->suspended ? GIVEWAY_SUSPENDED : q->waiting || q->in_flight ? GIVEWAY_READY : GIVEWAY_IDLE;
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

EXPORT int giveway_queue_class(giveway_queue *q, enum giveway_class class) {
  if (!q || (unsigned)class > GIVEWAY_IDLE_CLASS) return -EINVAL;
  gw_rank_set_class(&q->rank, class);
  return 0;
}

EXPORT int giveway_queue_priority(giveway_queue *q, int32_t priority) {
  if (!q) return -EINVAL;
  gw_rank_set_priority(&q->rank, priority);
  return 0;
}

EXPORT int giveway_queue_commands(giveway_queue *q, struct giveway_command *list, int room) {
  int n = 0;
  if (!q || room < 0 || (room && !list)) return -EINVAL;
  gw_lock(&q->lock);
  for (int part = 0; part < 2; part++) {
    for (const struct command *c = part ? q->waiting : q->in_flight; c && n < INT_MAX; c = c->next, n++) {
      if (n < room) list[n] = (struct giveway_command){c->number, c->submitted_ns, c->kind, !part};
    }
  }
  gw_unlock(&q->lock);
  return n;
}
