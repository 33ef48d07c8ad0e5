/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the driver that records its calls (rows_driver.cpp) and the program that makes them
 * (rows.cpp). */
#ifndef GIVEWAY_ROWS_H
#define GIVEWAY_ROWS_H

#include <cstddef>
#include <cstdint>

#if defined(HIP)
#include "../hip_calls.h"
#elif defined(OPENCL)
#include "../opencl_calls.h"
#elif defined(LEVELZERO)
#include "../levelzero_calls.h"
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

#define MAX_ARGS 16
#define MOST_BYTES 32

/* The last call of a row. */
struct arrival {
  int times;
  int args;
  unsigned char arg[MAX_ARGS][MOST_BYTES];
};

struct record {
  struct arrival rows[ROWS];
  int result;          /* what every row returns; written by the program */
  int marks;           /* number of marks put so far */
  void *marked_stream; /* the stream of the last mark */
  void *list;          /* the next immediate list that is created; written by the program */
};
extern "C" struct record *driver_record(void);

#endif
