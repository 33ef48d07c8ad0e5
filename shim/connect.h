/* SPDX-License-Identifier: Apache-2.0 */
/* The connection to the daemon and the exchange at its beginning, which abi.h describes. */
#ifndef GIVEWAY_CONNECT_H
#define GIVEWAY_CONNECT_H

#pragma GCC visibility push(hidden)

/* Results of gw_connect other than a descriptor. */
#define GW_NO_DAEMON (-1)  /* none listens */
#define GW_WRONG_USER (-2) /* the daemon that listens is neither root's nor of this process's user */
#define GW_REFUSED (-3)    /* the answer is no page */
#define GW_TIMEOUT (-4)    /* no answer came in time */

/*
 * Connects to the daemon and asks for a page. Returns the connection and fills in the
 * descriptors of the page, the status page and the doorbell, which are not checked yet. It
 * takes 250 ms at most.
 */
int gw_connect(const char *runtime, int fds[3]);

#pragma GCC visibility pop

#endif
