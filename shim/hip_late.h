/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Late entry for HIP: the wait is hipStreamWaitValue32.
 *
 * Unless GPU_STREAMOPS_CP_WAIT is set, ROCm's clr carries out this wait as a kernel of one thread
 * that spins on the device, in the hardware queue that the stream shares with others. What batch
 * work gains by it has not been measured on AMD hardware. So it is used only if the owner asks for
 * it: GW_LATE_ON, not GW_LATE_AUTO.
 */
#ifndef GIVEWAY_HIP_LATE_H
#define GIVEWAY_HIP_LATE_H

#include "late.h"

#pragma GCC visibility push(hidden)

/* Before a command, if gw_late_wanted says so. stream is HIP's handle. */
void gw_hip_late(enum gw_late_kind kind, void *ctx, void *stream, uint64_t key);

#pragma GCC visibility pop

#endif
