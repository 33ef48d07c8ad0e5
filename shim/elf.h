/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Symbol look-up in the loaded libraries without dlsym. Inside a call of the program neither dlsym
 * nor dlopen may be called: they wait for the loader's lock, which another thread holds while it
 * runs the constructors or destructors of a library. If those wait for this thread, for example
 * for the end of a worker, neither thread would ever go on. dl_iterate_phdr takes another lock,
 * which is not held during constructors and destructors.
 *
 * Also, this library exports its own dlsym, and before glibc 2.34 dlsym is in libdl, which this
 * library does not link.
 */
#ifndef GIVEWAY_ELF_H
#define GIVEWAY_ELF_H

#include <stdbool.h>
#include <stddef.h>

#pragma GCC visibility push(hidden)

/* A function that another library exports: the first after this library in load order, else
 * the first at all. NULL if there is none. */
void *gw_elf_function(const char *name);

/* The same, but only after this library: a function before it may call this library. */
void *gw_elf_function_after(const char *name);

/* The first function of that name in load order, which is the one that the program itself calls. */
void *gw_elf_function_first(const char *name);

/*
 * The function of a runtime whose library has a file name that begins with stem. As for RTLD_NEXT,
 * a library that was loaded with the program and comes after this one is preferred: it may wrap
 * the runtime. Then the runtime's own library is searched, even if the program has loaded it with
 * RTLD_LOCAL. NULL if there is no such function.
 */
void *gw_elf_runtime_function(const char *name, const char *stem);

/* If no library of the runtime is loaded: a function of that name in any library after this one, or
 * NULL. The program was linked with a library that has the runtime's functions under another file
 * name, or that loads the runtime when the first of them is called. */
void *gw_elf_stand_in(const char *name, const char *stem);

/* Whether an address is in a library whose file name begins with stem. */
bool gw_elf_within(const void *address, const char *stem);

/* Copies the path of the first library whose file name begins with stem. Returns false if none is
 * loaded or the path is too long. */
bool gw_elf_path(const char *stem, char *path, size_t size);

#pragma GCC visibility pop

#endif
