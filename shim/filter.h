/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seccomp filters. A filter may kill the process for a system call that the program itself never
 * makes, such as socket. So this library makes such calls only under filters that are known to
 * permit them:
 *
 *   - none at all;
 *   - those under which `giveway run` has used the daemon's socket (GIVEWAY_FILTERS);
 *   - those of the first process of the pid namespace, which are a container's own. The filters
 *     of container runtimes permit unix sockets.
 *
 * When the program installs a filter of its own, the library leaves it for good.
 */
#ifndef GIVEWAY_FILTER_H
#define GIVEWAY_FILTER_H

#include <stdbool.h>

#pragma GCC visibility push(hidden)

enum gw_filters {
  GW_PERMITTED,
  GW_INHERITED, /* the process was started with a filter that may not permit the calls */
  GW_INSTALLED, /* the program has installed a filter, or the calling thread has */
};

/* Returns what the filters of the calling thread permit. Makes only calls that the dynamic
 * loader makes too: openat, read and close. */
enum gw_filters gw_filters_now(void);

/* In the child of a fork. */
void gw_filters_forked(void);

#pragma GCC visibility pop

#endif
