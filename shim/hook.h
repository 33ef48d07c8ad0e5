/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a program comes to call a wrapper of this library instead of the runtime's function:
 *
 *   - by name, because this library is preloaded and exports the name;
 *   - through dlsym or dlvsym, which this library exports too;
 *   - through the runtime's own look-up function, such as cuGetProcAddress, which the adapter
 *     wraps.
 *
 * Each adapter has one struct gw_library with a table of hooks, listed in gw_libraries in
 * hook.c. Nothing is registered at run time, because a program may call dlsym before any
 * constructor of this library has run.
 */
#ifndef GIVEWAY_HOOK_H
#define GIVEWAY_HOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

struct gw_hook {
  const char *name; /* as the library exports it */
  void *wrapper;    /* this library's function, of the same type */
  void *real;       /* the runtime's function, once known; accessed atomically */
};

struct gw_library {
  const char *stem;   /* how its file name begins: "libcuda.so" */
  const char *prefix; /* how the names of its functions begin: "cu" */
  struct gw_hook *hooks;
  size_t count;
  bool pinned; /* it cannot be unloaded any more; accessed atomically */
  /* Each of these may be NULL. */
  void (*forked)(void);           /* in the child of a fork: clears all state */
  void (*thread_ends)(void);      /* this thread, which has called gw_thread_note, ends */
  void (*ready)(void);            /* the process became ready; called with gw_act.lock held */
  void (*expect)(uint64_t at_ns); /* the program expects work at that time; 0: unknown */
};

/* Finds the runtime's function behind a hook, without waiting for the loader: see elf.h. Returns
 * NULL if there is no such function. */
void *gw_hook_find(struct gw_library *lib, struct gw_hook *hook);

static inline void *gw_hook_real(struct gw_library *lib, struct gw_hook *hook) {
  void *real = __atomic_load_n(&hook->real, __ATOMIC_RELAXED);
  return __builtin_expect(real != NULL, 1) ? real : gw_hook_find(lib, hook);
}

/* Whether a function is a wrapper, which must never be taken for the real one. */
static inline bool gw_hook_is_ours(const struct gw_library *lib, const void *f) {
  for (size_t i = 0; i < lib->count; i++) {
    if (lib->hooks[i].wrapper == f) return true;
  }
  return false;
}

/* A function of the library that is not hooked, or NULL. */
void *gw_library_symbol(struct gw_library *lib, const char *name);

/* These call the function of that name of every library. */
void gw_hook_forked(void);
void gw_hook_thread_ends(void);
void gw_hook_ready(void);
void gw_hook_expect(uint64_t at_ns);

#pragma GCC visibility pop

#endif
