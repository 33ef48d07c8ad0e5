/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

/* The CUDA driver's calls that destroy contexts, or may: a primary context has several users, and is
 * destroyed when the last of them releases it. None of these calls is ever held. */
#include <stddef.h>

#include "cuda.h"
#include "late.h"
#include "park.h"
#include "sys.h"

/* The context is about to be destroyed. */
static void forget_context(void *ctx) {
  cuda_count_destroyed();
  cuda_late_forget(ctx);
  cuda_park_forget(ctx);
  gw_forget(&cuda_runtime, ctx, GW_ALL);
  cuda_marks_forget(ctx);
  cuda_events_context_gone(ctx);
}

#define DESTROY_CONTEXT(symbol)          \
  EXPORTED int symbol(void *ctx) {       \
    forget_context(ctx);                 \
    CALL(symbol, (void *), (ctx));       \
    return result;                       \
  }
DESTROY_CONTEXT(cuCtxDestroy)
DESTROY_CONTEXT(cuCtxDestroy_v2)

/*
 * Around a call that may destroy a context, or with GW_ALL any context. Whether it does is known
 * only afterwards. Until then nothing of the library's own is used in the context, and its commands
 * are still in flight: most calls leave it to its other users, and its kernels run on.
 */
static uint64_t suspend(void *ctx) {
  gw_late_may_wait();
  cuda_park_stop();
  uint64_t ticket = gw_suspend(&cuda_runtime, ctx, GW_ALL);
  cuda_marks_suspend(ctx);
  cuda_count_destroyed();
  return ticket;
}

/* The primary context of each device, as the driver has last returned it; NULL: none is known. */
#define DEVICES 64
static void *primaries[DEVICES];

static void context_gone(void *ctx, uint64_t ticket) {
  for (int i = 0; i < DEVICES; i++) { /* another context may get its handle */
    void *known = ctx;
    __atomic_compare_exchange_n(&primaries[i], &known, NULL, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }
  cuda_marks_resume(ctx, true);
  cuda_events_context_gone(ctx);
  cuda_park_gone(ctx);
  cuda_late_forget(ctx);
  cuda_count_destroyed();
  gw_forget_before(&cuda_runtime, ctx, GW_ALL, ticket);
}

static void resume(void *ctx, uint64_t ticket, bool gone) {
  if (gone) context_gone(ctx, ticket);
  else cuda_marks_resume(ctx, false);
  cuda_park_resume();
}

/* It has as many users as cuCtxCreate and cuCtxAttach have returned it, and is current here until it
 * is destroyed. */
EXPORTED int cuCtxDetach(void *ctx) {
  int (*real)(void *) = REAL(cuCtxDetach);
  uint64_t ticket = suspend(ctx);
  int result = real ? real(ctx) : CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;
  resume(ctx, ticket, result == CUDA_SUCCESS && cuda_context() != ctx);
  return result;
}

EXPORTED int cuDevicePrimaryCtxRetain(void **ctx, int device) {
  CALL(cuDevicePrimaryCtxRetain, (void **, int), (ctx, device));
  bool known = result == CUDA_SUCCESS && ctx && device >= 0 && device < DEVICES;
  if (known) __atomic_store_n(&primaries[device], *ctx, __ATOMIC_RELAXED);
  return result;
}

/* GW_ALL if the program has it from a call that the library has not seen. */
static void *primary_of(int device) {
  void *ctx = device >= 0 && device < DEVICES ? __atomic_load_n(&primaries[device], __ATOMIC_RELAXED) : NULL;
  return ctx ? ctx : GW_ALL;
}

static bool is_inactive(int device) {
  unsigned flags;
  int active = 1;
  const struct cuda_driver *d = cuda_driver();
  return d->cuDevicePrimaryCtxGetState && d->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && !active;
}

/* `gone` says whether a call that has succeeded has destroyed the context. */
#define END_PRIMARY(symbol, gone)                                                    \
  EXPORTED int symbol(int device) {                                                  \
    int(*real)(int) = REAL(symbol);                                                  \
    void *ctx = primary_of(device);                                                  \
    bool active = !is_inactive(device);                                              \
    uint64_t ticket = suspend(ctx);                                                  \
    int result = real ? real(device) : CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;    \
    resume(ctx, ticket, result == CUDA_SUCCESS && active && (gone));                 \
    return result;                                                                   \
  }
END_PRIMARY(cuDevicePrimaryCtxRelease, is_inactive(device))
END_PRIMARY(cuDevicePrimaryCtxRelease_v2, is_inactive(device))
END_PRIMARY(cuDevicePrimaryCtxReset, true)
END_PRIMARY(cuDevicePrimaryCtxReset_v2, true)

/*
 * Green contexts, each of a part of a device. What was made of one ends with it: a context, which
 * can be current in one thread only, and streams.
 */
#define GREENS 128
static struct made {
  void *green, *ctx, *stream; /* ctx or stream is NULL */
} made[GREENS];
static bool made_more; /* the table was full */
static gw_lock_t lock;

static void remember(struct made m) {
  gw_lock(&lock);
  int i = 0;
  while (i < GREENS && made[i].green) i++;
  if (i < GREENS) made[i] = m;
  else made_more = true;
  gw_unlock(&lock);
}

void cuda_green_forget(void *stream) {
  gw_lock(&lock);
  for (int i = 0; i < GREENS; i++) {
    if (made[i].stream == stream) made[i] = (struct made){0};
  }
  gw_unlock(&lock);
}

/* Takes something that was made of the green context from the table. */
static struct made take(void *green) {
  struct made m = {0};
  gw_lock(&lock);
  for (int i = 0; green && !m.green && i < GREENS; i++) {
    if (made[i].green != green) continue;
    m = made[i];
    made[i] = (struct made){0};
  }
  gw_unlock(&lock);
  return m;
}

EXPORTED int cuCtxFromGreenCtx(void **ctx, void *green) {
  cuda_park_disable();
  CALL(cuCtxFromGreenCtx, (void **, void *), (ctx, green));
  if (result == CUDA_SUCCESS && ctx) remember((struct made){.green = green, .ctx = *ctx});
  return result;
}

EXPORTED int cuGreenCtxStreamCreate(void **stream, void *green, unsigned flags, int priority) {
  CALL(cuGreenCtxStreamCreate, (void **, void *, unsigned, int), (stream, green, flags, priority));
  if (result == CUDA_SUCCESS && stream) {
    cuda_green_stream_created(*stream);
    remember((struct made){.green = green, .stream = *stream});
  }
  return result;
}

/* It is also a user of the device's primary context. */
EXPORTED int cuGreenCtxDestroy(void *green) {
  for (struct made m; (m = take(green)).green;) {
    if (m.ctx) forget_context(m.ctx);
    else gw_forget(&cuda_runtime, GW_ALL, m.stream);
  }
  uint64_t ticket = suspend(GW_ALL);
  int (*real)(void *) = REAL(cuGreenCtxDestroy);
  int result = real ? real(green) : CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;
  for (int i = 0; i < DEVICES && result == CUDA_SUCCESS; i++) {
    void *ctx = __atomic_load_n(&primaries[i], __ATOMIC_RELAXED);
    if (ctx && is_inactive(i)) context_gone(ctx, ticket);
  }
  resume(GW_ALL, ticket, result == CUDA_SUCCESS && made_more);
  return result;
}

void cuda_contexts_forked(void) {
  lock = (gw_lock_t){0};
  __builtin_memset(primaries, 0, sizeof primaries);
  __builtin_memset(made, 0, sizeof made);
  made_more = false;
}
