/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls every row of a runtime's table, on the driver of rows_driver.cpp.
 *
 *     rows linked|dlsym|asked FILE    one after another, with a bound of one
 *     rows held FILE                  all at once, at a closed gate
 *     rows behind FILE                OpenCL: those that may wait, each behind a command
 *
 * A row that does something wrong is named in a line "wrong ...". Which argument is the stream,
 * and whether the call waits, is stated here independently of the table.
 */
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>

#include "../abi.h"
#include "rows.h"

/* What pointer arguments point to, one block per argument: each word holds its own address. */
static void *pointed[MAX_ARGS][16];

static void point(void) {
  for (auto &words : pointed) {
    for (void *&word : words) word = &word;
  }
#ifdef CUDA
  pointed[0][6] = nullptr; /* cuLaunchKernelEx: a launch without attributes */
#endif
}

/* An argument, or a word of the memory it points to. */
struct place {
  int arg, word; /* arg negative: none. word negative: the argument itself */
};

static struct record &driver = *driver_record();
static struct arrival sent[ROWS];

template <class T> static void fill(T *value, struct arrival *a, place null) {
  int i = a->args++;
  if constexpr (std::is_pointer_v<T>) *value = (T)pointed[i];
  else for (size_t k = 0; k < sizeof *value; k++) ((unsigned char *)value)[k] = (unsigned char)(16 * (i + 1) + k);
  if (i == null.arg && null.word < 0) memset((void *)value, 0, sizeof *value);
  if (i == null.arg && null.word >= 0) pointed[i][null.word] = nullptr;
  memcpy(a->arg[i], value, sizeof *value);
}

/* Calls f as row with a different value for each argument, except one that is to be null. */
template <int row, class F> struct caller;
template <int row, class... A> struct caller<row, int(A...)> {
  enum { args = sizeof...(A) };
  static int call(void *f, place null) {
    std::tuple<A...> values;
    sent[row] = {};
    std::apply([&](A &...value) { (fill(&value, &sent[row], null), ...); }, values);
    return std::apply((int (*)(A...))f, values);
  }
};

extern "C" {
#define ROW(symbol, name, since, own, parameters) int symbol parameters;
#define EXTENSION(...)
#include "rows_of.h"
int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status);
int hipGetProcAddress(const char *name, void **found, int version, uint64_t flags, int *status);
int hipGetDriverEntryPoint(const char *name, void **found, uint64_t flags, int *status);
void *clGetExtensionFunctionAddressForPlatform(void *platform, const char *name);
int32_t zeDriverGetExtensionFunctionAddress(void *driver, const char *name, void **found);
int32_t zeCommandListCreateImmediate(void *context, void *device, const void *desc, void **list);
}

struct row {
  const char *symbol, *name;
  int since, own;
  int (*call)(void *f, place null);
  int args;
  void *linked; /* NULL: it can only be looked up */
};

