/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of queue.h. Each part is run by its name. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../queue.h"

#define MUST(what)                                                                  \
  do {                                                                              \
    if (!(what)) printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #what), exit(1); \
  } while (0)

static void nap(void) {
  struct timespec ms = {0, 1000000};
  nanosleep(&ms, NULL);
}

static struct giveway_queue_counts counts_of(giveway_queue *q) {
  struct giveway_queue_counts c;
  MUST(giveway_queue_counts(q, &c) == 0);
  return c;
}

static bool counted(giveway_queue *q, int submitted, int launched, int completed, int dropped) {
  struct giveway_queue_counts c = counts_of(q);
  int s = (int)c.submitted, l = (int)c.launched, o = (int)c.completed, d = (int)c.dropped;
  bool same = s == submitted && l == launched && o == completed && d == dropped;
  if (!same) printf("counts: %d %d %d %d\n", s, l, o, d);
  return same;
}

static giveway_queue *new_queue(void) {
  giveway_queue *q;
  MUST(giveway_queue_create(&q, "a name that is too long for a thread") == 0);
  return q;
}

/* Commands. */
static uint64_t order[1024];
static int ran; /* written by the queue's thread only */
static int note(void *arg, uint64_t number) {
  (void)arg;
  order[ran % 1024] = number;
  __atomic_store_n(&ran, ran + 1, __ATOMIC_RELEASE);
  return GIVEWAY_DONE;
}
static int runs(void) { return __atomic_load_n(&ran, __ATOMIC_ACQUIRE); }

static int until_set(void *flag, uint64_t number) {
  (void)number;
  while (!__atomic_load_n((int *)flag, __ATOMIC_ACQUIRE)) nap();
  return GIVEWAY_DONE;
}
static int later(void *arg, uint64_t number) {
  (void)arg, (void)number;
  return GIVEWAY_LATER;
}
static int done_at_once(void *q, uint64_t number) {
  MUST(giveway_queue_done(q, number) == 0);
  MUST(giveway_queue_done(q, number) == -ENOENT);
  return GIVEWAY_LATER;
}
static void set(int *flag) { __atomic_store_n(flag, 1, __ATOMIC_RELEASE); }

static int from_inside(void *arg, uint64_t number) {
  giveway_queue *q = arg;
  uint64_t mine;
  MUST(giveway_queue_destroy(q) == -EDEADLK);
  MUST(giveway_queue_wait(q, 0) == -EDEADLK);
  MUST(giveway_queue_wait(q, number) == -EDEADLK);
  MUST(giveway_queue_wait(q, number - 1) == 0);
  MUST(giveway_queue_submit(q, note, NULL, &mine) == 0);
  MUST(giveway_queue_wait(q, mine) == -EDEADLK);
  MUST(giveway_queue_drop(q) == 1);
  MUST(giveway_queue_wait(q, mine) == 0);
  MUST(giveway_queue_state(q) == GIVEWAY_READY);
  return GIVEWAY_DONE;
}

