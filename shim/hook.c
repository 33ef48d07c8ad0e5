/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/* This library's dlsym, dlvsym and dlclose, and the look-up of the runtimes' functions. */
#define _GNU_SOURCE
#include "hook.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>

#include "elf.h"
#include "gate.h"

/* Weak, because some tests link only a part of the adapters. */
extern struct gw_library gw_cuda_library __attribute__((weak, visibility("hidden")));
extern struct gw_library gw_hip_library __attribute__((weak, visibility("hidden")));
extern struct gw_library gw_opencl_library __attribute__((weak, visibility("hidden")));
extern struct gw_library gw_levelzero_library __attribute__((weak, visibility("hidden")));

static struct gw_library *const gw_libraries[] = {&gw_cuda_library, &gw_hip_library, &gw_opencl_library,
                                                 &gw_levelzero_library};
#define LIBRARIES (sizeof gw_libraries / sizeof *gw_libraries)

typedef void *dlsym_fn(void *, const char *);
typedef void *dlvsym_fn(void *, const char *, const char *);
typedef void *dlopen_fn(const char *, int);
typedef int dlclose_fn(void *);
typedef char *dlerror_fn(void);

/* The C library's own function, looked up until it is found. */
static void *libc_function(void **known, const char *name) {
  void *f = __atomic_load_n(known, __ATOMIC_RELAXED);
  if (!f) {
    f = gw_elf_function(name);
    __atomic_store_n(known, f, __ATOMIC_RELAXED);
  }
  return f;
}

static void *no_dlsym(void *handle, const char *name) {
  (void)handle, (void)name;
  return NULL;
}

static void *no_dlvsym(void *handle, const char *name, const char *version) {
  (void)handle, (void)name, (void)version;
  return NULL;
}

static dlsym_fn *real_dlsym(void) {
  static void *known;
  dlsym_fn *f = libc_function(&known, "dlsym");
  return f ? f : no_dlsym;
}

static dlvsym_fn *real_dlvsym(void) {
  static void *known;
  dlvsym_fn *f = libc_function(&known, "dlvsym");
  return f ? f : no_dlvsym;
}

/* Clears dlerror after a failed look-up of this library's own. */
static void clear_error(void) {
  static void *known;
  dlerror_fn *error = libc_function(&known, "dlerror");
  if (error) error();
}

void *gw_library_symbol(struct gw_library *lib, const char *name) { return gw_elf_runtime_function(name, lib->stem); }

void *gw_hook_find(struct gw_library *lib, struct gw_hook *hook) {
  void *real = gw_library_symbol(lib, hook->name);
  if (!real) real = gw_elf_stand_in(hook->name, lib->stem);
  if (real) __atomic_store_n(&hook->real, real, __ATOMIC_RELAXED);
  return real;
}

/* Keeps the library loaded, if it is, for as long as the process lives. */
static void pin_library(struct gw_library *lib) {
  static void *known;
  dlopen_fn *open = libc_function(&known, "dlopen");
  char path[PATH_MAX];
  if (!open || !gw_elf_path(lib->stem, path, sizeof path)) return;
  if (open(path, RTLD_LAZY | RTLD_NOLOAD)) __atomic_store_n(&lib->pinned, true, __ATOMIC_RELAXED);
  else clear_error();
}

/*
 * The functions that were found in a runtime's library stay valid even if the program unloads it:
 * the library is pinned before any call that could unload it. It cannot be pinned when a function
 * is found, because that must not wait for the loader (elf.h). This call waits for the loader
 * anyway.
 */
__attribute__((visibility("default"))) int dlclose(void *handle) {
  static void *known;
  dlclose_fn *real = libc_function(&known, "dlclose");
  for (size_t i = 0; i < LIBRARIES; i++) {
    if (gw_libraries[i] && !__atomic_load_n(&gw_libraries[i]->pinned, __ATOMIC_RELAXED)) pin_library(gw_libraries[i]);
  }
  return real ? real(handle) : -1;
}

