/* SPDX-License-Identifier: Apache-2.0 */
/* Starts threads of the library in the program's process. */
#ifndef GIVEWAY_THREAD_H
#define GIVEWAY_THREAD_H

#include <stdbool.h>
#include <stddef.h>

#pragma GCC visibility push(hidden)

/*
 * Starts a detached thread. Returns false if the system refuses.
 *
 * All signals are blocked in it: the program's handlers run on the program's threads.
 *
 * A thread inherits policy and CPUs of the one that creates it, which here is whichever thread of
 * the program comes first. A real-time policy is not inherited: the library's threads must not
 * compete with those to which the program has given priority. CPUs are inherited, unless there is
 * only one and the main thread has more: a program that pins each of its threads has kept that CPU
 * for its own thread, which may be busy all the time.
 *
 * stack is the size of its stack; 0: as the program's threads have. It is larger where the program's
 * thread variables need more.
 */
bool gw_thread_start(void *(*run)(void *), size_t stack);

/* Whether the calling thread has a real-time policy: it may keep its CPU from the library's threads. */
bool gw_thread_is_realtime(void);

#pragma GCC visibility pop

#endif
