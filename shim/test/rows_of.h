/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All commands in the table of one runtime (-DCUDA, -DHIP, -DOPENCL, -DLEVELZERO):
 *
 *     ROW(symbol, name, since, own, parameters)
 *
 * name, since and own are how CUDA's look-up knows the symbol. EXTENSION is the same for
 * functions that only a look-up finds. Included several times.
 */
#if defined(CUDA)
#define OWN_SINCE(since) ((since) > 7000 ? (since) : 7000)
#define OLD_ASYNC(symbol, name, since, stream, ...) ROW(symbol, name, since, 0, (__VA_ARGS__))
#define OLD_SYNC OLD_ASYNC
#define OLD_HOST OLD_ASYNC
#define ASYNC(symbol, name, since, stream, ...) \
  ROW(symbol, name, since, 0, (__VA_ARGS__)) ROW(symbol##_ptsz, name, OWN_SINCE(since), 1, (__VA_ARGS__))
#define SYNC(symbol, name, since, stream, ...) \
  ROW(symbol, name, since, 0, (__VA_ARGS__)) ROW(symbol##_ptds, name, OWN_SINCE(since), 1, (__VA_ARGS__))
#define HOST SYNC
#define OTHER(...)
#include "../cuda_calls.h"
#undef OWN_SINCE
#elif defined(HIP)
#define CALL(symbol, stream, waits, parameters, arguments) ROW(symbol, #symbol, 0, 0, parameters)
#define BOTH(symbol, stream, waits, parameters, arguments) \
  ROW(symbol, #symbol, 0, 0, parameters) ROW(symbol##_spt, #symbol "_spt", 0, 0, parameters)
GW_HIP_CALLS(CALL, BOTH)
#undef CALL
#undef BOTH
#elif defined(OPENCL)
#define CALL(symbol, blocking, parameters, arguments) ROW(symbol, #symbol, 0, 0, parameters)
GW_OPENCL_CALLS(CALL)
#undef CALL
#define CALL(symbol, blocking, parameters, arguments) EXTENSION(symbol, #symbol, 0, 0, parameters)
GW_OPENCL_EXTENSIONS(CALL)
#undef CALL
#elif defined(LEVELZERO)
#define CALL(symbol, events, parameters, arguments) ROW(symbol, #symbol, 0, 0, parameters)
GW_LEVELZERO_CALLS(CALL)
#undef CALL
#endif
#undef ROW
#undef EXTENSION
