/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of the queues of one process among themselves. A command does not begin while a queue
 * of higher rank has commands, by the rule of class_rule.h: it waits for at most 100 ms, and for at
 * most 20 ms without a completion there. The daemon is told the class and the priority of the
 * highest queue that has commands, so its policies decide about the process as about that queue.
 */
#ifndef GIVEWAY_QUEUE_RANK_H
#define GIVEWAY_QUEUE_RANK_H

#include "class_rule.h"

#pragma GCC visibility push(hidden)

/* One queue. All fields are guarded by a lock of queue_rank.c, which may be taken with the queue's
 * own lock held, not the other way round. */
struct gw_rank {
  uint32_t class;          /* as in shim/abi.h */
  int32_t priority;
  bool class_given, priority_given;
  bool busy;               /* it has commands that may begin or have begun */
  bool has_next;           /* it has a command that is to begin, and is not suspended */
  uint32_t waits;          /* its commands that wait for another queue */
  uint64_t done, done_ns;  /* commands that are done, and when the last was */
  uint64_t held_ns;        /* since when its next command waits; 0: it does not */
  uint64_t let_go;         /* see struct gw_class_state */
  struct gw_rank *next, **link;
};

void gw_rank_add(struct gw_rank *r);
void gw_rank_remove(struct gw_rank *r);
void gw_rank_set_class(struct gw_rank *r, uint32_t class);
void gw_rank_set_priority(struct gw_rank *r, int32_t priority);

/* The queue has changed. has_next: it has a command that is to begin; in_flight: it has commands that
 * have begun. */
void gw_rank_update(struct gw_rank *r, bool has_next, bool in_flight, uint64_t done);

/* Connects to the daemon and tells it what it could not be told before. Without locks, because a
 * daemon that hangs delays the caller. */
void gw_rank_tell(const char *runtime);

/* A command of the queue begins (+1) or ends (-1) to wait for another queue. */
void gw_rank_waits(struct gw_rank *r, int change);

/* Whether the queue's next command has to wait; gw_rank_wait waits a little, or for a change. */
bool gw_rank_holds(struct gw_rank *r);
void gw_rank_wait(void);

/* The queue's next command has begun, or there is none. */
void gw_rank_begun(struct gw_rank *r);

/* Around a fork, with the locks of all queues held. */
void gw_rank_before_fork(void);
void gw_rank_after_fork(void);
void gw_rank_in_child(void);

#pragma GCC visibility pop

#endif
