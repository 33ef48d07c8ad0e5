/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's own queues on AMD GPUs. KFD, their driver, lets nobody but the
 * process that has made a queue take it off the GPU, waves and all (UPDATE_QUEUE
 * with a percentage of 0), or change its priority. So it is done here, for a daemon
 * that has no better way: docs/AMD.md.
 *
 * Libraries that drive KFD call ioctl, which this library stands before. Of all
 * ioctls three are looked at: those that make, update and destroy a queue.
 */
#ifndef GIVEWAY_KFD_H
#define GIVEWAY_KFD_H

#pragma GCC visibility push(hidden)

/* There is a page now: what the program has is obeyed on from here. */
void gw_kfd_attached(void);

/* Writes what the program has into a page that is new, before anybody else can. */
void gw_kfd_publish(void);

/* In the child of a fork: it has no queues. KFD goes by memory, not by descriptor. */
void gw_kfd_forked(void);

/* The library's end: everything is put back, and nothing is done any more. */
void gw_kfd_leave(void);

#pragma GCC visibility pop

#endif
