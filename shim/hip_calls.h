/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HIP's calls that put a command on a stream, ROCm 5 to 7, one row each.
 *
 *     CALL(name, stream, waits, parameters, arguments)
 *     BOTH(...)   the same, and there is a name_spt, whose default stream is the per-thread
 *                 one
 *
 * waits says whether the call returns only when its stream has completed all its work. It is 0
 * where that depends on the kind of memory. A launch on several devices counts on its first
 * stream.
 *
 * Up to ROCm 6.0 two functions are C++ functions, so their rows have the symbol as a C++ compiler
 * makes it.
 *
 * hipMemcpyBatchAsync is missing: ROCm has shipped it with eight and with nine parameters, so
 * its stream cannot be found.
 */
#ifndef GIVEWAY_HIP_CALLS_H
#define GIVEWAY_HIP_CALLS_H

#include <stddef.h>
#include <stdint.h>

struct dim3 {
  uint32_t x, y, z;
};

struct pitched { /* hipPitchedPtr */
  void *p;
  size_t pitch, x, y;
};

struct extent { /* hipExtent */
  size_t w, h, d;
};

struct location { /* hipMemLocation */
  int type, id;
};

struct launch_config { /* hipLaunchConfig_t, the part that is used */
  struct dim3 grid, block;
  size_t shared;
  void *stream;
};

struct drv_launch_config { /* HIP_LAUNCH_CONFIG, the part that is used */
  uint32_t grid[3], block[3], shared;
  void *stream;
};

struct launch_params { /* hipLaunchParams */
  void *f;
  struct dim3 grid, block;
  void **args;
  size_t shared;
  void *stream;
};

struct function_launch_params { /* hipFunctionLaunchParams */
  void *f;
  uint32_t grid[3], block[3], shared;
  void *stream;
  void **args;
};

enum { D2H = 2 }; /* hipMemcpyDeviceToHost */

