/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate: what every runtime's adapter calls around the calls of that runtime
 * that put work on a device. It knows nothing of CUDA, HIP or OpenCL.
 *
 *     gw_pass p;
 *     if (!gw_enter(&p, &cuda, ctx, stream)) return real(...);   // not ours
 *     r = real(...);
 *     gw_leave(&p, r == CUDA_SUCCESS);
 *
 * gw_enter may wait: for the gate, or for the bound. Then the adapter makes the
 * real call on the caller's own thread, at once: nothing is copied, deferred or
 * reordered.
 */
#ifndef GIVEWAY_GATE_H
#define GIVEWAY_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

#pragma GCC visibility push(hidden)

/*
 * A runtime, as the gate sees it: the adapter contract. A mark is something put
 * behind all that was launched on a stream so far, whose end can be asked for
 * without waiting. All three are called without any lock of the adapter's held,
 * on a thread that has just called the runtime about the same context.
 */
struct gw_runtime {
  const char *name;
  uint32_t bit; /* in gw_page.runtimes */
  /* Puts a mark behind the stream's work. NULL if that cannot be done. */
  void *(*mark)(void *ctx, void *stream);
  /* 1: reached. 0: not yet. Negative: nobody will know, take it as reached. */
  int (*reached)(void *mark);
  /* Gives a mark back, reached or not. */
  void (*drop)(void *mark);
  /* Whether a thread may put marks there now: 0 while it is being captured. */
  int (*markable)(void *ctx, void *stream);
};

/* One passage of a command. Opaque to adapters. */
typedef struct {
  const struct gw_runtime *runtime;
  void *ctx, *stream;
  bool counted; /* among those that are on their way through the gate */
  bool running; /* among those of queue.c */
  int lane;     /* where it was counted; negative: nowhere */
} gw_pass;

/*
 * The page. It lies at one address for ever: the daemon's is mapped over it, and
 * ordinary memory again when the daemon is gone, so that no thread can hold an
 * old one. Without a daemon its gate is GW_NO_PAGE.
 */
#if defined(__x86_64__) || defined(__i386__)
#define GW_MAP_UNIT 4096
#else
#define GW_MAP_UNIT 65536 /* the largest page of the other machines */
#endif
union gw_slot {
  struct gw_page page;
  struct gw_status board;
  char unit[GW_MAP_UNIT];
};
extern union gw_slot gw_shared;
#define GW_NO_PAGE 2u

bool gw_enter_slowly(gw_pass *p);

/* Before and after a call that puts one command on a stream. */
static inline bool gw_enter(gw_pass *p, const struct gw_runtime *rt, void *ctx, void *stream) {
  *p = (gw_pass){.runtime = rt, .ctx = ctx, .stream = stream};
  /* gate and bound in one load: open, and no bound. */
  typedef uint64_t __attribute__((may_alias)) both;
  both now = __atomic_load_n((const both *)&gw_shared.page.gate, __ATOMIC_RELAXED);
  return __builtin_expect(now == 0, 1) || gw_enter_slowly(p);
}
void gw_leave(gw_pass *p, bool launched);

/* In place of gw_leave, where the call has waited for the command's end. */
void gw_leave_done(gw_pass *p, bool launched);

/*
 * What an adapter learns of the end of work: all that this stream was given
 * before `ticket` was taken is done. Take the ticket before the waiting call,
 * tell after it. stream GW_ALL means every stream of the context; a ticket of
 * GW_ALL is good for each of its streams too. ctx GW_ALL means whichever has the
 * stream, if its handle is a pointer.
 */
#define GW_ALL ((void *)-1)
uint64_t gw_ticket(const struct gw_runtime *rt, void *ctx, void *stream);
void gw_done(const struct gw_runtime *rt, void *ctx, void *stream, uint64_t ticket);

/* A stream, or with GW_ALL a context, or with GW_ALL twice every context, is no
 * more. No mark of it is in use when this returns; they have been dropped. */
void gw_forget(const struct gw_runtime *rt, void *ctx, void *stream);

/* A capture begins (+1) or ends (-1) somewhere in the process. */
void gw_capturing(int change);

/* A hint of the program's own. 0, or -1 where there is no daemon to take it. */
int gw_hint(uint32_t kind, int64_t value);

/* The real dlsym, whatever this library does to it. */
void *gw_real_dlsym(void *handle, const char *name);

/* One line to stderr, once per process for each reason, if GIVEWAY_VERBOSE is set. */
void gw_say(const char *reason);

#pragma GCC visibility pop

#endif
