/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate. Every runtime adapter calls it around the runtime's calls that put work on a
 * device. The gate itself knows nothing of CUDA, HIP, OpenCL or Level Zero.
 *
 *     gw_pass p;
 *     if (!gw_enter(&p, &cuda, ctx, stream)) return real(...);   // not gated
 *     r = real(...);
 *     gw_leave(&p, r == CUDA_SUCCESS);
 *
 * gw_enter may wait, for the gate or for the bound. The adapter then makes the real call on
 * the caller's thread at once: nothing is copied, deferred or reordered.
 */
#ifndef GIVEWAY_GATE_H
#define GIVEWAY_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

#pragma GCC visibility push(hidden)

/*
 * A runtime, as its adapter presents it to the gate. A mark is put on a stream behind all
 * that was launched on it so far, and can be queried without waiting. mark, reached and drop
 * are called without any lock of the adapter, on a thread that has just called the runtime
 * with the same context.
 */
struct gw_runtime {
  const char *name;
  uint32_t bit; /* in gw_page.runtimes */
  /* Puts a mark on the stream. Returns NULL if that is not possible. */
  void *(*mark)(void *ctx, void *stream);
  /* 1: the mark is reached. 0: not yet, or it cannot be asked now. Negative: it will never be known,
   * and the mark counts as reached. */
  int (*reached)(void *mark);
  /* Frees a mark, reached or not. */
  void (*drop)(void *mark);
  /* Whether this thread may put marks on the stream now: not during a capture. */
  int (*markable)(void *ctx, void *stream);
  /* Whether all commands of the stream are done: 1, 0, or negative if unknown. It neither waits
   * nor puts anything on the stream. NULL if the runtime cannot tell. */
  int (*idle)(void *ctx, void *stream);
  /* Whether the priority of the stream is above the default: 1, 0, or negative if unknown. Calls no
   * function that waits. NULL if the runtime has no priorities: see class.h. */
  int (*high)(void *ctx, void *stream);
};

/* One command on its way through the gate. Opaque to adapters. */
typedef struct {
  const struct gw_runtime *runtime;
  void *ctx, *stream;
  bool entering; /* it is counted in gw_act.entering */
  bool started;  /* it is counted in gw_act.started */
  bool high;     /* its stream is one of higher priority: see class.h */
  int slot;      /* the stream's slot in gw_act.streams; negative: none */
} gw_pass;

/*
 * The page, at an address that never changes: the daemon's page is mapped over it, and
 * ordinary memory again when the daemon has gone. So no thread can use an old page. Without a
 * daemon its gate is GW_NO_PAGE.
 */
#if defined(__x86_64__) || defined(__i386__)
#define GW_MAP_UNIT 4096
#else
#define GW_MAP_UNIT 65536 /* the largest page size of other architectures */
#endif
union gw_mapping {
  struct gw_page page;
  struct gw_status status;
  char unit[GW_MAP_UNIT];
};
extern union gw_mapping gw_shared;
#define GW_NO_PAGE 2u

bool gw_enter_slow(gw_pass *p);

/* gw_enter is called before, gw_leave after a call that puts one command on a stream.
 * gw_enter returns false if the command is not gated; gw_leave is not called then. */
static inline bool gw_enter(gw_pass *p, const struct gw_runtime *rt, void *ctx, void *stream) {
  *p = (gw_pass){.runtime = rt, .ctx = ctx, .stream = stream};
  /* One load reads gate and bound: zero means open and no bound. The other word is in the same line. */
  typedef uint64_t __attribute__((may_alias)) both;
  both now = __atomic_load_n((const both *)&gw_shared.page.gate, __ATOMIC_RELAXED);
  uint32_t classes = __atomic_load_n(&gw_shared.page.stream_classes, __ATOMIC_RELAXED);
  return __builtin_expect((now | classes) == 0, 1) || gw_enter_slow(p);
}
void gw_leave(gw_pass *p, bool launched);

/* Instead of gw_leave, if the call has waited until the command was done. */
void gw_leave_done(gw_pass *p, bool launched);

/*
 * How an adapter reports completed work. gw_ticket is taken before a call that waits, and
 * gw_done called after it: all commands that the stream was given before the ticket are done.
 * A stream of GW_ALL means all streams of the context, and a ticket for GW_ALL is valid for
 * each of them. A ctx of GW_ALL means any context that has the stream; the stream's handle
 * must be a pointer then.
 */
#define GW_ALL ((void *)-1)
uint64_t gw_ticket(const struct gw_runtime *rt, void *ctx, void *stream);

/* After gw_leave: a ticket for one command more than `before`, a ticket of the stream from before the
 * call or 0 if there was none. Unlike a new ticket it leaves out what other threads have put on the
 * stream since. */
uint64_t gw_ticket_with(const gw_pass *p, uint64_t before);
void gw_done(const struct gw_runtime *rt, void *ctx, void *stream, uint64_t ticket);

/* After gw_done, if the program has waited and not only asked. */
void gw_waited(void);

/* Whether all that the ticket of a single stream stands for is known to be done. */
bool gw_known_done(const struct gw_runtime *rt, void *ctx, void *stream, uint64_t ticket);

/* A stream is about to be destroyed, by a call that does not wait for its commands. A ctx of GW_ALL
 * means any context that has the stream. On return no thread uses the stream for a mark. A capture of the
 * stream ends only if the call succeeds: see gw_capture_gone. */
void gw_destroying(const struct gw_runtime *rt, void *ctx, void *stream);

/* The commands of a stream are done and it is about to be destroyed; with stream GW_ALL a context;
 * with both GW_ALL every context. On return all its marks are dropped and none is in use. */
void gw_forget(const struct gw_runtime *rt, void *ctx, void *stream);

/* A stream was destroyed, and its commands are done. Calls nothing of the runtime. */
void gw_gone(const struct gw_runtime *rt, void *ctx, void *stream);

/*
 * Around a call that may destroy a stream, with stream GW_ALL a context, or with both GW_ALL any
 * context. gw_suspend drops all its marks, but counts nothing as done, except on streams that were
 * destroyed before. If the call has destroyed it, gw_forget_before forgets the streams on which
 * nothing was launched since: a new one may have its handle. A single stream is dying between the two:
 * the call waits for its commands, and no thread calls the runtime about it. gw_forget_before is called
 * then in any case.
 */
uint64_t gw_suspend(const struct gw_runtime *rt, void *ctx, void *stream);
void gw_forget_before(const struct gw_runtime *rt, void *ctx, void *stream, uint64_t ticket);

/* Gives the daemon a hint. Returns 0, or -1 without a daemon. */
int gw_hint(uint32_t kind, int64_t value);

/* Writes the hints that still hold to a new page. With gw_act.lock held. */
void gw_hint_republish(void);

/* In the child of a fork: forgets all hints. */
void gw_hint_forked(void);

/* Writes a line to stderr, once per process for each message, if GIVEWAY_VERBOSE is set. */
void gw_log(const char *message);

/* The same even without GIVEWAY_VERBOSE. */
void gw_log_always(const char *message);

/* When the library is loaded: remembers which file stderr is. Messages are written only while it is
 * that file. */
void gw_log_remember_stderr(void);

#pragma GCC visibility pop

#endif
