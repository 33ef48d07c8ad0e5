/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver for tests that does nothing. It exports every command in a runtime's table, records
 * the arguments of each call, and returns what the program has set. It also has what marks need;
 * they are reached at once.
 */
#include <cstring>

#include "rows.h"

static struct record record;
struct record *driver_record(void) { return &record; }

template <class... A> static int note(int row, const A &...args) {
  struct arrival *a = &record.rows[row];
  int i = 0;
  (memcpy(a->arg[i++], &args, sizeof args), ...);
  a->args = i;
  __atomic_add_fetch(&a->times, 1, __ATOMIC_RELEASE);
  return record.result;
}

/* Records the arguments in their order, whatever the table calls them: a template knows only
 * their types. So each symbol is an alias of its instance. */
template <int row, class F> struct stand_in;
template <int row, class... A> struct stand_in<row, int(A...)> {
  static int call(A... args) { return note(row, args...); }
};

extern "C" {
#define STAND_IN(symbol, parameters) stand_in<AT_##symbol, int parameters>::call
#define ROW(symbol, name, since, own, parameters)                                   \
  static int(*find_##symbol()) parameters { return STAND_IN(symbol, parameters); }  \
  __attribute__((ifunc("find_" #symbol))) int symbol parameters;
#define EXTENSION(...)
#include "rows_of.h"

static const struct row {
  const char *name;
  int since, own;
  void *f;
} rows[] = {
#define ROW(symbol, name, since, own, parameters) {name, since, own, (void *)symbol},
#define EXTENSION(symbol, name, since, own, parameters) {name, since, own, (void *)STAND_IN(symbol, parameters)},
#include "rows_of.h"
};

static void *find(const char *name, int since, int own) {
  for (const struct row &r : rows) {
    if (strcmp(r.name, name) == 0 && r.since == since && r.own == own) return r.f;
  }
  return nullptr;
}

static int mark(void *stream) {
  record.marks++;
  record.marked_stream = stream;
  return 0;
}

#if defined(CUDA)
int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status) {
  *found = find(name, version, (int)flags / 2);
  *status = !*found;
  return *found ? 0 : 500;
}
int cuCtxGetCurrent(void **ctx) { return *ctx = &record, 0; }
int cuEventCreate(void **event, unsigned) { return *event = &record, 0; }
int cuEventRecord(void *, void *stream) { return mark(stream); }
int cuEventQuery(void *) { return 0; }
#elif defined(HIP)
int hipGetProcAddress(const char *name, void **found, int, uint64_t, int *status) {
  *found = find(name, 0, 0);
  *status = !*found;
  return *found ? 0 : 500;
}
int hipGetDriverEntryPoint(const char *name, void **found, uint64_t, int *status) {
  return hipGetProcAddress(name, found, 0, 0, status);
}
int hipEventCreateWithFlags(void **event, unsigned) { return *event = &record, 0; }
int hipEventRecord(void *, void *stream) { return mark(stream); }
int hipEventQuery(void *) { return 0; }
int hipEventDestroy(void *) { return 0; }
#elif defined(LEVELZERO)
int32_t zeDriverGetExtensionFunctionAddress(void *, const char *name, void **found) {
  return *found = find(name, 0, 0), *found ? 0 : 1;
}
int32_t zeCommandListCreateImmediate(void *, void *, const void *, void **list) { return *list = record.list, 0; }
int32_t zeCommandListAppendBarrier(void *list, void *, uint32_t, void **) { return mark(list); }
int32_t zeEventPoolCreate(void *, const void *, uint32_t, void **, void **pool) { return *pool = &record, 0; }
int32_t zeEventCreate(void *, const void *, void **event) { return *event = &record, 0; }
int32_t zeEventQueryStatus(void *) { return 0; }
#define DOES_NOTHING(name) \
  int32_t name(void) { return 0; }
DOES_NOTHING(zeEventPoolDestroy)
DOES_NOTHING(zeEventDestroy)
DOES_NOTHING(zeEventHostReset)
DOES_NOTHING(zeFenceCreate)
DOES_NOTHING(zeFenceDestroy)
DOES_NOTHING(zeFenceReset)
DOES_NOTHING(zeFenceQueryStatus)
DOES_NOTHING(zeCommandListCreate)
DOES_NOTHING(zeCommandListClose)
DOES_NOTHING(zeCommandListDestroy)
DOES_NOTHING(zeCommandQueueExecuteCommandLists)
#else
void *clGetExtensionFunctionAddressForPlatform(void *, const char *name) { return find(name, 0, 0); }
int32_t clEnqueueMarkerWithWaitList(void *queue, uint32_t, const void *, void **event) {
  return *event = &record, mark(queue);
}
int32_t clFlush(void *) { return 0; }
int32_t clGetCommandQueueInfo(void *, uint32_t, size_t, void *properties, size_t *) { /* in order */
  return *(uint64_t *)properties = 0, 0;
}
int32_t clGetEventInfo(void *, uint32_t, size_t, void *status, size_t *) { return *(int32_t *)status = 0; }
int32_t clReleaseEvent(void *) { return 0; }
#endif
}
