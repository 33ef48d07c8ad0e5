/* SPDX-License-Identifier: Apache-2.0 */
/* The page that the daemon lends us, and the connection it hangs on. */
#ifndef GIVEWAY_PAGE_H
#define GIVEWAY_PAGE_H

#include "gate.h"

#pragma GCC visibility push(hidden)

/* Whether there is a daemon's page. */
extern uint32_t gw_attached;
static inline bool gw_page_is_there(void) { return __atomic_load_n(&gw_attached, __ATOMIC_ACQUIRE) != 0; }

/* A futex: another value whenever a page has come, or goes. */
extern uint32_t gw_pages;

/*
 * Asks for a page if there is none, at most once a second. Whether there is one
 * now. May take 250 ms where a daemon does not answer; such a one is asked less
 * and less often.
 */
bool gw_page_attach(const char *runtime);

/* Looks, at most once a second, whether the daemon is still there, and lets its
 * page go if not. */
void gw_page_check(uint64_t now);

/* Wakes the daemon, if it sleeps. The caller has bumped page.doorbell. Checks as well. */
void gw_page_ring(void);

/* The program is about to close these. The one among them that we write to, or -1; it
 * is not written to any more, unless it has not been closed after all. */
int gw_page_closing(unsigned first, unsigned last);
void gw_page_not_closed(int fd);

/* In the child of a fork: it has no page, and the parent's is none of its affair. */
void gw_page_forked(void);

/* Writes all that the daemon should know into a page that is new. Called with
 * the page mapped, before anybody takes it for there. In activity.c. */
void gw_activity_publish(void);

#pragma GCC visibility pop

#endif
