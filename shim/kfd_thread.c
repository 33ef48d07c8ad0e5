/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/*
 * The thread that waits for the daemon's requests for the process's own queues. It sleeps on a
 * word of the page. Without a request it wakes every IDLE_CHECK_NS to check whether the
 * daemon is still connected, and with a request when the lease ends.
 */
#define _GNU_SOURCE
#include "kfd_thread.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "activity.h"
#include "page.h"
#include "sys.h"
#include "thread.h"

#define IDLE_CHECK_NS (5 * GW_SECOND_NS)
#define RETRY_NS (500 * GW_MS_NS)       /* after the driver has refused a change */
#define MIN_INTERVAL_NS (100 * 1000ull) /* between two requests, in case the daemon wakes it all the time */
#define STACK (256 << 10)

static uint32_t started;

/* Reads the request and returns the end of its lease, or 0 if there is no request. Invalid
 * values, and a lease that has ended or lasts too long, count as no request. */
static uint64_t read_request(struct gw_kfd_request *r, uint64_t now) {
  memset(r, 0, sizeof *r);
  if (!gw_page_attached()) return 0;
  uint64_t lease = GW_READ(queue_lease_ns);
  if (lease <= now || lease - now > GW_MAX_LEASE_NS) return 0;
  uint32_t any = 0;
  for (uint32_t i = 0; i < GW_GPU_ENTRIES; i++) any |= r->stop[i] = GW_READ(stop_gpus[i]);
  uint32_t priority = GW_READ(queue_priority); /* KFD priorities are 0 to 15 */
  if (priority <= 16) any |= r->priority = priority;
  return any ? lease : 0;
}

/* Waits for a page, and asks for one: in a program whose launches the library does not see, no
 * other thread may do so. */
static void wait_for_page(uint32_t changes, uint64_t until) {
  if (!gw_page_attach("kfd")) gw_futex_wait(&gw_page_changes, changes, until, 0);
}

static void *run(void *unused) {
  gw_sys(SYS_prctl, PR_SET_NAME, (long)"giveway-kfd", 0, 0, 0, 0);
  for (uint64_t last = 0; !__atomic_load_n(&gw_ended, __ATOMIC_RELAXED);) {
    if (gw_now() - last < MIN_INTERVAL_NS) gw_sleep(MIN_INTERVAL_NS);
    uint32_t changes = __atomic_load_n(&gw_page_changes, __ATOMIC_SEQ_CST);
    uint32_t seq = __atomic_load_n(&gw_shared.page.queue_seq, __ATOMIC_SEQ_CST);
    struct gw_kfd_request request;
    uint64_t now = last = gw_now(), lease = read_request(&request, now);
    uint64_t until = lease ? lease : now + IDLE_CHECK_NS;
    /* The request changed while it was read. */
    if (__atomic_load_n(&gw_shared.page.queue_seq, __ATOMIC_SEQ_CST) != seq) continue;
    if (!gw_kfd_apply(&request, seq) && until > now + RETRY_NS) until = now + RETRY_NS;
    if (!gw_page_attached()) {
      wait_for_page(changes, until);
      continue;
    }
    /* The page was replaced. page.c explains why this thread cannot miss that. */
    if (__atomic_load_n(&gw_page_changes, __ATOMIC_SEQ_CST) != changes) continue;
    if (gw_futex_wait(&gw_shared.page.queue_seq, seq, until, 1) == -ETIMEDOUT) gw_page_check(gw_now_coarse());
  }
  return unused;
}

void gw_kfd_start_thread(void) {
  uint32_t no = 0;
  if (!__atomic_compare_exchange_n(&started, &no, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
  if (!gw_thread_start(run, STACK)) __atomic_store_n(&started, 0, __ATOMIC_RELEASE);
}

void gw_kfd_thread_forked(void) { started = 0; }