static void semantics(void) {
  uint64_t n;
  int go = 0;
  giveway_queue *q = new_queue();
  MUST(giveway_queue_level(q) == 1 && giveway_queue_state(q) == GIVEWAY_IDLE);
  MUST(giveway_queue_wait(q, 0) == 0);
  MUST(giveway_queue_wait(q, 1) == -EINVAL);
  MUST(giveway_queue_done(q, 1) == -ENOENT);
  MUST(giveway_queue_submit(q, NULL, NULL, NULL) == -EINVAL);
  MUST(giveway_queue_create(NULL, NULL) == -EINVAL && giveway_queue_drop(NULL) == -EINVAL);

  /* All commands run, in order. */
  for (int i = 0; i < 1000; i++) MUST(giveway_queue_submit(q, note, NULL, &n) == 0 && n == (uint64_t)i + 1);
  MUST(giveway_queue_wait(q, 500) == 0 && runs() >= 500);
  MUST(giveway_queue_wait(q, 0) == 0 && runs() == 1000);
  for (int i = 0; i < 1000; i++) MUST(order[i] == (uint64_t)i + 1);
  MUST(counted(q, 1000, 1000, 1000, 0) && giveway_queue_state(q) == GIVEWAY_IDLE);

  /* Suspended: a command that has begun goes on, and none begins. */
  MUST(giveway_queue_submit(q, until_set, &go, &n) == 0);
  while (counts_of(q).launched < n) nap();
  MUST(giveway_queue_suspend(q) == 0 && giveway_queue_suspend(q) == 0);
  MUST(giveway_queue_submit(q, note, NULL, NULL) == 0);
  set(&go);
  MUST(giveway_queue_wait(q, n) == 0);
  for (int i = 0; i < 20; i++) nap();
  MUST(giveway_queue_state(q) == GIVEWAY_SUSPENDED && runs() == 1000 && counted(q, 1002, 1001, 1001, 0));
  MUST(giveway_queue_resume(q) == 0 && giveway_queue_wait(q, 0) == 0 && runs() == 1001);

  /* Dropped: a command that has not begun is over at once and never runs. */
  go = 0;
  MUST(giveway_queue_submit(q, until_set, &go, &n) == 0);
  while (counts_of(q).launched < n) nap();
  for (int i = 0; i < 5; i++) MUST(giveway_queue_submit(q, note, NULL, NULL) == 0);
  MUST(giveway_queue_drop(q) == 5 && giveway_queue_drop(q) == 0);
  MUST(giveway_queue_wait(q, n + 5) == 0);
  set(&go);
  MUST(giveway_queue_wait(q, 0) == 0 && runs() == 1001 && counted(q, 1008, 1003, 1003, 5));

  /* LATER: done when giveway_queue_done is called, in any order, even before it returns. */
  MUST(giveway_queue_submit(q, later, NULL, &n) == 0 && giveway_queue_submit(q, later, NULL, NULL) == 0);
  MUST(giveway_queue_submit(q, note, NULL, NULL) == 0 && giveway_queue_wait(q, n + 2) == 0);
  MUST(giveway_queue_state(q) == GIVEWAY_READY && counted(q, 1011, 1006, 1004, 5));
  MUST(giveway_queue_done(q, n + 1) == 0 && giveway_queue_wait(q, n + 1) == 0);
  MUST(giveway_queue_done(q, n + 1) == -ENOENT && giveway_queue_done(q, n) == 0);
  MUST(giveway_queue_wait(q, 0) == 0 && giveway_queue_state(q) == GIVEWAY_IDLE);
  MUST(giveway_queue_submit(q, done_at_once, q, &n) == 0 && giveway_queue_wait(q, n) == 0);

  /* The bound. */
  MUST(giveway_queue_bound(q, 2) == 0);
  for (int i = 0; i < 3; i++) MUST(giveway_queue_submit(q, later, NULL, &n) == 0);
  while (counts_of(q).launched < n - 1 - 5) nap();
  for (int i = 0; i < 20; i++) nap();
  MUST(counts_of(q).launched == n - 1 - 5);
  MUST(giveway_queue_done(q, n - 2) == 0);
  while (counts_of(q).launched < n - 5) nap();
  MUST(giveway_queue_done(q, n - 1) == 0);
  while (giveway_queue_done(q, n) == -ENOENT) nap();

  MUST(giveway_queue_submit(q, from_inside, q, NULL) == 0 && giveway_queue_wait(q, 0) == 0);
  MUST(giveway_queue_destroy(q) == 0);
}