static const struct row rows[] = {
#define ENTRY(symbol, name, since, own, parameters, linked)                    \
  {#symbol, name, since, own, caller<AT_##symbol, int parameters>::call,       \
   caller<AT_##symbol, int parameters>::args, (void *)(linked)},
#define ROW(symbol, name, since, own, parameters) ENTRY(symbol, name, since, own, parameters, symbol)
#define EXTENSION(symbol, name, since, own, parameters) ENTRY(symbol, name, since, own, parameters, nullptr)
#include "rows_of.h"
};

static bool has(const struct row &r, const char *part) { return strstr(r.symbol, part) != nullptr; }
static bool per_thread(const struct row &r) { return has(r, "_ptsz") || has(r, "_ptds") || has(r, "_spt"); }

/* The stream is the last argument of a launch or asynchronous call, except for these. */
static place stream_of(const struct row &r) {
  static const struct {
    const char *symbol;
    place at;
  } others[] = {
      {"cuLaunch", {-1, -1}},
      {"cuLaunchGrid", {-1, -1}},
      {"cuLaunchKernel", {8, -1}},
      {"cuLaunchKernelEx", {0, 4}},
      {"cuLaunchCooperativeKernel", {8, -1}},
      {"cuLaunchCooperativeKernelMultiDevice", {0, 5}},
      {"cuLaunchHostFunc", {0, -1}},
      {"cuLaunchHostFunc_v2", {0, -1}},
      {"cuStreamAddCallback", {0, -1}},
      {"hipExtLaunchKernel", {5, -1}},
      {"hipModuleLaunchKernel", {8, -1}},
      {"hipExtModuleLaunchKernel", {8, -1}},
      {"hipHccModuleLaunchKernel", {8, -1}},
      {"hipModuleLaunchCooperativeKernel", {8, -1}},
      {"hipLaunchKernelExC", {0, 4}},
      {"hipDrvLaunchKernelEx", {0, 4}},
      {"hipLaunchCooperativeKernelMultiDevice", {0, 6}},
      {"hipExtLaunchMultiKernelMultiDevice", {0, 6}},
      {"hipModuleLaunchCooperativeKernelMultiDevice", {0, 5}},
      {"hipLaunchHostFunc", {0, -1}},
      {"hipStreamAddCallback", {0, -1}},
  };
  std::string symbol = r.symbol;
  if (has(r, "_Z")) symbol = symbol.substr(symbol.find("hip"), symbol.rfind("P18ihipModuleSymbol_t") - symbol.find("hip"));
  if (per_thread(r)) symbol.resize(symbol.rfind('_'));
  for (const auto &o : others) {
    if (symbol == o.symbol) return o.at;
  }
  if (has(r, "clEnqueue") || has(r, "CommandList")) return {0, -1};
  bool its = has(r, "Async") || has(r, "Launch") || has(r, "Graph") || has(r, "WithStream");
  return {its ? r.args - 1 : -1, -1};
}

/* OpenCL's argument that says whether to wait. */
static place blocking_of(const struct row &r) {
  if (has(r, "Read") || has(r, "Write")) return {2, -1};
  return {has(r, "emcpy") || has(r, "SVMMap") ? 1 : -1, -1};
}

/* Copies to and from host memory. HIP's copies from the host may return before they are done. */
static bool waits(const struct row &r) {
  if (has(r, "clEnqueue")) return blocking_of(r).arg >= 0;
  bool from = has(r, "cu") && (has(r, "HtoD") || has(r, "HtoA"));
  return !has(r, "Async") && (has(r, "DtoH") || has(r, "AtoH") || from);
}

static int wrongs;
static bool need(bool so, const struct row &r, const char *what, long detail = 0) {
  if (!so) printf("wrong %s: %s (%ld)\n", r.symbol, what, detail), wrongs++;
  return so;
}

/* Checks that the row was called that often, with every argument as it was sent. */
static void has_arrived(const struct row &r, int times) {
  const struct arrival &a = driver.rows[&r - rows], &s = sent[&r - rows];
  need(a.times == times, r, "the real call was not made once", a.times - times);
  need(a.args == s.args, r, "another number of arguments", a.args);
  for (int i = 0; i < s.args; i++) need(!memcmp(a.arg[i], s.arg[i], MOST_BYTES), r, "another argument", i + 1);
}

/* The shim's page, found in the list of this process's mappings. */
static volatile struct gw_page *page(void) {
  static volatile struct gw_page *found;
  char line[512];
  FILE *maps = found ? nullptr : fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps)) {
    if (strstr(line, "/memfd:") && strstr(line, " rw-s ")) found = (struct gw_page *)strtoull(line, nullptr, 16);
  }
  if (maps) fclose(maps);
  return found;
}

/* Makes one successful call, with or without a null argument, and one that fails. */
static void try_row(const struct row &r, void *f, place null, void *stream, bool over) {
  int times = driver.rows[&r - rows].times, before = driver.marks;
  uint64_t launched = page() ? page()->launched : 0;
  point();
  driver.result = 0;
  need(r.call(f, null) == 0, r, "another result than the driver's");
  has_arrived(r, times + 1);
  need(page()->launched == launched + 1, r, "not counted once", (long)(page()->launched - launched));
  need(page()->launched - page()->completed == !over, r, over ? "not known to be done" : "taken for done");
  need(driver.marks - before == !over, r, "another number of marks", driver.marks - before);
  if (!over) need(driver.marked_stream == stream, r, "put on another stream", (long)driver.marked_stream);

  driver.result = 1000 + (int)(&r - rows);
  need(r.call(f, null) == driver.result, r, "another result than the driver's error");
  has_arrived(r, times + 2);
  need(page()->launched == launched + 1, r, "counted, though it failed");
}

