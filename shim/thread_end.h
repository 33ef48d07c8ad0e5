/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of the program's threads. A thread that has used its per-thread default stream takes the
 * stream with it, and no later call tells that its commands are done.
 *
 * It is noticed by the destructor of a thread-specific value. The key is created when the library is
 * loaded, before a driver creates one: destructors run in the order of the keys, and the stream must
 * still be there. What is destroyed earlier, such as thread_local objects of C++, may be gone. The
 * library is never unloaded, so the destructor stays valid.
 */
#ifndef GIVEWAY_THREAD_END_H
#define GIVEWAY_THREAD_END_H

#include <stdbool.h>

#pragma GCC visibility push(hidden)

/* This thread uses a per-thread default stream: thread_ends of every library is called when it ends. */
extern __thread bool gw_thread_noted __attribute__((tls_model("initial-exec")));
void gw_thread_note_slow(void);
static inline void gw_thread_note(void) {
  if (__builtin_expect(!gw_thread_noted, 0)) gw_thread_note_slow();
}

#pragma GCC visibility pop

#endif
