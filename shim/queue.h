/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues of commands. A queue runs its commands in order on its own thread, each when the
 * process's gate is open. A program does not need a queue to be scheduled: queues are for work
 * that the shim does not see, and for programs that want to suspend or drop
 * commands that have not begun.
 *
 * Link with libgiveway.so, which `make` puts into bin, and make sure that it is found when the
 * program starts, with or without `giveway run`:
 *
 *     cc program.c -Lbin -lgiveway -Wl,-rpath,$PWD/bin -pthread
 *
 * Without a daemon there is no gate, and everything else works the same.
 *
 * Queues of one process are ordered by class, then by priority: a command does not begin while a
 * higher queue has commands. So that no program stops for ever, a command waits for at most 100 ms,
 * for at most 20 ms in which no command of a higher queue is done, and not at all while a command of
 * a higher queue is in giveway_queue_wait for another queue. The daemon is told the class and the
 * priority of the highest queue that has commands, as hints of the process, if they were set.
 *
 * All functions return 0 or -errno, unless their comment says otherwise. They may be called
 * from any thread, and from a command of the same queue unless their comment says otherwise.
 * -EINVAL means that an argument is invalid.
 *
 * In the child of a fork every queue is as new: no commands, counts of zero, not suspended, the
 * same bound, and a new thread when it is first needed. Commands that were submitted before
 * stay in the parent. A command that forks must not return in the child: its thread would end
 * there, and the child with it.
 */
#ifndef GIVEWAY_QUEUE_H
#define GIVEWAY_QUEUE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct giveway_queue giveway_queue;

/* What a command returns. GIVEWAY_LATER: it is done when giveway_queue_done is called. */
#define GIVEWAY_DONE 0
#define GIVEWAY_LATER 1

/*
 * A command. It puts work on a device; number is its number in the queue. It must end by
 * returning. Launches that it makes through CUDA, HIP, OpenCL or Level Zero pass the gate as usual.
 */
typedef int (*giveway_run)(void *arg, uint64_t number);

/* Creates a queue. name, of which the first 15 bytes are used, is the name of its thread;
 * NULL: "giveway". -ENOMEM. */
int giveway_queue_create(giveway_queue **q, const char *name);

/*
 * Drops the commands that have not begun, waits until the others are done (a GIVEWAY_LATER
 * command: until giveway_queue_done), and frees the queue. Calls of giveway_queue_wait return
 * first; no other call may be in progress or follow. -EDEADLK in a command of the same queue,
 * without any effect.
 */
int giveway_queue_destroy(giveway_queue *q);

/* Adds a command at the end and stores its number, 1, 2, ..., in *number unless that is NULL.
 * -ENOMEM, -EAGAIN (no thread could be created), -ENOSYS (linked without threads): the
 * command was not added. */
int giveway_queue_submit(giveway_queue *q, giveway_run run, void *arg, uint64_t *number);

/* The same with the kind of the command, which only giveway_queue_commands shows. */
enum giveway_kind { GIVEWAY_UNKNOWN, GIVEWAY_KERNEL, GIVEWAY_COPY, GIVEWAY_EVENT, GIVEWAY_SYNC };
int giveway_queue_submit_kind(giveway_queue *q, enum giveway_kind kind, giveway_run run, void *arg, uint64_t *number);

/* Says that a GIVEWAY_LATER command is done: from any thread, even before it has returned.
 * -ENOENT: no command with that number is in flight. */
int giveway_queue_done(giveway_queue *q, uint64_t number);

/*
 * Waits until a command is done or dropped; number 0 means all commands submitted before this
 * call. On a suspended queue it waits until the queue is resumed or the command dropped.
 * -EINVAL: there is no such command yet. -EDEADLK: a command of this queue would wait for
 * itself or for a later one.
 */
int giveway_queue_wait(giveway_queue *q, uint64_t number);

/* Suspend stops commands from beginning; those that have begun go on. After it returns no
 * command begins until resume. Calls do not nest: one resume ends any number of them. */
int giveway_queue_suspend(giveway_queue *q);
int giveway_queue_resume(giveway_queue *q);

/* Drops all commands that have not begun, including one that waits at the gate. Returns how
 * many, at most INT_MAX. */
int giveway_queue_drop(giveway_queue *q);

/* The level at which a queue can be stopped: 1, between two commands. */
int giveway_queue_level(const giveway_queue *q);

/* Sets how many commands may have begun and not be done; 0, the initial value: no bound. The
 * daemon's bound, which counts all work of the process, applies in addition. */
int giveway_queue_bound(giveway_queue *q, uint32_t most);

/* Sets the class of the queue: online before standard, the initial one, before batch before idle. */
enum giveway_class { GIVEWAY_STANDARD, GIVEWAY_ONLINE, GIVEWAY_BATCH, GIVEWAY_IDLE_CLASS };
int giveway_queue_class(giveway_queue *q, enum giveway_class class_of_queue);

/* Sets the priority of the queue among those of its class: a higher one runs first. Initially 0. */
int giveway_queue_priority(giveway_queue *q, int32_t priority);

/* The state. A suspended queue is GIVEWAY_SUSPENDED; otherwise it is GIVEWAY_IDLE if no command
 * is waiting or in flight. */
enum giveway_queue_state { GIVEWAY_IDLE, GIVEWAY_READY, GIVEWAY_SUSPENDED };
int giveway_queue_state(giveway_queue *q);

/* submitted = waiting + launched + dropped; launched = in flight + completed. */
struct giveway_queue_counts {
  uint64_t submitted, launched, completed, dropped;
};
int giveway_queue_counts(giveway_queue *q, struct giveway_queue_counts *counts);

/* The commands in flight and then those that wait, by their numbers. Fills at most room entries and
 * returns how many commands there are. */
struct giveway_command {
  uint64_t number;
  uint64_t submitted_ns; /* CLOCK_MONOTONIC */
  enum giveway_kind kind;
  int begun; /* 1: it is in flight */
};
int giveway_queue_commands(giveway_queue *q, struct giveway_command *list, int room);

#ifdef __cplusplus
}
#endif

#endif
