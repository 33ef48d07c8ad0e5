/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/* Our dlsym and dlvsym, and what they know of libraries. */
#define _GNU_SOURCE
#include "hook.h"

#include <dlfcn.h>
#include <string.h>

#include "elf.h"
#include "gate.h"

/* An adapter that is not linked in has no table. */
extern struct gw_library gw_cuda_library __attribute__((weak, visibility("hidden")));
extern struct gw_library gw_hip_library __attribute__((weak, visibility("hidden")));
extern struct gw_library gw_opencl_library __attribute__((weak, visibility("hidden")));

static struct gw_library *const gw_libraries[] = {&gw_cuda_library, &gw_hip_library, &gw_opencl_library};
#define LIBRARIES (sizeof gw_libraries / sizeof *gw_libraries)

typedef void *dlsym_fn(void *, const char *);
typedef void *dlvsym_fn(void *, const char *, const char *);
typedef void *dlopen_fn(const char *, int);
typedef char *dlerror_fn(void);

/* The C library's own; found at the first use, and again until found. */
static void *own_function(void **known, const char *name) {
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
  dlsym_fn *f = own_function(&known, "dlsym");
  return f ? f : no_dlsym;
}

static dlvsym_fn *real_dlvsym(void) {
  static void *known;
  dlvsym_fn *f = own_function(&known, "dlvsym");
  return f ? f : no_dlvsym;
}

void *gw_real_dlsym(void *handle, const char *name) { return real_dlsym()(handle, name); }

/* What we did not find is no error of the program's. */
static void no_error(void) {
  static void *known;
  dlerror_fn *error = own_function(&known, "dlerror");
  if (error) error();
}

/* A handle of the library, if it is loaded. We never close it: what we have found stays,
 * whoever unloads what it has loaded. */
static void *pin(struct gw_library *lib) {
  static void *known;
  dlopen_fn *open = own_function(&known, "dlopen");
  if (lib->name) lib->name();
  void *handle = open ? open(lib->file, RTLD_LAZY | RTLD_NOLOAD) : NULL;
  if (handle) lib->pinned = true;
  else no_error();
  return handle;
}

void *gw_library_symbol(struct gw_library *lib, const char *name) {
  void *found = real_dlsym()(RTLD_NEXT, name);
  if (found && lib->pinned) return found;
  /* Loaded by somebody for itself alone: not among those that come after ours. */
  void *handle = pin(lib);
  if (found) return found;
  found = handle ? real_dlsym()(handle, name) : NULL;
  if (!found) no_error();
  return found;
}

void *gw_hook_find(struct gw_library *lib, struct gw_hook *hook) {
  void *real = gw_library_symbol(lib, hook->name);
  if (real) __atomic_store_n(&hook->real, real, __ATOMIC_RELAXED);
  return real;
}

static struct gw_hook *hook_named(const char *name, struct gw_library **lib) {
  for (size_t i = 0; i < LIBRARIES; i++) {
    struct gw_library *l = gw_libraries[i];
    if (!l || strncmp(name, l->prefix, strlen(l->prefix)) != 0) continue;
    for (size_t k = 0; k < l->count; k++) {
      if (strcmp(name, l->hooks[k].name) == 0) {
        *lib = l;
        return &l->hooks[k];
      }
    }
  }
  return NULL;
}

/* Leave it to the real one. */
#define NOT_OURS ((void *)-1)

/* Nothing, with the error that goes with it. */
static void *none(const char *name) { return real_dlsym()(RTLD_NEXT, name); }

/*
 * What a look-up by name should give, when the real one has found `real`. Ours
 * only in place of the library's own: a program that asks whether there is a
 * driver, and a wrapper of somebody else's, get what they would get without us.
 */
static void *ours_for(struct gw_library *lib, struct gw_hook *hook, void *real) {
  if (!real) return NOT_OURS; /* and asked again, for the error */
  if (real == hook->wrapper) return gw_hook_real(lib, hook) ? real : none(hook->name);
  if (!gw_elf_within(real, lib->stem)) return NOT_OURS;
  if (!lib->pinned) pin(lib);
  __atomic_store_n(&hook->real, real, __ATOMIC_RELAXED);
  return hook->wrapper;
}

static __attribute__((noinline)) void *look_up(void *handle, const char *name, const char *version) {
  struct gw_library *lib;
  struct gw_hook *hook = name ? hook_named(name, &lib) : NULL;
  if (!hook) return NOT_OURS;
  /* After us comes the real one, before us come we, as it should be; unless there
   * is no real one. */
  if (handle == RTLD_NEXT) return gw_hook_real(lib, hook) ? NOT_OURS : none(name);
  void *real = version ? real_dlvsym()(handle, name, version) : real_dlsym()(handle, name);
  return ours_for(lib, hook, real);
}

/*
 * The real dlsym looks at the address it returns to, to know who asks. So the
 * call of it must be the last thing done here, a jump; the tests see to it.
 */
__attribute__((visibility("default"))) void *dlsym(void *restrict handle, const char *restrict name) {
  void *ours = look_up(handle, name, NULL);
  if (ours != NOT_OURS) return ours;
  return real_dlsym()(handle, name);
}

__attribute__((visibility("default"))) void *dlvsym(void *restrict handle, const char *restrict name,
                                                    const char *restrict version) {
  void *ours = look_up(handle, name, version);
  if (ours != NOT_OURS) return ours;
  return real_dlvsym()(handle, name, version);
}

#define TELL(function, ...)                                                                     \
  for (size_t i = 0; i < LIBRARIES; i++) {                                                      \
    if (gw_libraries[i] && gw_libraries[i]->function) gw_libraries[i]->function(__VA_ARGS__);   \
  }

void gw_hook_forked(void) { TELL(forked) }
void gw_hook_ready(uint64_t at_ns) { TELL(ready, at_ns) }
void gw_hook_expect(uint64_t at_ns) { TELL(expect, at_ns) }