/* Destroy drops commands, and waits for running and LATER commands and for waiting threads. */
struct other {
  giveway_queue *q;
  uint64_t number;
  int go;
};
static void *finisher(void *arg) {
  struct other *o = arg;
  for (int i = 0; i < 20; i++) nap();
  set(&o->go);
  while (giveway_queue_done(o->q, o->number) == -ENOENT) nap();
  return NULL;
}
static void *waiter(void *arg) {
  struct other *o = arg;
  MUST(giveway_queue_wait(o->q, 0) == 0);
  return NULL;
}

static void destroy(void) {
  for (int round = 0; round < 20; round++) {
    pthread_t a, b;
    giveway_queue *q = new_queue();
    struct other o = {q, 2, 0};
    int before = runs();
    MUST(giveway_queue_submit(q, until_set, &o.go, NULL) == 0);
    MUST(giveway_queue_submit(q, later, NULL, NULL) == 0);
    if (round % 2) {
      set(&o.go);
      while (counts_of(q).launched < 2) nap();
      MUST(giveway_queue_suspend(q) == 0);
      MUST(giveway_queue_submit(q, note, NULL, NULL) == 0);
      MUST(pthread_create(&a, NULL, finisher, &o) == 0);
      MUST(pthread_create(&b, NULL, waiter, &o) == 0);
      nap();
      nap();
      MUST(giveway_queue_destroy(q) == 0);
      MUST(pthread_join(a, NULL) == 0 && pthread_join(b, NULL) == 0);
    } else {
      while (counts_of(q).launched < 1) nap();
      MUST(giveway_queue_drop(q) == 1);
      MUST(giveway_queue_submit(q, note, NULL, NULL) == 0);
      MUST(giveway_queue_suspend(q) == 0);
      set(&o.go);
      MUST(giveway_queue_destroy(q) == 0);
    }
    MUST(runs() == before);
  }
  MUST(giveway_queue_destroy(new_queue()) == 0);
}

/* Many threads that call all functions. */
#define QUEUES 4
#define THREADS 6
#define TURNS 400
static giveway_queue *shared[QUEUES];
static uint64_t last[QUEUES], calls[QUEUES];
static int busy[QUEUES];

struct job {
  int queue;
  bool later;
};
static int job(void *arg, uint64_t number) {
  struct job *e = arg;
  int i = __atomic_load_n(&e->queue, __ATOMIC_RELAXED);
  bool wait = __atomic_load_n(&e->later, __ATOMIC_RELAXED);
  MUST(__atomic_exchange_n(&busy[i], 1, __ATOMIC_ACQUIRE) == 0); /* one at a time */
  MUST(number > last[i]);                                        /* in order */
  last[i] = number;
  calls[i]++;
  __atomic_store_n(&busy[i], 0, __ATOMIC_RELEASE);
  return wait ? GIVEWAY_LATER : GIVEWAY_DONE;
}

static void *worker(void *arg) {
  unsigned seed = (unsigned)(uintptr_t)arg;
  static struct job jobs[QUEUES][2];
  for (int i = 0; i < TURNS; i++) {
    int at = (int)(rand_r(&seed) % QUEUES);
    giveway_queue *q = shared[at];
    uint64_t n;
    struct job *e = &jobs[at][i % 3 == 0];
    __atomic_store_n(&e->queue, at, __ATOMIC_RELAXED);
    __atomic_store_n(&e->later, i % 3 == 0, __ATOMIC_RELAXED);
    MUST(giveway_queue_submit(q, job, e, &n) == 0);
    switch (rand_r(&seed) % 8) {
      case 0: MUST(giveway_queue_suspend(q) == 0); sched_yield(); MUST(giveway_queue_resume(q) == 0); break;
      case 1: MUST(giveway_queue_drop(q) >= 0); break;
      case 2: MUST(giveway_queue_bound(q, (uint32_t)(rand_r(&seed) % 3)) == 0); break;
    }
    if (i % 3 == 0) {
      /* It cannot be completed before it has begun, and must not be if it was dropped. */
      while (giveway_queue_done(q, n) == -ENOENT) {
        struct giveway_queue_counts c = counts_of(q);
        MUST(c.launched + c.dropped <= c.submitted && c.completed <= c.launched);
        if (c.launched + c.dropped >= n) {
          giveway_queue_done(q, n);
          break;
        }
        sched_yield();
      }
    }
    if (i % 7 == 0) MUST(giveway_queue_wait(q, n) == 0);
  }
  return NULL;
}

