/* SPDX-License-Identifier: Apache-2.0 */
//go:build ignore

#define _GNU_SOURCE
#include "elf.h"

#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

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
};

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
  }
  return t->symbols && t->names && (t->gnu_hash || t->hash);
}

static bool is_function(const struct tables *t, uint32_t i, const char *name) {
  const ElfW(Sym) *s = &t->symbols[i];
  bool defined = s->st_shndx != SHN_UNDEF && (s->st_info & 15) == STT_FUNC;
  return defined && strcmp(t->names + s->st_name, name) == 0;
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
  if (!buckets) return 0;
  for (uint32_t i = bucket[h % buckets]; i >= first && i; i++) {
    if ((chain[i - first] | 1) == (h | 1) && is_function(t, i, name)) return i;
    if (chain[i - first] & 1) break;
  }
  return 0;
}

struct search {
  const char *name;
  bool after_ours;
  void *before, *after;
};

static int visit_library(struct dl_phdr_info *lib, size_t size, void *arg) {
  struct search *s = arg;
  struct tables t;
  (void)size;
  if (contains(lib, (const void *)&visit_library)) {
    s->after_ours = true;
    return 0;
  }
  if (lib->dlpi_name && strstr(lib->dlpi_name, "vdso")) return 0;
  uint32_t i = read_tables(lib, &t) ? find_symbol(&t, s->name) : 0;
  if (!i) return 0;
  void *found = (void *)(lib->dlpi_addr + t.symbols[i].st_value);
  if (s->after_ours) s->after = found;
  else if (!s->before) s->before = found;
  return s->after != NULL;
}

static struct search search_libraries(const char *name) {
  struct search s = {.name = name};
  dl_iterate_phdr(visit_library, &s);
  return s;
}

void *gw_elf_function(const char *name) {
  struct search s = search_libraries(name);
  return s.after ? s.after : s.before;
}

void *gw_elf_function_after(const char *name) { return search_libraries(name).after; }

struct where {
  const void *address;
  const char *stem;
  bool within;
};

static int compare_file(struct dl_phdr_info *lib, size_t size, void *arg) {
  struct where *w = arg;
  (void)size;
  if (!contains(lib, w->address)) return 0;
  const char *slash = lib->dlpi_name ? strrchr(lib->dlpi_name, '/') : NULL;
  const char *file = slash ? slash + 1 : lib->dlpi_name ? lib->dlpi_name : "";
  w->within = strncmp(file, w->stem, strlen(w->stem)) == 0;
  return 1;
}

bool gw_elf_within(const void *address, const char *stem) {
  struct where w = {address, stem, false};
  dl_iterate_phdr(compare_file, &w);
  return w.within;
}
