/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two parts of the Level Zero adapter share: the streams (command queues and immediate
 * command lists) and the marks on them. levelzero.c has the wrappers.
 */
#ifndef GIVEWAY_LEVELZERO_H
#define GIVEWAY_LEVELZERO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gate.h"
#include "hook.h"

#pragma GCC visibility push(hidden)

enum { ZE_SUCCESS = 0, ZE_NOT_READY = 1, ZE_UNSUPPORTED = 0x78000003 };

/* ze_command_queue_desc_t, which describes immediate lists too. */
struct gw_ze_queue_desc {
  uint32_t type;
  const void *next;
  uint32_t ordinal, index, flags, mode, priority;
};

/* A command queue or an immediate list. Regular lists are not streams. */
struct gw_ze_stream {
  void *handle; /* NULL: the entry is free. Accessed atomically */
  uint32_t users;
  bool is_list, in_order;
  bool waits; /* its calls return when the work is done */
  void *context, *device;
  uint32_t ordinal;
  const char *thread; /* of a list: the only thread that has used it; NULL: none. Accessed atomically */
  /* Of a list that is not in order; only threads that append to it access them. */
  void *cover; /* once this event is signalled, all commands so far are done; NULL: there is none */
  bool fresh;  /* the next command starts when all commands so far are done */
};

extern struct gw_library gw_levelzero_library;
extern const struct gw_runtime gw_levelzero;

/* A function of the loader itself, never a wrapper, or NULL. */
void *gw_ze_function(void **cache, const char *name);
#define GW_ZE_FUNCTION(name, parameters)                                                                     \
  typedef int32_t name##_fn parameters;                                                                      \
  static inline name##_fn *real_##name(void) {                                                               \
    static void *cache;                                                                                      \
    return (name##_fn *)gw_ze_function(&cache, #name);                                                       \
  }

/* Follows a stream from its creation on. A stream for which there is no room is not held. */
void gw_ze_add(void *handle, bool is_list, void *context, void *device, const struct gw_ze_queue_desc *desc);

/* The stream of a handle, or NULL. The caller is in a call of the program that uses the handle, so
 * the program does not destroy it. */
struct gw_ze_stream *gw_ze_find(const void *handle);

/* The same, in a call that uses the stream. */
struct gw_ze_stream *gw_ze_use(const void *handle);

/* Calls f for each stream, which is not destroyed meanwhile. */
void gw_ze_each(void (*f)(struct gw_ze_stream *s));

/* Before a stream is destroyed: forgets it, and waits until the device does not use what the marks
 * on it need. That is soon, because the program has waited for its own work; if not, it is not
 * freed. */
void gw_ze_remove(void *handle);

/* Before a context is destroyed: frees the events for marks that were created in it. */
void gw_ze_context_ends(void *context);

/* Whether all commands of a stream are done: 1, 0, or negative if unknown, as of a list that other
 * threads use. */
int gw_ze_idle(struct gw_ze_stream *s);

/* In the child of a fork. */
void gw_ze_streams_forked(void);

#pragma GCC visibility pop

#endif