static void threads(void) {
  pthread_t t[THREADS];
  for (int i = 0; i < QUEUES; i++) shared[i] = new_queue();
  for (uintptr_t i = 0; i < THREADS; i++) MUST(pthread_create(&t[i], NULL, worker, (void *)(i + 1)) == 0);
  for (int i = 0; i < THREADS; i++) MUST(pthread_join(t[i], NULL) == 0);
  for (int i = 0; i < QUEUES; i++) {
    MUST(giveway_queue_wait(shared[i], 0) == 0);
    struct giveway_queue_counts c = counts_of(shared[i]);
    MUST(c.launched == calls[i] && c.completed == c.launched && c.submitted == c.launched + c.dropped);
    MUST(giveway_queue_destroy(shared[i]) == 0);
  }
}

/* In the child of a fork the queues are empty and work; in the parent they go on. */
static int in_child(giveway_queue *q) {
  struct giveway_queue_counts c = counts_of(q);
  if (c.submitted || c.launched || giveway_queue_state(q) != GIVEWAY_IDLE) return 1;
  if (giveway_queue_wait(q, 1) != -EINVAL) return 1;
  int before = runs();
  for (int i = 0; i < 10; i++) {
    if (giveway_queue_submit(q, note, NULL, NULL)) return 2;
  }
  if (giveway_queue_wait(q, 0) || runs() != before + 10) return 3;
  return giveway_queue_destroy(q) ? 4 : 0;
}
static void *forker(void *arg) {
  for (int i = 0; i < 30; i++) {
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) _exit(in_child(arg));
    int status;
    MUST(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) printf("child: %x\n", status), exit(1);
  }
  return NULL;
}
static int fork_inside(void *arg, uint64_t number) {
  (void)arg, (void)number;
  int status;
  pid_t child = fork();
  if (child == 0) return GIVEWAY_DONE; /* the last thread of the child ends */
  MUST(waitpid(child, &status, 0) == child && WIFEXITED(status));
  return GIVEWAY_DONE;
}
static void forks(void) {
  pthread_t t;
  giveway_queue *q = new_queue(), *other = new_queue();
  MUST(giveway_queue_submit(q, later, NULL, NULL) == 0 && giveway_queue_suspend(other) == 0);
  MUST(giveway_queue_submit(other, note, NULL, NULL) == 0);
  MUST(pthread_create(&t, NULL, forker, q) == 0);
  for (int i = 0; i < 2000; i++) MUST(giveway_queue_submit(q, note, NULL, NULL) == 0);
  MUST(pthread_join(t, NULL) == 0);
  MUST(giveway_queue_submit(q, fork_inside, NULL, NULL) == 0);
  MUST(giveway_queue_done(q, 1) == 0 && giveway_queue_wait(q, 0) == 0 && runs() == 2000);
  MUST(giveway_queue_resume(other) == 0 && giveway_queue_wait(other, 0) == 0 && runs() == 2001);
  MUST(giveway_queue_destroy(q) == 0 && giveway_queue_destroy(other) == 0);
}

