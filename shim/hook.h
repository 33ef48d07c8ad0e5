/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a program comes to call our function in place of a library's:
 *
 *   - by name, because this library is preloaded and exports the name;
 *   - through dlsym or dlvsym, which this library stands before too;
 *   - through a look-up of the runtime's own (cuGetProcAddress): the adapter's
 *     affair.
 *
 * An adapter has one struct gw_library with a table of hooks, named in
 * gw_libraries in hook.c. Nothing is registered at run time: a program may call
 * dlsym before any constructor of ours has run.
 */
#ifndef GIVEWAY_HOOK_H
#define GIVEWAY_HOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

struct gw_hook {
  const char *name; /* as the library exports it */
  void *wrapper;    /* ours, of the same type */
  void *real;       /* the library's own, once known; read and written atomically */
};

struct gw_library {
  const char *file;      /* what it is loaded as: "libcuda.so.1" */
  const char *stem;      /* what the names of its file begin with: "libcuda.so" */
  const char *prefix;    /* what all its functions' names begin with: "cu" */
  struct gw_hook *hooks;
  size_t count;
  bool pinned; /* it cannot be unloaded any more */
  /* May be NULL, each. */
  void (*name)(void);             /* looks what file it is loaded as */
  void (*forked)(void);           /* in the child of a fork: forget everything */
  void (*ready)(uint64_t at_ns);  /* the program has come to work; called with gw_act.lock held */
  void (*expect)(uint64_t at_ns); /* it says when it will; 0: it does not know */
};

/*
 * The library's own function behind a hook, found if need be: in the libraries
 * after ours, else in the library itself if somebody has loaded it. NULL if it
 * has no such function.
 */
void *gw_hook_find(struct gw_library *lib, struct gw_hook *hook);

static inline void *gw_hook_real(struct gw_library *lib, struct gw_hook *hook) {
  void *real = __atomic_load_n(&hook->real, __ATOMIC_RELAXED);
  return __builtin_expect(real != NULL, 1) ? real : gw_hook_find(lib, hook);
}

/* Whether a function is one of our own: never to be taken for the real one. */
static inline bool gw_hook_is_ours(const struct gw_library *lib, const void *f) {
  for (size_t i = 0; i < lib->count; i++) {
    if (lib->hooks[i].wrapper == f) return true;
  }
  return false;
}

/* A function of the library that is not hooked. NULL if it has none. */
void *gw_library_symbol(struct gw_library *lib, const char *name);

/* Calls that function of every library. */
void gw_hook_forked(void);
void gw_hook_ready(uint64_t at_ns);
void gw_hook_expect(uint64_t at_ns);

#pragma GCC visibility pop

#endif
