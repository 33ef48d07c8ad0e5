/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OpenCL's calls that put a command on a queue, from 1.0 to 3.0, and those of extensions, one
 * row each.
 *
 *     CALL(name, blocking, parameters, arguments)
 *
 * The queue is always q, the pointer to the event e, and the events to wait for w and ws.
 * blocking is the parameter that makes the call wait for its own command, or 0. Handles are
 * pointers; cl_int, cl_uint and cl_bool have 32 bits, cl_mem_migration_flags and the like 64.
 * So opencl.c needs no OpenCL header.
 *
 * Markers and barriers are missing because they are no work, clSVMFree and the like because
 * they put nothing on a queue.
 */
#ifndef GIVEWAY_OPENCL_CALLS_H
#define GIVEWAY_OPENCL_CALLS_H

#define WAITS uint32_t w, const void *ws, void **e

#define GW_OPENCL_CALLS(CALL)                                                                                \
  CALL(clEnqueueNDRangeKernel, 0,                                                                            \
       (void *q, void *k, uint32_t dims, const size_t *off, const size_t *all, const size_t *group, WAITS),  \
       (q, k, dims, off, all, group, w, ws, e))                                                              \
  CALL(clEnqueueTask, 0, (void *q, void *k, WAITS), (q, k, w, ws, e))                                        \
  CALL(clEnqueueNativeKernel, 0,                                                                             \
       (void *q, void *f, void *args, size_t n, uint32_t nm, const void *ms, const void **at, WAITS),        \
       (q, f, args, n, nm, ms, at, w, ws, e))                                                                \
  CALL(clEnqueueReadBuffer, b, (void *q, void *m, uint32_t b, size_t off, size_t n, void *p, WAITS),         \
       (q, m, b, off, n, p, w, ws, e))                                                                       \
  CALL(clEnqueueWriteBuffer, b, (void *q, void *m, uint32_t b, size_t off, size_t n, const void *p, WAITS),  \
       (q, m, b, off, n, p, w, ws, e))                                                                       \
  CALL(clEnqueueReadBufferRect, b,                                                                           \
       (void *q, void *m, uint32_t b, const size_t *bo, const size_t *ho, const size_t *r, size_t brp,       \
        size_t bsp, size_t hrp, size_t hsp, void *p, WAITS),                                                 \
       (q, m, b, bo, ho, r, brp, bsp, hrp, hsp, p, w, ws, e))                                                \
  CALL(clEnqueueWriteBufferRect, b,                                                                          \
       (void *q, void *m, uint32_t b, const size_t *bo, const size_t *ho, const size_t *r, size_t brp,       \
        size_t bsp, size_t hrp, size_t hsp, const void *p, WAITS),                                           \
       (q, m, b, bo, ho, r, brp, bsp, hrp, hsp, p, w, ws, e))                                                \
  CALL(clEnqueueCopyBuffer, 0, (void *q, void *from, void *to, size_t fo, size_t t, size_t n, WAITS),        \
       (q, from, to, fo, t, n, w, ws, e))                                                                    \
  CALL(clEnqueueCopyBufferRect, 0,                                                                           \
       (void *q, void *from, void *to, const size_t *fo, const size_t *t, const size_t *r, size_t frp,       \
        size_t fsp, size_t trp, size_t tsp, WAITS),                                                          \
       (q, from, to, fo, t, r, frp, fsp, trp, tsp, w, ws, e))                                                \
  CALL(clEnqueueFillBuffer, 0,                                                                               \
       (void *q, void *m, const void *pattern, size_t pn, size_t off, size_t n, WAITS),                      \
       (q, m, pattern, pn, off, n, w, ws, e))                                                                \
  CALL(clEnqueueReadImage, b,                                                                                \
       (void *q, void *m, uint32_t b, const size_t *o, const size_t *r, size_t rp, size_t sp, void *p,       \
        WAITS),                                                                                              \
       (q, m, b, o, r, rp, sp, p, w, ws, e))                                                                 \
  CALL(clEnqueueWriteImage, b,                                                                               \
       (void *q, void *m, uint32_t b, const size_t *o, const size_t *r, size_t rp, size_t sp, const void *p, \
        WAITS),                                                                                              \
       (q, m, b, o, r, rp, sp, p, w, ws, e))                                                                 \
  CALL(clEnqueueCopyImage, 0,                                                                                \
       (void *q, void *from, void *to, const size_t *fo, const size_t *t, const size_t *r, WAITS),           \
       (q, from, to, fo, t, r, w, ws, e))                                                                    \
  CALL(clEnqueueCopyImageToBuffer, 0,                                                                        \
       (void *q, void *from, void *to, const size_t *fo, const size_t *r, size_t t, WAITS),                  \
       (q, from, to, fo, r, t, w, ws, e))                                                                    \
  CALL(clEnqueueCopyBufferToImage, 0,                                                                        \
       (void *q, void *from, void *to, size_t fo, const size_t *t, const size_t *r, WAITS),                  \
       (q, from, to, fo, t, r, w, ws, e))                                                                    \
  CALL(clEnqueueFillImage, 0,                                                                                \
       (void *q, void *m, const void *color, const size_t *o, const size_t *r, WAITS),                       \
       (q, m, color, o, r, w, ws, e))                                                                        \
  CALL(clEnqueueUnmapMemObject, 0, (void *q, void *m, void *p, WAITS), (q, m, p, w, ws, e))                  \
  CALL(clEnqueueMigrateMemObjects, 0, (void *q, uint32_t n, const void *ms, uint64_t flags, WAITS),          \
       (q, n, ms, flags, w, ws, e))                                                                          \
  CALL(clEnqueueSVMFree, 0, (void *q, uint32_t n, void **ps, void *f, void *data, WAITS),                    \
       (q, n, ps, f, data, w, ws, e))                                                                        \
  CALL(clEnqueueSVMMemcpy, b, (void *q, uint32_t b, void *to, const void *from, size_t n, WAITS),            \
       (q, b, to, from, n, w, ws, e))                                                                        \
  CALL(clEnqueueSVMMemFill, 0, (void *q, void *p, const void *pattern, size_t pn, size_t n, WAITS),          \
       (q, p, pattern, pn, n, w, ws, e))                                                                     \
  CALL(clEnqueueSVMMap, b, (void *q, uint32_t b, uint64_t flags, void *p, size_t n, WAITS),                  \
       (q, b, flags, p, n, w, ws, e))                                                                        \
  CALL(clEnqueueSVMUnmap, 0, (void *q, void *p, WAITS), (q, p, w, ws, e))                                    \
  CALL(clEnqueueSVMMigrateMem, 0,                                                                            \
       (void *q, uint32_t n, const void **ps, const size_t *ns, uint64_t flags, WAITS),                      \
       (q, n, ps, ns, flags, w, ws, e))                                                                      \
  CALL(clEnqueueAcquireGLObjects, 0, (void *q, uint32_t n, const void *ms, WAITS), (q, n, ms, w, ws, e))     \
  CALL(clEnqueueReleaseGLObjects, 0, (void *q, uint32_t n, const void *ms, WAITS), (q, n, ms, w, ws, e))

/* Calls that can be found only through clGetExtensionFunctionAddressForPlatform. */
#define GW_OPENCL_EXTENSIONS(CALL)                                                                           \
  CALL(clEnqueueMemcpyINTEL, b, (void *q, uint32_t b, void *to, const void *from, size_t n, WAITS),          \
       (q, b, to, from, n, w, ws, e))                                                                        \
  CALL(clEnqueueMemFillINTEL, 0, (void *q, void *p, const void *pattern, size_t pn, size_t n, WAITS),        \
       (q, p, pattern, pn, n, w, ws, e))                                                                     \
  CALL(clEnqueueMigrateMemINTEL, 0, (void *q, const void *p, size_t n, uint64_t flags, WAITS),               \
       (q, p, n, flags, w, ws, e))

#endif