/* With a daemon that holds the gate or sets a bound: prints what runs and obeys commands. */
static int say(void *arg, uint64_t number) {
  printf("%s %d\n", arg ? (char *)arg : "runs", (int)number);
  return arg ? GIVEWAY_LATER : GIVEWAY_DONE;
}
int giveway_hint(uint32_t kind, int64_t value);
static void interactive(void) {
  char line[64], word[16];
  giveway_queue *q = new_queue();
  unsigned long n;
  int go = 0;
  while (fgets(line, sizeof line, stdin) && sscanf(line, "%15s %lu", word, &n) == 2) {
    if (strcmp(word, "priority") == 0) MUST(giveway_hint(2, (int64_t)n) == 0);
    if (strcmp(word, "class") == 0) MUST(giveway_queue_class(q, (enum giveway_class)n) == 0);
    if (strcmp(word, "rank") == 0) MUST(giveway_queue_priority(q, (int32_t)n) == 0);
    if (strcmp(word, "submit") == 0) MUST(giveway_queue_submit(q, say, NULL, NULL) == 0);
    if (strcmp(word, "later") == 0) MUST(giveway_queue_submit(q, say, "later", NULL) == 0);
    if (strcmp(word, "stay") == 0) MUST(giveway_queue_submit(q, until_set, &go, NULL) == 0);
    if (strcmp(word, "go") == 0) set(&go);
    if (strcmp(word, "done") == 0) printf("done %d\n", giveway_queue_done(q, n));
    if (strcmp(word, "wait") == 0) printf("waited %d\n", giveway_queue_wait(q, n));
    if (strcmp(word, "drop") == 0) printf("dropped %d\n", giveway_queue_drop(q));
  }
  MUST(giveway_queue_destroy(q) == 0);
}

/* Queues of different rank. */
static int trail[64], trails;
static int leave_trail(void *which, uint64_t number) {
  (void)number;
  int at = __atomic_fetch_add(&trails, 1, __ATOMIC_ACQ_REL);
  if (at < 64) trail[at] = (int)(intptr_t)which;
  return GIVEWAY_DONE;
}

/* Returns whether all commands of the high queue ran before those of the low one. */
static bool high_first(giveway_queue *high, giveway_queue *low) {
  __atomic_store_n(&trails, 0, __ATOMIC_RELEASE);
  MUST(giveway_queue_suspend(high) == 0 && giveway_queue_suspend(low) == 0);
  for (int i = 0; i < 5; i++) {
    MUST(giveway_queue_submit(low, leave_trail, (void *)1, NULL) == 0);
    MUST(giveway_queue_submit(high, leave_trail, (void *)2, NULL) == 0);
  }
  MUST(giveway_queue_resume(high) == 0 && giveway_queue_resume(low) == 0);
  MUST(giveway_queue_wait(low, 0) == 0 && giveway_queue_wait(high, 0) == 0);
  bool first = true;
  for (int i = 0; i < 10; i++) first &= trail[i] == (i < 5 ? 2 : 1);
  return first;
}

/* A machine with other work may let a thread wait for so long that its queue is let go. */
#define OFTEN_ENOUGH(what)                                        \
  do {                                                            \
    int tries_ = 0;                                               \
    while (!(what)) MUST(++tries_ < 50);                          \
  } while (0)

static giveway_queue *low_queue;
static uint64_t wanted;
static int waits_for_low(void *arg, uint64_t number) {
  (void)arg, (void)number;
  MUST(giveway_queue_wait(low_queue, wanted) == 0);
  return GIVEWAY_DONE;
}
static int ends_other(void *q, uint64_t number) {
  MUST(giveway_queue_done(q, number) == 0); /* both have had as many commands */
  return GIVEWAY_DONE;
}
static int submits_again(void *arg, uint64_t number) {
  (void)number;
  if (!__atomic_load_n((int *)arg, __ATOMIC_ACQUIRE)) MUST(giveway_queue_submit(low_queue, submits_again, arg, NULL) == 0);
  return nap(), GIVEWAY_DONE;
}

