/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#include "thread_end.h"

#include <pthread.h>
#include <stddef.h>

#include "activity.h"
#include "elf.h"
#include "hook.h"

__thread bool gw_thread_noted;

static enum { NO_KEY, CREATING, CREATED, REFUSED } state; /* accessed atomically */
static pthread_key_t key;
static int (*set_specific)(pthread_key_t, const void *);

/* A destructor that runs later may launch again. The thread is then noted again, and the system calls
 * this function once more. */
static void thread_ends(void *unused) {
  (void)unused;
  gw_thread_noted = false;
  if (!__atomic_load_n(&gw_ended, __ATOMIC_RELAXED)) gw_hook_thread_ends();
}

/* These functions have been in different libraries, and an old program need not have loaded them. */
__attribute__((constructor)) static void create_key(void) {
  int expected = NO_KEY;
  if (!__atomic_compare_exchange_n((int *)&state, &expected, CREATING, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
  int (*create)(pthread_key_t *, void (*)(void *)) = gw_elf_function_first("pthread_key_create");
  set_specific = gw_elf_function_first("pthread_setspecific");
  bool found = create && set_specific, ok = found && create(&key, thread_ends) == 0;
  __atomic_store_n((int *)&state, ok ? CREATED : found ? REFUSED : NO_KEY, __ATOMIC_RELEASE);
}

void gw_thread_note_slow(void) {
  create_key();
  if (__atomic_load_n((int *)&state, __ATOMIC_ACQUIRE) != CREATED) return;
  gw_thread_noted = set_specific(key, &gw_thread_noted) == 0;
}