static struct gw_hook *find_hook(const char *name, struct gw_library **lib) {
  for (size_t i = 0; i < LIBRARIES; i++) {
    struct gw_library *l = gw_libraries[i];
    if (!l || (strncmp(name, l->prefix, strlen(l->prefix)) != 0 && *name != '_')) continue; /* '_': C++ */
    for (size_t k = 0; k < l->count; k++) {
      if (strcmp(name, l->hooks[k].name) == 0) {
        *lib = l;
        return &l->hooks[k];
      }
    }
  }
  return NULL;
}

/* The call is to be passed on to the real function. */
#define NOT_OURS ((void *)-1)

/* Fails as the real look-up does, and sets dlerror. */
static void *not_found(const char *name) { return real_dlsym()(RTLD_NEXT, name); }

/* Whether there is a function behind a wrapper: in the search order after this library, or in the
 * runtime's library if the program has loaded it with RTLD_LOCAL. */
static bool exists(struct gw_library *lib, struct gw_hook *hook) {
  void *next = real_dlsym()(RTLD_NEXT, hook->name), *real = gw_hook_real(lib, hook);
  if (next && !real) __atomic_store_n(&hook->real, next, __ATOMIC_RELAXED);
  if (next) return true;
  bool known = real && gw_elf_within(real, lib->stem);
  if (known) clear_error();
  return known;
}

/*
 * What a look-up should return if the real one has found `real`. A wrapper replaces only the
 * runtime's own function. A program that checks whether there is a driver, or that uses
 * another library's wrapper, gets what it would get without this library.
 */
static void *wrapper_for(struct gw_library *lib, struct gw_hook *hook, void *real) {
  if (!real) return NOT_OURS; /* the real look-up is made again and sets dlerror */
  if (real == hook->wrapper) return exists(lib, hook) ? real : not_found(hook->name);
  if (!gw_elf_within(real, lib->stem)) return NOT_OURS;
  __atomic_store_n(&hook->real, real, __ATOMIC_RELAXED);
  return hook->wrapper;
}

static __attribute__((noinline)) void *find_wrapper(void *handle, const char *name, const char *version) {
  struct gw_library *lib;
  struct gw_hook *hook = name ? find_hook(name, &lib) : NULL;
  if (!hook) return NOT_OURS;
  /* RTLD_NEXT finds the real function from here, and this library from a library before it.
   * Both are right, unless there is no real function. */
  if (handle == RTLD_NEXT) return exists(lib, hook) ? NOT_OURS : not_found(name);
  void *real = version ? real_dlvsym()(handle, name, version) : real_dlsym()(handle, name);
  return wrapper_for(lib, hook, real);
}

/*
 * The real dlsym uses its return address to find out which library calls it. So it must be
 * reached by a tail call, as the last thing done here. A test checks that.
 */
__attribute__((visibility("default"))) void *dlsym(void *restrict handle, const char *restrict name) {
  void *ours = find_wrapper(handle, name, NULL);
  if (ours != NOT_OURS) return ours;
  return real_dlsym()(handle, name);
}

__attribute__((visibility("default"))) void *dlvsym(void *restrict handle, const char *restrict name,
                                                    const char *restrict version) {
  void *ours = find_wrapper(handle, name, version);
  if (ours != NOT_OURS) return ours;
  return real_dlvsym()(handle, name, version);
}

#define CALL_ALL(function, ...)                                                                 \
  for (size_t i = 0; i < LIBRARIES; i++) {                                                      \
    if (gw_libraries[i] && gw_libraries[i]->function) gw_libraries[i]->function(__VA_ARGS__);   \
  }

void gw_hook_forked(void) { CALL_ALL(forked) }
void gw_hook_thread_ends(void) { CALL_ALL(thread_ends) }
void gw_hook_ready(void) { CALL_ALL(ready) }
void gw_hook_expect(uint64_t at_ns) { CALL_ALL(expect, at_ns) }
