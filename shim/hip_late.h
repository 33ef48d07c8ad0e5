/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Late entry for HIP: the wait is hipStreamWaitValue32.
 *
 * Unless GPU_STREAMOPS_CP_WAIT is set, ROCm's clr carries out this wait as a kernel of one thread
 * that spins on the device, in the hardware queue that the stream shares with others. If it is set,
 * clr refuses a wait on memory like this library's, and requests enter at once. What batch work
 * gains has not been measured on AMD hardware. So it is used only if the owner asks for
 * it: GW_LATE_ON, not GW_LATE_AUTO.
 */
#ifndef GIVEWAY_HIP_LATE_H
#define GIVEWAY_HIP_LATE_H

#include "late.h"

#pragma GCC visibility push(hidden)

/* Before a command, if gw_late_wanted says so. stream is HIP's handle. */
void gw_hip_late(enum gw_late_kind kind, void *ctx, void *stream, uint64_t key);

/* Returns false if a capture is in progress. Otherwise none begins until gw_hip_unlock_captures. In
 * hip.c. */
bool gw_hip_lock_captures(void);
void gw_hip_unlock_captures(void);

/* To be called with the result of each of this library's own calls of HIP; returns it. In hip.c. */
int gw_hip_own(int result);

/* A context is about to be destroyed. */
void gw_hip_late_forget(void *ctx);

#pragma GCC visibility pop

#endif
