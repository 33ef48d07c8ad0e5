/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pre-preemption: taking the device ahead of an expected arrival, by parking kernels on it.
 *
 * A switch to the process's context takes the hardware about 165 us (H200), and its request
 * waits for it. If the time of the next request is known, two kernels of one thread each are
 * launched a little before it. The hardware switches to them, they wait for a word of host
 * memory, and the request finds its context on the device. Two kernels are needed: if one
 * runs with nothing behind it, the hardware takes the context for idle and switches away.
 *
 * The parked kernels are on a stream of the library's own that is not ordered with the
 * program's streams. They are released by the program's first kernel or graph and by every call
 * that could wait for them, and in any case they end by themselves after a time. A copy or a
 * memset that only queues work leaves them: it would not keep the context on the device until the
 * kernels behind it are launched.
 */
#ifndef GIVEWAY_PARK_H
#define GIVEWAY_PARK_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* The generation of the kernels that are parked now; 0: none. */
extern uint32_t cuda_parked;

/* Releases the parked kernels. hit: the program has launched the work they waited for. */
void cuda_unpark_now(bool hit);

/* Called before a call that could wait for all work of the context. */
static inline void cuda_unpark(void) {
  if (__builtin_expect(__atomic_load_n(&cuda_parked, __ATOMIC_RELAXED) != 0, 0)) cuda_unpark_now(false);
}

/* Called before a launch. A launch may wait for the parked kernels, for example the first
 * launch of a kernel that is not loaded yet. If it takes long, the parking thread releases
 * them. kernel: it is a kernel or a graph. */
extern uint32_t cuda_launch_pending, cuda_predicting;
void cuda_note_launch(void);
static inline void cuda_launching(bool kernel) {
  if (__builtin_expect(__atomic_load_n(&cuda_parked, __ATOMIC_RELAXED) != 0, 0)) {
    __atomic_store_n(&cuda_launch_pending, 1, __ATOMIC_RELAXED);
  }
  if (__builtin_expect(__atomic_load_n(&cuda_predicting, __ATOMIC_RELAXED) != 0, 0) && kernel) cuda_note_launch();
}

/* Called after the program has put a command on the device. If it is a kernel or a graph, the next
 * kernels are parked in that context. */
extern void *cuda_park_context;
static inline void cuda_launched(void *ctx, bool kernel) {
  if (__builtin_expect(__atomic_load_n(&cuda_park_context, __ATOMIC_RELAXED) != ctx, 0) && kernel) {
    __atomic_store_n(&cuda_park_context, ctx, __ATOMIC_RELAXED);
  }
  if (__builtin_expect(__atomic_load_n(&cuda_parked, __ATOMIC_RELAXED) != 0, 0)) {
    if (kernel) cuda_unpark_now(true);
    else __atomic_store_n(&cuda_launch_pending, 0, __ATOMIC_RELAXED);
  }
}

/* The program says when its next request will arrive; 0: unknown. */
void cuda_park_expect(uint64_t at_ns);

/* The process has become ready. */
void cuda_park_ready(void);

/* A context, or with GW_ALL every context, is about to be destroyed. */
void cuda_park_forget(void *ctx);

/* Called around a call that may destroy contexts: nothing is parked in between. For each context
 * that the call has destroyed, cuda_park_gone is called before cuda_park_resume. */
void cuda_park_stop(void);
void cuda_park_gone(void *ctx);
void cuda_park_resume(void);

/* The program uses contexts that only one thread may use: parking is switched off. */
void cuda_park_disable(void);

/* In the child of a fork. */
void cuda_park_forked(void);

#pragma GCC visibility pop

#endif