static long ms_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void ranks(void) {
  giveway_queue *a = new_queue(), *b = new_queue();
  struct giveway_command list[2];
  int stop = 0;
  MUST(giveway_queue_class(NULL, GIVEWAY_BATCH) == -EINVAL && giveway_queue_class(a, (enum giveway_class)4) == -EINVAL);
  MUST(giveway_queue_priority(NULL, 1) == -EINVAL && giveway_queue_commands(NULL, list, 2) == -EINVAL);
  MUST(giveway_queue_submit_kind(a, (enum giveway_kind)5, note, NULL, NULL) == -EINVAL);

  /* By priority, then by class, which counts more. */
  MUST(giveway_queue_priority(a, 1) == 0);
  OFTEN_ENOUGH(high_first(a, b));
  MUST(giveway_queue_priority(b, 2) == 0);
  OFTEN_ENOUGH(high_first(b, a));
  MUST(giveway_queue_class(a, GIVEWAY_ONLINE) == 0 && giveway_queue_class(b, GIVEWAY_BATCH) == 0);
  OFTEN_ENOUGH(high_first(a, b));

  /* A command that waits for a lower queue lets it go at once. */
  low_queue = b;
  for (int i = 0, quick = 0; i < 50 && !quick; i++) {
    long from = ms_now();
    MUST(giveway_queue_suspend(b) == 0 && giveway_queue_submit(b, note, NULL, &wanted) == 0);
    MUST(giveway_queue_submit(a, waits_for_low, NULL, NULL) == 0);
    MUST(giveway_queue_resume(b) == 0 && giveway_queue_wait(a, 0) == 0);
    quick = ms_now() - from < 15;
    MUST(quick || i < 49);
  }

  /* A command that ends by one of a lower queue, unknown to the library. */
  giveway_queue *c = new_queue(), *d = new_queue();
  MUST(giveway_queue_priority(c, 1) == 0);
  for (int i = 0; i < 3; i++) {
    MUST(giveway_queue_submit(c, later, NULL, NULL) == 0 && giveway_queue_submit(d, ends_other, c, NULL) == 0);
    MUST(giveway_queue_wait(c, 0) == 0 && giveway_queue_wait(d, 0) == 0);
  }

  /* A queue that always has commands does not starve a lower one. */
  low_queue = c;
  MUST(giveway_queue_submit(c, submits_again, &stop, NULL) == 0 && giveway_queue_submit(d, note, NULL, NULL) == 0);
  MUST(giveway_queue_wait(d, 0) == 0);
  set(&stop);
  MUST(giveway_queue_wait(c, 0) == 0);

  /* Commands and their kinds. */
  stop = 0;
  MUST(giveway_queue_submit_kind(c, GIVEWAY_KERNEL, until_set, &stop, NULL) == 0);
  while (giveway_queue_commands(c, list, 2) != 1 || !list[0].begun) nap();
  MUST(giveway_queue_submit_kind(c, GIVEWAY_COPY, note, NULL, NULL) == 0 && giveway_queue_submit(c, note, NULL, NULL) == 0);
  MUST(giveway_queue_commands(c, list, 2) == 3 && giveway_queue_commands(c, NULL, 0) == 3);
  MUST(list[0].kind == GIVEWAY_KERNEL && list[0].begun && list[1].kind == GIVEWAY_COPY && !list[1].begun);
  MUST(list[1].number == list[0].number + 1 && list[0].submitted_ns && list[0].submitted_ns <= list[1].submitted_ns);
  set(&stop);
  MUST(giveway_queue_destroy(d) == 0 && giveway_queue_destroy(c) == 0);
  MUST(giveway_queue_destroy(a) == 0 && giveway_queue_destroy(b) == 0);
}

int main(int argc, char **argv) {
  const struct {
    const char *name;
    void (*run)(void);
  } parts[] = {
      {"semantics", semantics}, {"destroy", destroy}, {"threads", threads}, {"forks", forks}, {"ranks", ranks}, {"interactive", interactive},
  };
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (size_t i = 0; argc == 2 && i < sizeof parts / sizeof *parts; i++) {
    if (strcmp(argv[1], parts[i].name)) continue;
    parts[i].run();
    printf("ok %s\n", argv[1]);
    return 0;
  }
  return 2;
}
