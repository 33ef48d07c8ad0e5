/* SPDX-License-Identifier: Apache-2.0 */
/* The page that the daemon has sent, and the connection that keeps it valid. */
#ifndef GIVEWAY_PAGE_H
#define GIVEWAY_PAGE_H

#include "filter.h"
#include "gate.h"

#pragma GCC visibility push(hidden)

/* Whether the process has a page from a daemon. */
extern uint32_t gw_attached;
static inline bool gw_page_attached(void) { return __atomic_load_n(&gw_attached, __ATOMIC_ACQUIRE) != 0; }

/*
 * Whether the daemon's orders hold: the bound, stream classes, late entry and parking. A daemon that
 * hangs or is stopped does not renew their lease, and the process then runs as without orders. Pages
 * before version 3 have no such lease. To be asked only where an order is not zero, because it reads the
 * clock. Not inline: launches without orders must not pay for its registers.
 */
bool gw_orders_hold(void);

/* A futex: changes whenever a page is mapped or about to be unmapped. */
extern uint32_t gw_page_changes;

/*
 * Asks for a page if there is none, at most once a second, and returns whether there is one
 * now. It may take 250 ms if a daemon does not answer; the time between attempts then grows.
 */
bool gw_page_attach(const char *runtime);

/* Checks at most once a second whether the daemon is still connected, and unmaps its page if
 * not. */
void gw_page_check(uint64_t now);

/* Gives up the page for good: from now on the library does nothing. why is not GW_PERMITTED. The
 * filters must still permit all system calls; gw_page_attach and gw_page_check find out when
 * they do not any more. */
void gw_page_leave(enum gw_filters why);

/* Writes to the doorbell if the daemon sleeps. The caller has incremented page.doorbell. Also
 * calls gw_page_check. */
void gw_page_ring(void);

/* The program is about to close the descriptors first to last. If the doorbell is one of them
 * it is not written any more, and its number is returned; otherwise -1. If the call then
 * fails, gw_page_not_closed restores it. */
int gw_page_closing(unsigned first, unsigned last);
void gw_page_not_closed(int fd);

/* In the child of a fork: unmaps the page, which is the parent's. */
void gw_page_forked(void);

/* Writes the current state to a newly mapped page, before gw_page_attached returns true. In
 * activity.c. */
void gw_activity_publish(void);

#pragma GCC visibility pop

#endif
