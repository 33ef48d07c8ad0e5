/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver that notes its calls (rows_driver.cpp) and the program that makes
 * them (rows.cpp) share. */
#ifndef GIVEWAY_ROWS_H
#define GIVEWAY_ROWS_H

#include <cstddef>
#include <cstdint>

#if defined(HIP)
#include "../hip_calls.h"
#elif defined(OPENCL)
#include "../opencl_calls.h"
#else
typedef void *P;
typedef unsigned long long D;
typedef unsigned D1;
typedef size_t Z;
typedef unsigned U;
typedef int I;
typedef unsigned short H;
typedef unsigned char B;
#endif

enum {
#define ROW(symbol, ...) AT_##symbol,
#define EXTENSION ROW
#include "rows_of.h"
  ROWS
};

#define MOST_ARGS 16
#define MOST_BYTES 32

/* How a row was called, last. */
struct arrival {
  int times;
  int args;
  unsigned char arg[MOST_ARGS][MOST_BYTES];
};

struct record {
  struct arrival rows[ROWS];
  int result;          /* what every row returns; the program writes it */
  int marks;           /* put behind commands so far */
  void *marked_stream; /* where the last one was put */
};
extern "C" struct record *driver_record(void);

#endif
