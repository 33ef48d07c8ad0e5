/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues, for programs that want them: commands are run one after another, in
 * order, on a thread of the queue's own, each when the program's gate lets it.
 * Nobody needs a queue to be scheduled; it is for work that the preload library
 * does not see, and for who wants to suspend or drop what has not begun.
 *
 * Link with libgiveway.so, which `make` puts into bin, and see that it is found when the
 * program starts, under `giveway run` or not:
 *
 *     cc program.c -Lbin -lgiveway -Wl,-rpath,$PWD/bin -pthread
 *
 * Without a daemon there is no gate, and all else is the same.
 *
 * All functions return 0, or what they say, or -errno. They are safe from any
 * thread, and from a command of the same queue unless they say otherwise.
 * -EINVAL: an argument makes no sense.
 *
 * A fork. In the child every queue is as if just made: no commands, counts of
 * zero, not suspended, the same bound, and a thread of its own when it is first
 * needed. What the parent has submitted is the parent's. A command that forks
 * must not return in the child: its thread would end there, and the child with it.
 */
#ifndef GIVEWAY_QUEUE_H
#define GIVEWAY_QUEUE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct giveway_queue giveway_queue;

/* What a command returns. LATER: it is not done until giveway_queue_done. */
#define GIVEWAY_DONE 0
#define GIVEWAY_LATER 1

/*
 * A command: puts work on a device. number is its own in its queue. It must
 * return, and by no other way than return. While it runs, launches that it makes
 * through CUDA, HIP or OpenCL pass the gate by themselves, like any others.
 */
typedef int (*giveway_run)(void *arg, uint64_t number);

/* A new queue. The name, of which the first 15 bytes count, is that of its thread;
 * NULL: "giveway". -ENOMEM. */
int giveway_queue_create(giveway_queue **q, const char *name);

/*
 * Drops what has not begun, waits until what has is done (a LATER command: until
 * it is told so), and frees the queue. Those who wait in giveway_queue_wait come
 * back first; no other call may be under way, and none may follow. -EDEADLK from
 * a command of the same queue, and nothing has happened.
 */
int giveway_queue_destroy(giveway_queue *q);

/* Adds a command at the end. *number, unless NULL, becomes its number: 1, 2, ...
 * -ENOMEM, -EAGAIN (no thread to be had), -ENOSYS (linked without threads): it is
 * not in the queue. */
int giveway_queue_submit(giveway_queue *q, giveway_run run, void *arg, uint64_t *number);

/* A LATER command is done; from any thread, even before it has returned.
 * -ENOENT: none of that number is under way. */
int giveway_queue_done(giveway_queue *q, uint64_t number);

/*
 * Waits until a command is over: done, or dropped. Number 0: all that were
 * submitted before this call. On a suspended queue it waits until somebody
 * resumes the queue or drops the command. -EINVAL: no such number yet.
 * -EDEADLK: a command of this queue would wait for itself or for a later one.
 */
int giveway_queue_wait(giveway_queue *q, uint64_t number);

/* Begins no more commands; what has begun goes on. Twice equals once, and one
 * resume ends it. When suspend returns, no command begins any more. */
int giveway_queue_suspend(giveway_queue *q);
int giveway_queue_resume(giveway_queue *q);

/* Forgets all that has not begun, what is held at the gate included. Returns how
 * many, INT_MAX at most. */
int giveway_queue_drop(giveway_queue *q);

/* At which level a queue can be stopped: 1, between two commands. */
int giveway_queue_level(const giveway_queue *q);

/* The most commands that have begun and are not done; 0, as at first: no bound.
 * The daemon's own bound, over all that the program does, is beside this. */
int giveway_queue_bound(giveway_queue *q, uint32_t most);

/* idle: nothing waits and nothing is under way. Suspended comes first. */
enum giveway_queue_state { GIVEWAY_IDLE, GIVEWAY_READY, GIVEWAY_SUSPENDED };
int giveway_queue_state(giveway_queue *q);

/* submitted = waiting + launched + dropped; launched = under way + completed. */
struct giveway_queue_counts {
  uint64_t submitted, launched, completed, dropped;
};
int giveway_queue_counts(giveway_queue *q, struct giveway_queue_counts *counts);

#ifdef __cplusplus
}
#endif

#endif
