/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "elf.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>

static bool contains(const struct dl_phdr_info *lib, const void *address) {
  uintptr_t at = (uintptr_t)address - lib->dlpi_addr;
  for (int i = 0; i < lib->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &lib->dlpi_phdr[i];
    if (p->p_type == PT_LOAD && at - p->p_vaddr < p->p_memsz) return true;
  }
  return false;
}

struct tables {
  const ElfW(Sym) *symbols;
  const char *names;
  const uint32_t *gnu_hash, *hash;
  const uint16_t *versions; /* of the symbols; may be NULL */
};
#define HIDDEN_VERSION 0x8000 /* only programs that were linked with this version use the symbol */

/* glibc replaces the offsets in this table by addresses, other C libraries do not. */
static const void *address_of(const struct dl_phdr_info *lib, ElfW(Addr) value) {
  return (const void *)(value < lib->dlpi_addr ? value + lib->dlpi_addr : value);
}

static bool read_tables(const struct dl_phdr_info *lib, struct tables *t) {
  const ElfW(Dyn) *d = NULL;
  for (int i = 0; i < lib->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &lib->dlpi_phdr[i];
    if (p->p_type == PT_DYNAMIC) d = (const void *)(lib->dlpi_addr + p->p_vaddr);
  }
  *t = (struct tables){0};
  for (; d && d->d_tag != DT_NULL; d++) {
    const void *at = address_of(lib, d->d_un.d_ptr);
    if (d->d_tag == DT_SYMTAB) t->symbols = at;
    if (d->d_tag == DT_STRTAB) t->names = at;
    if (d->d_tag == DT_GNU_HASH) t->gnu_hash = at;
    if (d->d_tag == DT_HASH) t->hash = at;
    if (d->d_tag == DT_VERSYM) t->versions = at;
  }
  return t->symbols && t->names && (t->gnu_hash || t->hash);
}

static bool is_function(const struct tables *t, uint32_t i, const char *name) {
  const ElfW(Sym) *s = &t->symbols[i];
  int type = s->st_info & 15;
  bool defined = s->st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_GNU_IFUNC);
  if (t->versions && t->versions[i] & HIDDEN_VERSION) return false;
  return defined && strcmp(t->names + s->st_name, name) == 0;
}

/* Whether the table may contain a name of that hash. Saves reading most of the tables. */
static bool may_contain(const uint32_t *gnu_hash, uint32_t h) {
  const ElfW(Addr) *filter = (const ElfW(Addr) *)(gnu_hash + 4);
  const uint32_t bits = 8 * sizeof *filter;
  ElfW(Addr) word = filter[h / bits % gnu_hash[2]];
  return word >> h % bits & word >> (h >> gnu_hash[3]) % bits & 1;
}

/* The index of a function, or 0, which no symbol has. */
static uint32_t find_symbol(const struct tables *t, const char *name) {
  if (!t->gnu_hash) {
    for (uint32_t i = 1; i < t->hash[1]; i++) {
      if (is_function(t, i, name)) return i;
    }
    return 0;
  }
  uint32_t h = 5381;
  for (const char *c = name; *c; c++) h = h * 33 + (unsigned char)*c;
  /* Layout: number of buckets, first symbol, words in the filter, shift; filter; buckets; chains. */
  uint32_t buckets = t->gnu_hash[0], first = t->gnu_hash[1], words = t->gnu_hash[2];
  const uint32_t *bucket = (const uint32_t *)((const ElfW(Addr) *)(t->gnu_hash + 4) + words);
  const uint32_t *chain = bucket + buckets;
  if (!buckets || (words && !may_contain(t->gnu_hash, h))) return 0;
  for (uint32_t i = bucket[h % buckets]; i >= first && i; i++) {
    if ((chain[i - first] | 1) == (h | 1) && is_function(t, i, name)) return i;
    if (chain[i - first] & 1) break;
  }
  return 0;
}

static bool is_named(const struct dl_phdr_info *lib, const char *stem) {
  const char *name = lib->dlpi_name ? lib->dlpi_name : "", *slash = strrchr(name, '/');
  return strncmp(slash ? slash + 1 : name, stem, strlen(stem)) == 0;
}

