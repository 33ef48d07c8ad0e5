/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the CUDA adapter. It uses no CUDA header: all handles are pointers,
 * all results are ints. */
#ifndef GIVEWAY_CUDA_H
#define GIVEWAY_CUDA_H

#include "gate.h"
#include "hook.h"

#define CUDA_SUCCESS 0
#define CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND 302 /* returned where the driver has no such function */
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

/* The driver's function of that name, or NULL. The caller gives it its type. */
#define REAL(symbol) gw_hook_real(&gw_cuda_library, &cuda_hooks[HOOK_##symbol])

/* In a wrapper: makes the driver's call, whose result is `result` then. */
#define CALL(symbol, types, args)                                \
  int(*real) types = REAL(symbol);                               \
  if (!real) return CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;   \
  int result = real args

/* Driver functions that the library calls for itself. NULL if the driver has none. */
struct cuda_driver {
  int (*cuCtxGetCurrent)(void **ctx);
  int (*cuEventCreate)(void **event, unsigned flags);
  int (*cuEventDestroy_v2)(void *event);
  int (*cuEventRecord)(void *event, void *stream);
  int (*cuEventQuery)(void *event);
  int (*cuStreamIsCapturing)(void *stream, int *status);
  int (*cuStreamQuery)(void *stream);
  int (*cuStreamGetPriority)(void *stream, int *priority);
  int (*cuThreadExchangeStreamCaptureMode)(int *mode);
  int (*cuDevicePrimaryCtxGetState)(int device, unsigned *flags, int *active);
};
const struct cuda_driver *cuda_driver(void);

/* The current context of this thread, or NULL. */
void *cuda_context(void);

/* The context of a command on the stream. A copy may be put on a stream of another context than the current
 * one; a created stream has the context in which it was created, if that is known, and it is cached until a
 * stream or context is destroyed. */
void *cuda_context_for(void *stream);

/* The context in which a stream was created; NULL: unknown. */
void *cuda_context_of(void *stream);

extern uint32_t cuda_destroyed; /* how many were destroyed */
static inline void cuda_count_destroyed(void) { __atomic_add_fetch(&cuda_destroyed, 1, __ATOMIC_RELEASE); }

/*
 * How the gate identifies streams. The legacy default stream is LEGACY. The per-thread default
 * stream has the same handle in every thread, so its key is an address in the thread with
 * both low bits set, which no stream handle has.
 */
#define LEGACY ((void *)1)     /* CU_STREAM_LEGACY */
#define PER_THREAD ((void *)2) /* CU_STREAM_PER_THREAD */
void *cuda_stream(void *stream, void *if_null);

/* The driver's handle for a stream key. NULL for another thread's default stream. */
void *cuda_driver_handle(void *stream);

/* Around calls of the library's own, which belong to no capture: chooses the relaxed mode for this
 * thread, and goes back to the mode that it returned. */
int cuda_leave_captures(void);
void cuda_restore_captures(int mode);

/* Forgets the events of a context, or with GW_ALL of every context, which is about to be
 * destroyed. */
void cuda_marks_forget(void *ctx);

/* Around a call that may destroy the context: its events that are kept for later marks are not used
 * in between. `gone` says whether the call did. */
void cuda_marks_suspend(void *ctx);
void cuda_marks_resume(void *ctx, bool gone);

/* A stream is destroyed, which may be of a green context. */
void cuda_green_forget(void *stream);

/* An event is recorded by a call, and it is not known behind which commands of which stream. */
void cuda_event_recorded_elsewhere(void *event);

/* A stream was created: in the current context, or for a green context. */
void cuda_stream_created(void *stream, unsigned flags);
void cuda_green_stream_created(void *stream);

/* A context, or with GW_ALL every context, ends: forgets which streams of it are blocking. */
void cuda_events_context_gone(void *ctx);

/* A copy between host and device has waited: all commands before `ticket` on its stream are
 * done. On the legacy stream those on all blocking streams are done too. */
void cuda_copied(void *ctx, void *stream, uint64_t ticket);

/* A copy of so much host memory to the device takes the data with it: the call need not wait, not even
 * without a stream. */
#define CUDA_STAGED_BYTES 65536

/* What is known of a copy when its call, one without a stream, returns. */
enum cuda_copy {
  CUDA_COPY_RUNS,  /* nothing */
  CUDA_COPY_TAKEN, /* it has taken its data, and takes next to no time */
  CUDA_COPY_OVER,  /* it is done, and so are the commands ahead of it */
};
enum cuda_copy cuda_copy_of(int hook, const uintptr_t *arguments);

/* Late entry, before a command that is launched by the hook's call with these arguments. */
void cuda_late(int hook, const gw_pass *pass, const uintptr_t *arguments);

/* A context, or with GW_ALL every context, is about to be destroyed. */
void cuda_late_forget(void *ctx);

/* This thread ends, and its default stream with it. */
void cuda_thread_ends(void);

/* In the child of a fork. */
void cuda_marks_forked(void);
void cuda_events_forked(void);
void cuda_contexts_forked(void);

#pragma GCC visibility pop

#endif
