/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking into the loaded libraries without dlsym: this library stands before
 * dlsym, and in C libraries older than glibc 2.34 it lies in a library of its
 * own that we do not want to ask for.
 */
#ifndef GIVEWAY_ELF_H
#define GIVEWAY_ELF_H

#include <stdbool.h>

#pragma GCC visibility push(hidden)

/* A function that some library other than ours exports: the first after ours in
 * the order of loading, else the first. NULL if none does. */
void *gw_elf_function(const char *name);

/* The same, and only after ours: what stands before us may call us. */
void *gw_elf_function_after(const char *name);

/* Whether an address lies in a library whose file's name begins so. */
bool gw_elf_within(const void *address, const char *stem);

#pragma GCC visibility pop

#endif
