/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of fakeze.c compute, for the programs that check it. */
#ifndef GIVEWAY_FAKEZE_H
#define GIVEWAY_FAKEZE_H

#include <stdint.h>

#define FAKEZE_ITEMS 64
#define FAKEZE_MOST_RUNNING 4

static inline uint32_t fakeze_advance(uint32_t x, uint32_t k) { return (x * 1664525u + 1013904223u) ^ k; }
static inline uint32_t fakeze_blend(uint32_t to, uint32_t from, uint32_t k) { return (to * 1664525u + from) ^ k; }

#endif
