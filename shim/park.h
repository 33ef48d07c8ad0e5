/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pre-preemption: taking the device ahead of an arrival.
 *
 * A switch to the program's context takes the hardware some 165 us (H200), in
 * which its request waits. If it is known when the next request will come, two
 * kernels of one thread each are launched a little before: the hardware
 * switches to them, they wait for a word of host memory, and the request finds
 * its context on the device. Two, because one that runs with nothing behind it
 * is taken for the end of the work, and the hardware switches away again.
 *
 * They are on a stream of our own that orders nothing with the program's. The
 * first launch of the program lets them go, as does any call of its that could
 * wait for them, and whatever happens they end by themselves after a time.
 */
#ifndef GIVEWAY_PARK_H
#define GIVEWAY_PARK_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* The generation of kernels that hold the device now; 0: none. */
extern uint32_t cuda_parked;

/* Lets them go. arrived: because the program has launched what they waited for. */
void cuda_unpark_now(bool arrived);

/* Before a call that could wait for all of the context's work. */
static inline void cuda_unpark(void) {
  if (__builtin_expect(__atomic_load_n(&cuda_parked, __ATOMIC_RELAXED) != 0, 0)) cuda_unpark_now(false);
}

/* After the program has put a command on the device: it is that context that
 * will want it again. */
extern void *cuda_park_context;
static inline void cuda_arrived(void *ctx) {
  if (__builtin_expect(__atomic_load_n(&cuda_park_context, __ATOMIC_RELAXED) != ctx, 0)) {
    __atomic_store_n(&cuda_park_context, ctx, __ATOMIC_RELAXED);
  }
  if (__builtin_expect(__atomic_load_n(&cuda_parked, __ATOMIC_RELAXED) != 0, 0)) cuda_unpark_now(true);
}

/* The program says when its next request will come; 0: it does not know. */
void cuda_park_expect(uint64_t at_ns);

/* The program has become ready: an arrival, to predict the next from. */
void cuda_park_ready(uint64_t at_ns);

/* A context, or with GW_ALL every one, is about to go. */
void cuda_park_forget(void *ctx);

/* Around a call after which every context may have gone, or none: nothing is parked
 * in between. */
void cuda_park_stop(void);
void cuda_park_go_on(bool gone);

/* This program uses contexts that only one thread may have: nobody parks. */
void cuda_park_never(void);

/* A launch is about to be made, which may wait for what is parked: the first of a
 * kernel, say, if it has yet to be loaded. One that takes long lets go. */
extern uint32_t cuda_hurry;
static inline void cuda_launching(void) {
  if (__builtin_expect(__atomic_load_n(&cuda_parked, __ATOMIC_RELAXED) != 0, 0)) {
    __atomic_store_n(&cuda_hurry, 1, __ATOMIC_RELAXED);
  }
}

/* In the child of a fork. */
void cuda_park_forked(void);

#pragma GCC visibility pop

#endif
