/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/*
 * The thread that waits for what the daemon wants of the program's own queues. It
 * sleeps on a word of the page; while nothing is wanted it wakes every LOOK_NS, to
 * see whether the daemon is still there, and while something is, when the lease ends.
 */
#define _GNU_SOURCE
#include "kfd_watch.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "activity.h"
#include "page.h"
#include "sys.h"

#define LOOK_NS (5 * GW_SECOND_NS)
#define RETRY_NS (500 * GW_MS_NS)  /* what the driver refused is tried again */
#define BREATH_NS (100 * 1000ull)  /* a daemon that calls all the time is not heard more often */
#define STACK (256 << 10)

static uint32_t started;

/* Reads what the daemon wants, and until when that counts; 0: nothing is wanted. What
 * makes no sense is nothing: so is a lease that is over, or lasts too long. */
static uint64_t read_wish(struct gw_kfd_wish *w, uint64_t now) {
  memset(w, 0, sizeof *w);
  if (!gw_page_is_there()) return 0;
  uint64_t lease = GW_READ(queue_lease_ns);
  if (lease <= now || lease - now > GW_MAX_LEASE_NS) return 0;
  uint32_t any = 0;
  for (uint32_t i = 0; i < GW_GPU_ENTRIES; i++) any |= w->off[i] = GW_READ(stop_gpus[i]);
  uint32_t priority = GW_READ(queue_priority); /* KFD's go to 15 */
  if (priority <= 16) any |= w->priority = priority;
  return any ? lease : 0;
}

/* Waits for a page. It is asked for here too: nobody else may, in a program whose
 * launches we do not see. */
static void await_page(uint32_t pages, uint64_t until) {
  if (!gw_page_attach("kfd")) gw_futex_wait(&gw_pages, pages, until, 0);
}

static void *run(void *unused) {
  gw_sys(SYS_prctl, PR_SET_NAME, (long)"giveway-kfd", 0, 0, 0, 0);
  for (uint64_t last = 0; !__atomic_load_n(&gw_gone, __ATOMIC_RELAXED);) {
    if (gw_now() - last < BREATH_NS) gw_sleep(BREATH_NS);
    uint32_t pages = __atomic_load_n(&gw_pages, __ATOMIC_SEQ_CST);
    uint32_t turn = __atomic_load_n(&gw_shared.page.queue_seq, __ATOMIC_SEQ_CST);
    struct gw_kfd_wish wish;
    uint64_t now = last = gw_now(), lease = read_wish(&wish, now);
    uint64_t until = lease ? lease : now + LOOK_NS;
    /* Half of one wish and half of the next is none. */
    if (__atomic_load_n(&gw_shared.page.queue_seq, __ATOMIC_SEQ_CST) != turn) continue;
    if (!gw_kfd_obey(&wish, turn) && until > now + RETRY_NS) until = now + RETRY_NS;
    if (!gw_page_is_there()) {
      await_page(pages, until);
      continue;
    }
    /* The page may be another by now: see page.c for why we are not left behind. */
    if (__atomic_load_n(&gw_pages, __ATOMIC_SEQ_CST) != pages) continue;
    if (gw_futex_wait(&gw_shared.page.queue_seq, turn, until, 1) == -ETIMEDOUT) gw_page_check(gw_now_coarse());
  }
  return unused;
}

/* All of these have moved from one library to another, and old programs need not have
 * either. */
struct threads {
  int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  int (*detach)(pthread_t);
  int (*attr_init)(pthread_attr_t *);
  int (*attr_setstacksize)(pthread_attr_t *, size_t);
  int (*attr_destroy)(pthread_attr_t *);
};

static bool find_threads(struct threads *t) {
#define FIND(field) ((*(void **)&t->field = gw_real_dlsym(RTLD_DEFAULT, "pthread_" #field)) != NULL)
  return FIND(create) && FIND(detach) && FIND(attr_init) && FIND(attr_setstacksize) && FIND(attr_destroy);
#undef FIND
}

void gw_kfd_watch(void) {
  uint32_t no = 0;
  struct threads t;
  if (!__atomic_compare_exchange_n(&started, &no, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
  if (!find_threads(&t)) return;
  sigset_t all, before;
  sigfillset(&all); /* without the C library's own: setuid waits for every thread to take one */
  sigprocmask(SIG_SETMASK, &all, &before);
  pthread_attr_t small;
  pthread_t thread;
  int r = t.attr_init(&small);
  if (r == 0) {
    r = t.attr_setstacksize(&small, STACK);
    if (r == 0) r = t.create(&thread, &small, run, NULL);
    t.attr_destroy(&small);
  }
  /* A program's thread variables may need more than that. */
  if (r != 0) r = t.create(&thread, NULL, run, NULL);
  if (r == 0) t.detach(thread);
  sigprocmask(SIG_SETMASK, &before, NULL);
  if (r != 0) __atomic_store_n(&started, 0, __ATOMIC_RELEASE);
}

void gw_kfd_watch_forked(void) { started = 0; }