static void try_both(const struct row &r, void *f) {
  place at = stream_of(r), none = {-1, -1};
  void *own = (void *)2, *legacy = has(r, "hip") ? nullptr : (void *)1, *if_null = per_thread(r) ? own : legacy;
  void *given = at.arg < 0 ? if_null : at.word < 0 ? (void *)pointed[at.arg] : &pointed[at.arg][at.word];
  try_row(r, f, none, given, waits(r));
  if (has(r, "clEnqueue")) {
    if (waits(r)) try_row(r, f, blocking_of(r), given, false);
  } else if (at.arg >= 0 && !has(r, "CommandList")) { /* Level Zero has no default list */
    try_row(r, f, at, if_null, false);
  }
}

static void *find(const struct row &r, const char *how, void *library) {
  void *found = nullptr;
  [[maybe_unused]] int status;
  if (strcmp(how, "linked") == 0) return r.linked;
  if (strcmp(how, "dlsym") == 0) return r.linked ? dlsym(library, r.symbol) : nullptr;
#if defined(CUDA)
  cuGetProcAddress_v2(r.name, &found, r.since, r.own ? 2 : 0, &status);
#elif defined(HIP)
  if (strcmp(how, "entry") == 0) hipGetDriverEntryPoint(r.name, &found, 0, &status);
  else hipGetProcAddress(r.name, &found, 0, 0, &status);
#elif defined(LEVELZERO)
  zeDriverGetExtensionFunctionAddress(nullptr, r.name, &found);
#else
  found = clGetExtensionFunctionAddressForPlatform(nullptr, r.name);
#endif
  return found;
}

/* One thread after another: while the first asks for the page, others would not be held. */
static void hold(const std::vector<void *> &functions) {
  std::vector<std::thread> threads;
  point();
  for (int i = 0; i < ROWS; i++) {
    const struct row &r = rows[i];
    threads.emplace_back([&r, f = functions[i]] { need(r.call(f, {-1, -1}) == 0, r, "another result"); });
    for (int ms = 0; !page() || page()->holds <= (uint64_t)i; ms++) {
      if (!need(driver.rows[i].times == 0 && ms < 20000, r, "does not wait at a closed gate")) _exit(1);
      usleep(1000);
    }
  }
  printf("held %d\n", ROWS);
  for (std::thread &t : threads) t.join();
  for (const struct row &r : rows) has_arrived(r, 1);
}

/* A blocking write returns when it has taken its data: that says nothing about the command ahead of it. All
 * other blocking calls return when they are done, and so is what is ahead of them in the queue. */
static void behind(const std::vector<void *> &functions) {
  for (int i = 0; i < ROWS; i++) {
    const struct row &r = rows[i];
    if (!waits(r)) continue;
    need(rows[0].call(functions[0], {-1, -1}) == 0, rows[0], "another result");
    uint64_t ahead = page()->launched - page()->completed;
    need(ahead > 0, rows[0], "taken for done");
    need(r.call(functions[i], {-1, -1}) == 0, r, "another result");
    uint64_t left = page()->launched - page()->completed;
    need(left == (has(r, "Write") ? ahead : 0), r, "another number of commands in flight", (long)left);
  }
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  bool at_once = strcmp(argv[1], "held") == 0, in_turn = strcmp(argv[1], "behind") == 0;
  void *library = dlopen(argv[2], RTLD_NOW);
  std::vector<void *> functions;
  for (const struct row &r : rows) {
    void *f = find(r, at_once || in_turn ? "asked" : argv[1], library);
    need(f || (!r.linked && strcmp(argv[1], "asked") != 0), r, "not found");
    functions.push_back(f);
  }
  if (wrongs) return 1;
#if defined(LEVELZERO)
  /* The list that all rows get as their first argument: in order, and asynchronous. */
  const struct {
    uint32_t type;
    const void *next;
    uint32_t ordinal, index, flags, mode, priority;
  } desc = {14, nullptr, 0, 0, 2, 2, 0};
  void *list;
  driver.list = pointed[0];
  zeCommandListCreateImmediate(nullptr, nullptr, &desc, &list);
#endif
  int tried = 0;
  for (int i = 0; i < ROWS && !at_once && !in_turn; i++) {
    if (functions[i]) try_both(rows[i], functions[i]), tried++;
  }
  if (at_once) hold(functions);
  if (in_turn) point(), behind(functions);
  if (wrongs) return 1;
  printf("ok rows=%d\n", at_once ? ROWS : tried);
  return 0;
}
