/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the CUDA adapter share. No header of CUDA's is needed: all
 * handles are pointers, all results ints. */
#ifndef GIVEWAY_CUDA_H
#define GIVEWAY_CUDA_H

#include "gate.h"
#include "hook.h"

#define CUDA_SUCCESS 0
#define CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND 302 /* what we say where the driver has no such call */
#define CUDA_ERROR_NOT_READY 600

#define EXPORTED __attribute__((visibility("default")))

#pragma GCC visibility push(hidden)

extern const struct gw_runtime cuda_runtime;
extern struct gw_library gw_cuda_library;

enum {
#define ASYNC(symbol, ...) HOOK_##symbol, HOOK_##symbol##_ptsz,
#define SYNC(symbol, ...) HOOK_##symbol, HOOK_##symbol##_ptds,
#define HOST SYNC
#define OLD_ASYNC(symbol, ...) HOOK_##symbol,
#define OLD_SYNC OLD_ASYNC
#define OLD_HOST OLD_ASYNC
#define OTHER OLD_ASYNC
#include "cuda_calls.h"
  HOOKS
};
extern struct gw_hook cuda_hooks[HOOKS];

/* The driver's own function of that name, or NULL; of the type that the caller says. */
#define REAL(symbol) gw_hook_real(&gw_cuda_library, &cuda_hooks[HOOK_##symbol])

/* Calls of the driver's that we make for ourselves. NULL where it has none. */
struct cuda_driver {
  int (*cuCtxGetCurrent)(void **ctx);
  int (*cuEventCreate)(void **event, unsigned flags);
  int (*cuEventDestroy_v2)(void *event);
  int (*cuEventRecord)(void *event, void *stream);
  int (*cuEventQuery)(void *event);
  int (*cuStreamIsCapturing)(void *stream, int *status);
  int (*cuThreadExchangeStreamCaptureMode)(int *mode);
};
const struct cuda_driver *cuda_driver(void);

/* The context of this thread, or NULL. */
void *cuda_context(void);

/* The context that a command on the stream is for: this thread's. For a stream that
 * was made it is remembered, until something is destroyed. */
void *cuda_context_for(void *stream);
extern uint32_t cuda_destroyed; /* how often */
static inline void cuda_something_goes(void) { __atomic_add_fetch(&cuda_destroyed, 1, __ATOMIC_RELEASE); }

/*
 * Streams as the gate knows them. The legacy default stream is one of its own.
 * A thread's own default stream has the same handle in every thread, so it goes
 * by the thread: an address of the thread's with both low bits set, which no
 * stream's handle has.
 */
#define LEGACY ((void *)1)     /* CU_STREAM_LEGACY */
#define PER_THREAD ((void *)2) /* CU_STREAM_PER_THREAD */
void *cuda_stream(void *stream, void *if_null);

/* The events of a context, or with GW_ALL of every context, are no more. */
void cuda_marks_forget(void *ctx);

/* A copy between host and device has returned: all before `ticket` on its stream
 * is done, and on the legacy stream all that streams which wait for it had too. */
void cuda_copied(void *ctx, void *stream, uint64_t ticket);

/* In the child of a fork. */
void cuda_marks_forked(void);
void cuda_events_forked(void);

#pragma GCC visibility pop

#endif
