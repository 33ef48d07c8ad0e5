/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Level Zero's calls that append work to a command list, from version 1.0 to 1.17, one row each.
 * On an immediate list they put work on the device; on a regular list they only record it.
 *
 *     CALL(name, events, parameters, arguments)
 *
 * The list is always l, the event that is signalled e, and the events to wait for n and w; events
 * is (e, n, w), or (NULL, 0, NULL) if the call has none. Handles are pointers and ze_result_t has
 * 32 bits. So levelzero.c needs no Level Zero header.
 *
 * Barriers, waits, signals, resets and timestamps are missing because they are no work.
 */
#ifndef GIVEWAY_LEVELZERO_CALLS_H
#define GIVEWAY_LEVELZERO_CALLS_H

#include <stddef.h>
#include <stdint.h>

/* Passed by value: ze_group_count_t and ze_group_size_t. */
struct gw_ze_groups {
  uint32_t x, y, z;
};

#define EVENTS void *e, uint32_t n, void **w

#define GW_LEVELZERO_CALLS(CALL)                                                                             \
  CALL(zeCommandListAppendLaunchKernel, (e, n, w), (void *l, void *k, const void *groups, EVENTS),           \
       (l, k, groups, e, n, w))                                                                              \
  CALL(zeCommandListAppendLaunchCooperativeKernel, (e, n, w),                                                \
       (void *l, void *k, const void *groups, EVENTS), (l, k, groups, e, n, w))                              \
  CALL(zeCommandListAppendLaunchKernelIndirect, (e, n, w), (void *l, void *k, const void *groups, EVENTS),   \
       (l, k, groups, e, n, w))                                                                              \
  CALL(zeCommandListAppendLaunchMultipleKernelsIndirect, (e, n, w),                                          \
       (void *l, uint32_t kn, void **ks, const uint32_t *counts, const void *groups, EVENTS),                \
       (l, kn, ks, counts, groups, e, n, w))                                                                 \
  CALL(zeCommandListAppendLaunchKernelWithParameters, (e, n, w),                                             \
       (void *l, void *k, const void *groups, const void *next, EVENTS), (l, k, groups, next, e, n, w))      \
  CALL(zeCommandListAppendLaunchKernelWithArguments, (e, n, w),                                              \
       (void *l, void *k, struct gw_ze_groups counts, struct gw_ze_groups sizes, void **args,                \
        const void *next, EVENTS),                                                                           \
       (l, k, counts, sizes, args, next, e, n, w))                                                           \
  CALL(zeCommandListAppendMemoryCopy, (e, n, w), (void *l, void *to, const void *from, size_t size, EVENTS), \
       (l, to, from, size, e, n, w))                                                                         \
  CALL(zeCommandListAppendMemoryCopyWithParameters, (e, n, w),                                               \
       (void *l, void *to, const void *from, size_t size, const void *next, EVENTS),                         \
       (l, to, from, size, next, e, n, w))                                                                   \
  CALL(zeCommandListAppendMemoryCopyRegion, (e, n, w),                                                       \
       (void *l, void *to, const void *tr, uint32_t tp, uint32_t ts, const void *from, const void *fr,       \
        uint32_t fp, uint32_t fs, EVENTS),                                                                   \
       (l, to, tr, tp, ts, from, fr, fp, fs, e, n, w))                                                       \
  CALL(zeCommandListAppendMemoryCopyFromContext, (e, n, w),                                                  \
       (void *l, void *to, void *context, const void *from, size_t size, EVENTS),                            \
       (l, to, context, from, size, e, n, w))                                                                \
  CALL(zeCommandListAppendMemoryFill, (e, n, w),                                                             \
       (void *l, void *p, const void *pattern, size_t pn, size_t size, EVENTS),                              \
       (l, p, pattern, pn, size, e, n, w))                                                                   \
  CALL(zeCommandListAppendMemoryFillWithParameters, (e, n, w),                                               \
       (void *l, void *p, const void *pattern, size_t pn, size_t size, const void *next, EVENTS),            \
       (l, p, pattern, pn, size, next, e, n, w))                                                             \
  CALL(zeCommandListAppendMemoryPrefetch, (NULL, 0, NULL), (void *l, const void *p, size_t size),            \
       (l, p, size))                                                                                         \
  CALL(zeCommandListAppendImageCopy, (e, n, w), (void *l, void *to, void *from, EVENTS),                     \
       (l, to, from, e, n, w))                                                                               \
  CALL(zeCommandListAppendImageCopyRegion, (e, n, w),                                                        \
       (void *l, void *to, void *from, const void *tr, const void *fr, EVENTS),                              \
       (l, to, from, tr, fr, e, n, w))                                                                       \
  CALL(zeCommandListAppendImageCopyToMemory, (e, n, w),                                                      \
       (void *l, void *to, void *from, const void *fr, EVENTS), (l, to, from, fr, e, n, w))                  \
  CALL(zeCommandListAppendImageCopyFromMemory, (e, n, w),                                                    \
       (void *l, void *to, const void *from, const void *tr, EVENTS), (l, to, from, tr, e, n, w))            \
  CALL(zeCommandListAppendImageCopyToMemoryExt, (e, n, w),                                                   \
       (void *l, void *to, void *from, const void *fr, uint32_t tp, uint32_t ts, EVENTS),                    \
       (l, to, from, fr, tp, ts, e, n, w))                                                                   \
  CALL(zeCommandListAppendImageCopyFromMemoryExt, (e, n, w),                                                 \
       (void *l, void *to, const void *from, const void *tr, uint32_t fp, uint32_t fs, EVENTS),              \
       (l, to, from, tr, fp, fs, e, n, w))                                                                   \
  CALL(zeCommandListAppendQueryKernelTimestamps, (e, n, w),                                                  \
       (void *l, uint32_t qn, void **qs, void *to, const size_t *offsets, EVENTS),                           \
       (l, qn, qs, to, offsets, e, n, w))                                                                    \
  CALL(zeCommandListAppendHostFunction, (e, n, w),                                                           \
       (void *l, void *f, void *data, const void *next, EVENTS), (l, f, data, next, e, n, w))                \
  CALL(zeCommandListAppendGraphExt, (e, n, w), (void *l, void *graph, const void *next, EVENTS),             \
       (l, graph, next, e, n, w))                                                                            \
  CALL(zeCommandListImmediateAppendCommandListsExp, (e, n, w),                                               \
       (void *l, uint32_t ln, void **ls, EVENTS), (l, ln, ls, e, n, w))                                      \
  CALL(zeCommandListImmediateAppendCommandListsWithParameters, (e, n, w),                                    \
       (void *l, uint32_t ln, void **ls, const void *next, EVENTS), (l, ln, ls, next, e, n, w))              \
  CALL(zeRTASBuilderCommandListAppendCopyExt, (e, n, w),                                                     \
       (void *l, void *to, const void *from, size_t size, EVENTS), (l, to, from, size, e, n, w))

#endif
