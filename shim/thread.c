/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>

#include "elf.h"
#include "sys.h"

/* These functions have been in different libraries, and an old program need not have loaded
 * them. */
struct threads {
  int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  int (*detach)(pthread_t);
  int (*attr_init)(pthread_attr_t *);
  int (*attr_destroy)(pthread_attr_t *);
  int (*attr_setstacksize)(pthread_attr_t *, size_t);
  int (*attr_setinheritsched)(pthread_attr_t *, int);
  int (*attr_setschedpolicy)(pthread_attr_t *, int);
  int (*attr_setschedparam)(pthread_attr_t *, const struct sched_param *);
  int (*attr_setaffinity_np)(pthread_attr_t *, size_t, const cpu_set_t *);
};

static bool find_threads(struct threads *t) {
#define FIND(field) ((*(void **)&t->field = gw_elf_function_first("pthread_" #field)) != NULL)
  return FIND(create) && FIND(detach) && FIND(attr_init) && FIND(attr_destroy) && FIND(attr_setstacksize) && FIND(attr_setinheritsched) &&
         FIND(attr_setschedpolicy) && FIND(attr_setschedparam) && FIND(attr_setaffinity_np);
#undef FIND
}

bool gw_thread_is_realtime(void) {
  long policy = GW_SYS_1(SYS_sched_getscheduler, 0);
  return policy == SCHED_FIFO || policy == SCHED_RR || policy == SCHED_DEADLINE;
}

/* The CPUs of a thread: of the caller if 0, of the main thread if the process's number. Returns
 * how many there are, or 0 if that is not known. */
static int cpus_of(long tid, cpu_set_t *cpus) {
  CPU_ZERO(cpus);
  return GW_SYS_3(SYS_sched_getaffinity, tid, sizeof *cpus, cpus) > 0 ? CPU_COUNT(cpus) : 0;
}

/* Sets what the new thread is not to inherit. Returns false if it may inherit everything. */
static bool choose(const struct threads *t, pthread_attr_t *attr) {
  const struct sched_param lowest = {0};
  cpu_set_t cpus;
  bool any = false;
  if (gw_thread_is_realtime()) {
    any = t->attr_setinheritsched(attr, PTHREAD_EXPLICIT_SCHED) == 0 && t->attr_setschedpolicy(attr, SCHED_OTHER) == 0 &&
          t->attr_setschedparam(attr, &lowest) == 0;
  }
  if (cpus_of(0, &cpus) == 1 && cpus_of(gw_sys(SYS_getpid, 0, 0, 0, 0, 0, 0), &cpus) > 1) {
    any |= t->attr_setaffinity_np(attr, sizeof cpus, &cpus) == 0;
  }
  return any;
}

/* Returns false if there is nothing to choose, or the system does not permit it. */
static bool create_chosen(const struct threads *t, pthread_t *thread, void *(*run)(void *), size_t stack) {
  pthread_attr_t attr;
  if (t->attr_init(&attr) != 0) return false;
  bool any = choose(t, &attr);
  if (stack) any |= t->attr_setstacksize(&attr, stack) == 0;
  bool ok = any && t->create(thread, &attr, run, NULL) == 0;
  t->attr_destroy(&attr);
  return ok;
}

static bool create(const struct threads *t, void *(*run)(void *), size_t stack) {
  pthread_t thread;
  bool ok = create_chosen(t, &thread, run, stack) || (stack && create_chosen(t, &thread, run, 0)) ||
            t->create(&thread, NULL, run, NULL) == 0;
  if (ok) t->detach(thread);
  return ok;
}

bool gw_thread_start(void *(*run)(void *), size_t stack) {
  struct threads t;
  if (!find_threads(&t)) return false;
  sigset_t all, before;
  sigfillset(&all); /* by sigprocmask, which leaves the C library's signals: setuid needs every thread to take one */
  sigprocmask(SIG_SETMASK, &all, &before);
  bool ok = create(&t, run, stack);
  sigprocmask(SIG_SETMASK, &before, NULL);
  return ok;
}