#define GW_HIP_CALLS(CALL, BOTH)                                                                             \
  BOTH(hipLaunchKernel, s, 0,                                                                                \
       (const void *f, struct dim3 g, struct dim3 b, void **a, size_t n, void *s), (f, g, b, a, n, s))       \
  CALL(hipExtLaunchKernel, s, 0,                                                                             \
       (const void *f, struct dim3 g, struct dim3 b, void **a, size_t n, void *s, void *e0, void *e1,        \
        int flags),                                                                                          \
       (f, g, b, a, n, s, e0, e1, flags))                                                                    \
  BOTH(hipLaunchCooperativeKernel, s, 0,                                                                     \
       (const void *f, struct dim3 g, struct dim3 b, void **a, uint32_t n, void *s), (f, g, b, a, n, s))     \
  CALL(hipModuleLaunchKernel, s, 0,                                                                          \
       (void *f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz, uint32_t n,   \
        void *s, void **a, void **x),                                                                        \
       (f, gx, gy, gz, bx, by, bz, n, s, a, x))                                                              \
  CALL(hipExtModuleLaunchKernel, s, 0,                                                                       \
       (void *f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz, size_t n,     \
        void *s, void **a, void **x, void *e0, void *e1, uint32_t flags),                                    \
       (f, gx, gy, gz, bx, by, bz, n, s, a, x, e0, e1, flags))                                               \
  CALL(_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j, s, 0,\
       (void *f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz, size_t n,     \
        void *s, void **a, void **x, void *e0, void *e1, uint32_t flags),                                    \
       (f, gx, gy, gz, bx, by, bz, n, s, a, x, e0, e1, flags))                                               \
  CALL(hipHccModuleLaunchKernel, s, 0,                                                                       \
       (void *f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz, size_t n,     \
        void *s, void **a, void **x, void *e0, void *e1),                                                    \
       (f, gx, gy, gz, bx, by, bz, n, s, a, x, e0, e1))                                                      \
  CALL(_Z24hipHccModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_, s, 0, \
       (void *f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz, size_t n,     \
        void *s, void **a, void **x, void *e0, void *e1),                                                    \
       (f, gx, gy, gz, bx, by, bz, n, s, a, x, e0, e1))                                                      \
  CALL(hipModuleLaunchCooperativeKernel, s, 0,                                                               \
       (void *f, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz, uint32_t n,   \
        void *s, void **a),                                                                                  \
       (f, gx, gy, gz, bx, by, bz, n, s, a))                                                                 \
  CALL(hipLaunchKernelExC, c ? c->stream : NULL, 0,                                                          \
       (const struct launch_config *c, const void *f, void **a), (c, f, a))                                  \
  CALL(hipDrvLaunchKernelEx, c ? c->stream : NULL, 0,                                                        \
       (const struct drv_launch_config *c, void *f, void **a, void **x), (c, f, a, x))                       \
  CALL(hipLaunchCooperativeKernelMultiDevice, l && n > 0 ? l->stream : NULL, 0,                              \
       (struct launch_params *l, int n, uint32_t flags), (l, n, flags))                                      \
  CALL(hipExtLaunchMultiKernelMultiDevice, l && n > 0 ? l->stream : NULL, 0,                                 \
       (struct launch_params *l, int n, uint32_t flags), (l, n, flags))                                      \
  CALL(hipModuleLaunchCooperativeKernelMultiDevice, l && n > 0 ? l->stream : NULL, 0,                        \
       (struct function_launch_params *l, uint32_t n, uint32_t flags), (l, n, flags))                        \
  BOTH(hipGraphLaunch, s, 0, (void *x, void *s), (x, s))                                                     \
  CALL(hipGraphUpload, s, 0, (void *x, void *s), (x, s))                                                     \
  BOTH(hipLaunchHostFunc, s, 0, (void *s, void *f, void *d), (s, f, d))                                      \
  BOTH(hipStreamAddCallback, s, 0, (void *s, void *f, void *d, uint32_t flags), (s, f, d, flags))            \
  CALL(hipMemPrefetchAsync, s, 0, (const void *p, size_t n, int device, void *s), (p, n, device, s))         \
  CALL(hipMemPrefetchAsync_v2, s, 0,                                                                         \
       (const void *p, size_t n, struct location to, uint32_t flags, void *s), (p, n, to, flags, s))         \
  CALL(hipMemPrefetchBatchAsync, s, 0,                                                                       \
       (void *ps, void *ns, size_t n, void *to, void *at, size_t tos, uint64_t flags, void *s),              \
       (ps, ns, n, to, at, tos, flags, s))                                                                   \
  CALL(hipMemDiscardAndPrefetchBatchAsync, s, 0,                                                             \
       (void *ps, void *ns, size_t n, void *to, void *at, size_t tos, uint64_t flags, void *s),              \
       (ps, ns, n, to, at, tos, flags, s))                                                                   \
  CALL(hipDrvMemDiscardAndPrefetchBatchAsync, s, 0,                                                          \
       (void *ps, void *ns, size_t n, void *to, void *at, size_t tos, uint64_t flags, void *s),              \
       (ps, ns, n, to, at, tos, flags, s))                                                                   \
  CALL(hipMemDiscardBatchAsync, s, 0,                                                                        \
       (void *ps, void *ns, size_t n, uint64_t flags, void *s), (ps, ns, n, flags, s))                       \
  CALL(hipDrvMemDiscardBatchAsync, s, 0,                                                                     \
       (void *ps, void *ns, size_t n, uint64_t flags, void *s), (ps, ns, n, flags, s))                       \
  BOTH(hipMemcpy, NULL, k == D2H, (void *d, const void *p, size_t n, int k), (d, p, n, k))                   \
  BOTH(hipMemcpyAsync, s, 0, (void *d, const void *p, size_t n, int k, void *s), (d, p, n, k, s))            \
  CALL(hipMemcpyWithStream, s, k == D2H,                                                                     \
       (void *d, const void *p, size_t n, int k, void *s), (d, p, n, k, s))                                  \
  CALL(hipMemcpyHtoD, NULL, 0, (void *d, const void *p, size_t n), (d, p, n))                                \
  CALL(hipMemcpyDtoH, NULL, 1, (void *d, void *p, size_t n), (d, p, n))                                      \
  CALL(hipMemcpyDtoD, NULL, 0, (void *d, void *p, size_t n), (d, p, n))                                      \
  CALL(hipMemcpyHtoDAsync, s, 0, (void *d, const void *p, size_t n, void *s), (d, p, n, s))                  \
  CALL(hipMemcpyDtoHAsync, s, 0, (void *d, void *p, size_t n, void *s), (d, p, n, s))                        \
  CALL(hipMemcpyDtoDAsync, s, 0, (void *d, void *p, size_t n, void *s), (d, p, n, s))                        \
  CALL(hipMemcpyAtoH, NULL, 1, (void *d, void *p, size_t o, size_t n), (d, p, o, n))                         \
  CALL(hipMemcpyHtoA, NULL, 0, (void *d, size_t o, const void *p, size_t n), (d, o, p, n))                   \
  CALL(hipMemcpyAtoD, NULL, 0, (void *d, void *p, size_t o, size_t n), (d, p, o, n))                         \
  CALL(hipMemcpyDtoA, NULL, 0, (void *d, size_t o, void *p, size_t n), (d, o, p, n))                         \
  CALL(hipMemcpyAtoA, NULL, 0, (void *d, size_t o, void *p, size_t po, size_t n), (d, o, p, po, n))          \
  CALL(hipMemcpyAtoHAsync, s, 0, (void *d, void *p, size_t o, size_t n, void *s), (d, p, o, n, s))           \
  CALL(hipMemcpyHtoAAsync, s, 0, (void *d, size_t o, const void *p, size_t n, void *s), (d, o, p, n, s))     \
  CALL(hipMemcpyToArray, NULL, 0,                                                                            \
       (void *d, size_t w, size_t h, const void *p, size_t n, int k), (d, w, h, p, n, k))                    \
  BOTH(hipMemcpyFromArray, NULL, k == D2H,                                                                   \
       (void *d, const void *p, size_t w, size_t h, size_t n, int k), (d, p, w, h, n, k))                    \
  BOTH(hipMemcpyToSymbol, NULL, 0,                                                                           \
       (const void *d, const void *p, size_t n, size_t o, int k), (d, p, n, o, k))                           \
  BOTH(hipMemcpyToSymbolAsync, s, 0,                                                                         \
       (const void *d, const void *p, size_t n, size_t o, int k, void *s), (d, p, n, o, k, s))               \
  BOTH(hipMemcpyFromSymbol, NULL, k == D2H,                                                                  \
       (void *d, const void *p, size_t n, size_t o, int k), (d, p, n, o, k))                                 \
  BOTH(hipMemcpyFromSymbolAsync, s, 0,                                                                       \
       (void *d, const void *p, size_t n, size_t o, int k, void *s), (d, p, n, o, k, s))                     \
  CALL(hipMemcpyPeer, NULL, 0, (void *d, int dd, const void *p, int pd, size_t n), (d, dd, p, pd, n))        \
  CALL(hipMemcpyPeerAsync, s, 0,                                                                             \
       (void *d, int dd, const void *p, int pd, size_t n, void *s), (d, dd, p, pd, n, s))                    \
  BOTH(hipMemcpy2D, NULL, k == D2H,                                                                          \
       (void *d, size_t dp, const void *p, size_t pp, size_t w, size_t h, int k), (d, dp, p, pp, w, h, k))   \
  BOTH(hipMemcpy2DAsync, s, 0,                                                                               \
       (void *d, size_t dp, const void *p, size_t pp, size_t w, size_t h, int k, void *s),                   \
       (d, dp, p, pp, w, h, k, s))                                                                           \
  BOTH(hipMemcpy2DToArray, NULL, 0,                                                                          \
       (void *d, size_t x, size_t y, const void *p, size_t pp, size_t w, size_t h, int k),                   \
       (d, x, y, p, pp, w, h, k))                                                                            \
  BOTH(hipMemcpy2DToArrayAsync, s, 0,                                                                        \
       (void *d, size_t x, size_t y, const void *p, size_t pp, size_t w, size_t h, int k, void *s),          \
       (d, x, y, p, pp, w, h, k, s))                                                                         \
  BOTH(hipMemcpy2DFromArray, NULL, k == D2H,                                                                 \
       (void *d, size_t dp, const void *p, size_t x, size_t y, size_t w, size_t h, int k),                   \
       (d, dp, p, x, y, w, h, k))                                                                            \
  BOTH(hipMemcpy2DFromArrayAsync, s, 0,                                                                      \
       (void *d, size_t dp, const void *p, size_t x, size_t y, size_t w, size_t h, int k, void *s),          \
       (d, dp, p, x, y, w, h, k, s))                                                                         \
  CALL(hipMemcpy2DArrayToArray, NULL, 0,                                                                     \
       (void *d, size_t dx, size_t dy, const void *p, size_t px, size_t py, size_t w, size_t h, int k),      \
       (d, dx, dy, p, px, py, w, h, k))                                                                      \
  CALL(hipMemcpyParam2D, NULL, 0, (const void *c), (c))                                                      \
  CALL(hipMemcpyParam2DAsync, s, 0, (const void *c, void *s), (c, s))                                        \
  CALL(hipDrvMemcpy3D, NULL, 0, (const void *c), (c))                                                        \
  CALL(hipDrvMemcpy3DAsync, s, 0, (const void *c, void *s), (c, s))                                          \
  CALL(hipDrvMemcpy2DUnaligned, NULL, 0, (const void *c), (c))                                               \
  BOTH(hipMemcpy3D, NULL, 0, (const void *c), (c))                                                           \
  BOTH(hipMemcpy3DAsync, s, 0, (const void *c, void *s), (c, s))                                             \
  CALL(hipMemcpy3DPeer, NULL, 0, (void *c), (c))                                                             \
  CALL(hipMemcpy3DPeerAsync, s, 0, (void *c, void *s), (c, s))                                               \
  CALL(hipMemcpy3DBatchAsync, s, 0,                                                                          \
       (size_t n, void *ops, void *failed, uint64_t flags, void *s), (n, ops, failed, flags, s))             \
  BOTH(hipMemset, NULL, 0, (void *d, int v, size_t n), (d, v, n))                                            \
  BOTH(hipMemsetAsync, s, 0, (void *d, int v, size_t n, void *s), (d, v, n, s))                              \
  CALL(hipMemsetD8, NULL, 0, (void *d, uint8_t v, size_t n), (d, v, n))                                      \
  CALL(hipMemsetD8Async, s, 0, (void *d, uint8_t v, size_t n, void *s), (d, v, n, s))                        \
  CALL(hipMemsetD16, NULL, 0, (void *d, uint16_t v, size_t n), (d, v, n))                                    \
  CALL(hipMemsetD16Async, s, 0, (void *d, uint16_t v, size_t n, void *s), (d, v, n, s))                      \
  CALL(hipMemsetD32, NULL, 0, (void *d, int v, size_t n), (d, v, n))                                         \
  CALL(hipMemsetD32Async, s, 0, (void *d, int v, size_t n, void *s), (d, v, n, s))                           \
  BOTH(hipMemset2D, NULL, 0, (void *d, size_t dp, int v, size_t w, size_t h), (d, dp, v, w, h))              \
  BOTH(hipMemset2DAsync, s, 0,                                                                               \
       (void *d, size_t dp, int v, size_t w, size_t h, void *s), (d, dp, v, w, h, s))                        \
  CALL(hipMemsetD2D8, NULL, 0, (void *d, size_t dp, uint8_t v, size_t w, size_t h), (d, dp, v, w, h))        \
  CALL(hipMemsetD2D8Async, s, 0,                                                                             \
       (void *d, size_t dp, uint8_t v, size_t w, size_t h, void *s), (d, dp, v, w, h, s))                    \
  CALL(hipMemsetD2D16, NULL, 0, (void *d, size_t dp, uint16_t v, size_t w, size_t h), (d, dp, v, w, h))      \
  CALL(hipMemsetD2D16Async, s, 0,                                                                            \
       (void *d, size_t dp, uint16_t v, size_t w, size_t h, void *s), (d, dp, v, w, h, s))                   \
  CALL(hipMemsetD2D32, NULL, 0, (void *d, size_t dp, uint32_t v, size_t w, size_t h), (d, dp, v, w, h))      \
  CALL(hipMemsetD2D32Async, s, 0,                                                                            \
       (void *d, size_t dp, uint32_t v, size_t w, size_t h, void *s), (d, dp, v, w, h, s))                   \
  BOTH(hipMemset3D, NULL, 0, (struct pitched d, int v, struct extent n), (d, v, n))                          \
  BOTH(hipMemset3DAsync, s, 0, (struct pitched d, int v, struct extent n, void *s), (d, v, n, s))

#endif
