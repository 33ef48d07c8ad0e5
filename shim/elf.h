/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Symbol look-up in the loaded libraries without dlsym: this library exports its own dlsym,
 * and before glibc 2.34 dlsym is in libdl, which this library does not link.
 */
#ifndef GIVEWAY_ELF_H
#define GIVEWAY_ELF_H

#include <stdbool.h>

#pragma GCC visibility push(hidden)

/* A function that another library exports: the first after this library in load order, else
 * the first at all. NULL if there is none. */
void *gw_elf_function(const char *name);

/* The same, but only after this library: a function before it may call this library. */
void *gw_elf_function_after(const char *name);

/* Whether an address is in a library whose file name begins with stem. */
bool gw_elf_within(const void *address, const char *stem);

#pragma GCC visibility pop

#endif
