/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process's own compute queues on AMD GPUs. The KFD driver lets only the process that has
 * created a queue take it off the GPU, including its running waves (UPDATE_QUEUE with a
 * percentage of 0), or change its priority. If the daemon has no better way, it asks the shim
 * to do so: docs/AMD.md.
 *
 * Libraries that use KFD call ioctl, which this library wraps. It looks at three requests:
 * those that create, update and destroy a queue.
 */
#ifndef GIVEWAY_KFD_H
#define GIVEWAY_KFD_H

#pragma GCC visibility push(hidden)

/* A page was attached: from now on the daemon's requests for existing queues are applied. */
void gw_kfd_attached(void);

/* Writes the queue counts to a new page, before the process uses it. */
void gw_kfd_publish(void);

/* In the child of a fork: it has no queues. KFD identifies processes by their memory, not by
 * descriptors. */
void gw_kfd_forked(void);

/* At the end of the library: starts all queues again, and applies no further request. */
void gw_kfd_leave(void);

#pragma GCC visibility pop

#endif