static int count_library(struct dl_phdr_info *lib, size_t size, void *arg) {
  (void)lib, (void)size;
  ++*(uint32_t *)arg;
  return 0;
}

/* How many libraries were loaded with the program: as many as at the first search. They are listed
 * in the order in which they were loaded. */
static uint32_t first_libraries(void) {
  static uint32_t known;
  uint32_t n = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (n) return n;
  dl_iterate_phdr(count_library, &n);
  __atomic_store_n(&known, n, __ATOMIC_RELAXED);
  return n;
}

struct search {
  const char *name, *stem;
  uint32_t first, visited; /* libraries: loaded with the program; visited so far */
  bool after_ours, is_loaded;
  void *before, *after; /* the first before and after this library */
  void *next;           /* the first after it of those that were loaded with the program */
  void *named;          /* the first in a library of the runtime */
};

static void *function_in(const struct dl_phdr_info *lib, const char *name) {
  struct tables t;
  uint32_t i = read_tables(lib, &t) ? find_symbol(&t, name) : 0;
  if (!i) return NULL;
  void *at = (void *)(lib->dlpi_addr + t.symbols[i].st_value);
  if ((t.symbols[i].st_info & 15) != STT_GNU_IFUNC) return at;
  /* The symbol is a function that returns the one for this CPU. x86 passes nothing. */
  return ((void *(*)(unsigned long))at)(getauxval(AT_HWCAP));
}

static int visit_library(struct dl_phdr_info *lib, size_t size, void *arg) {
  struct search *s = arg;
  (void)size;
  s->visited++;
  if (contains(lib, (const void *)&visit_library)) {
    s->after_ours = true;
    return 0;
  }
  if (lib->dlpi_name && strstr(lib->dlpi_name, "vdso")) return 0;
  bool named = s->stem && is_named(lib, s->stem);
  if (named) s->is_loaded = true;
  void *found = function_in(lib, s->name);
  if (!found) return 0;
  if (named && !s->named) s->named = found;
  if (!s->after_ours && !s->before) s->before = found;
  if (s->after_ours && !s->after) s->after = found;
  if (s->after_ours && !s->next && s->visited <= s->first) s->next = found;
  return s->stem ? s->next != NULL : s->after != NULL;
}

static struct search search_libraries(const char *name, const char *stem) {
  struct search s = {.name = name, .stem = stem, .first = first_libraries()};
  dl_iterate_phdr(visit_library, &s);
  return s;
}

void *gw_elf_function(const char *name) {
  struct search s = search_libraries(name, NULL);
  return s.after ? s.after : s.before;
}

void *gw_elf_function_after(const char *name) { return search_libraries(name, NULL).after; }

void *gw_elf_function_first(const char *name) {
  struct search s = search_libraries(name, NULL);
  return s.before ? s.before : s.after;
}

void *gw_elf_runtime_function(const char *name, const char *stem) {
  struct search s = search_libraries(name, stem);
  return s.next ? s.next : s.named;
}

void *gw_elf_stand_in(const char *name, const char *stem) {
  struct search s = search_libraries(name, stem);
  return s.is_loaded ? NULL : s.after;
}

struct where {
  const void *address; /* NULL: anywhere */
  const char *stem;
  bool within;
  char *path;
  size_t size;
};

static int compare_file(struct dl_phdr_info *lib, size_t size, void *arg) {
  struct where *w = arg;
  (void)size;
  if (w->address && !contains(lib, w->address)) return 0;
  w->within = is_named(lib, w->stem);
  size_t n = w->within && w->path ? strlen(lib->dlpi_name) + 1 : 0;
  if (n > w->size) w->within = false;
  else if (n) memcpy(w->path, lib->dlpi_name, n);
  return w->address || w->within;
}

bool gw_elf_within(const void *address, const char *stem) {
  struct where w = {.address = address, .stem = stem};
  dl_iterate_phdr(compare_file, &w);
  return w.within;
}

bool gw_elf_path(const char *stem, char *path, size_t size) {
  struct where w = {.stem = stem, .path = path, .size = size};
  dl_iterate_phdr(compare_file, &w);
  return w.within;
}
