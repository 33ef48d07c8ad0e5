/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Level Zero programs for tests share: the functions, found by linking (LINKED) or through
 * dlopen and dlsym, and short forms of calls that must succeed.
 */
#ifndef GIVEWAY_ZEPROGRAM_H
#define GIVEWAY_ZEPROGRAM_H

#include <dlfcn.h>
#include <level_zero/ze_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fakeze.h"

#define FUNCTIONS(F)                                                                                         \
  F(Init) F(DriverGet) F(DriverGetExtensionFunctionAddress) F(DeviceGet) F(ContextCreate) F(ContextDestroy)  \
  F(CommandQueueCreate) F(CommandQueueDestroy) F(CommandQueueExecuteCommandLists) F(CommandQueueSynchronize) \
  F(CommandListCreate) F(CommandListCreateImmediate) F(CommandListDestroy) F(CommandListClose)               \
  F(CommandListReset) F(CommandListAppendBarrier) F(CommandListAppendMemoryCopy)                             \
  F(CommandListAppendMemoryFill) F(CommandListAppendSignalEvent) F(CommandListAppendWaitOnEvents)            \
  F(CommandListAppendEventReset) F(CommandListAppendLaunchKernel) F(FenceCreate) F(FenceDestroy)             \
  F(FenceHostSynchronize) F(FenceQueryStatus) F(FenceReset) F(EventPoolCreate) F(EventPoolDestroy)           \
  F(EventCreate) F(EventDestroy) F(EventHostSignal) F(EventHostSynchronize) F(EventQueryStatus)              \
  F(EventHostReset) F(MemAllocShared) F(ModuleCreate) F(KernelCreate) F(KernelSetArgumentValue)

static struct {
#define F(name) __typeof__(ze##name) *name;
  FUNCTIONS(F)
#undef F
} ze;

typedef ze_command_queue_handle_t queue_t;
typedef ze_command_list_handle_t list_t;
typedef ze_event_handle_t event_t;
typedef ze_kernel_handle_t kernel_t;

enum { BYTES = FAKEZE_ITEMS * 4, COMPUTE = 0, COPY = 1, FOREVER_MS = 60000 };

static ze_context_handle_t context;
static ze_device_handle_t device;
static ze_driver_handle_t driver;
static ze_module_handle_t module;

static void must(ze_result_t r, const char *call) {
  if (r == ZE_RESULT_SUCCESS) return;
  printf("%s: %x\n", call, r);
  fflush(stdout);
  _exit(1);
}
#define MUST(call) must(call, #call)

static void begin(void) {
#ifdef LINKED
#define F(name) ze.name = ze##name;
#else
  void *lib = dlopen("libze_loader.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!lib) {
    fprintf(stderr, "%s\n", dlerror());
    exit(3);
  }
#define F(name) *(void **)&ze.name = dlsym(lib, "ze" #name);
#endif
  FUNCTIONS(F)
#undef F
  uint32_t one = 1;
  ze_context_desc_t cd = {.stype = ZE_STRUCTURE_TYPE_CONTEXT_DESC};
  uint8_t nothing[4] = {0};
  ze_module_desc_t md = {.stype = ZE_STRUCTURE_TYPE_MODULE_DESC, .inputSize = sizeof nothing, .pInputModule = nothing};
  setvbuf(stdout, NULL, _IOLBF, 0);
  MUST(ze.Init(0));
  MUST(ze.DriverGet(&one, &driver));
  MUST(ze.DeviceGet(driver, &one, &device));
  MUST(ze.ContextCreate(driver, &cd, &context));
  MUST(ze.ModuleCreate(context, device, &md, &module, NULL));
}

static inline void mix(uint32_t *sum, uint32_t x) { *sum = ((*sum << 7 | *sum >> 25) ^ x) * 16777619u + 1; }

static inline int take_most(void) {
  int (*f)(void) = NULL;
  MUST(ze.DriverGetExtensionFunctionAddress(driver, "fakezeMost", (void **)&f));
  return f();
}

static inline queue_t new_queue(uint32_t ordinal, ze_command_queue_mode_t mode) {
  ze_command_queue_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC, .ordinal = ordinal, .mode = mode};
  queue_t q;
  MUST(ze.CommandQueueCreate(context, device, &desc, &q));
  return q;
}
static inline list_t new_immediate(uint32_t ordinal, ze_command_queue_mode_t mode) {
  ze_command_queue_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC, .ordinal = ordinal, .mode = mode};
  list_t l;
  MUST(ze.CommandListCreateImmediate(context, device, &desc, &l));
  return l;
}
static inline list_t new_list(uint32_t ordinal) {
  ze_command_list_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC, .commandQueueGroupOrdinal = ordinal};
  list_t l;
  MUST(ze.CommandListCreate(context, device, &desc, &l));
  return l;
}
static inline ze_fence_handle_t new_fence(queue_t q) {
  ze_fence_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_FENCE_DESC};
  ze_fence_handle_t f;
  MUST(ze.FenceCreate(q, &desc, &f));
  return f;
}
static inline ze_event_pool_handle_t new_pool(uint32_t count) {
  ze_event_pool_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_EVENT_POOL_DESC, .flags = ZE_EVENT_POOL_FLAG_HOST_VISIBLE, .count = count};
  ze_event_pool_handle_t p;
  MUST(ze.EventPoolCreate(context, &desc, 0, NULL, &p));
  return p;
}
static inline event_t new_event(ze_event_pool_handle_t pool, uint32_t index) {
  ze_event_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_EVENT_DESC, .index = index, .signal = ZE_EVENT_SCOPE_FLAG_HOST};
  event_t e;
  MUST(ze.EventCreate(pool, &desc, &e));
  return e;
}
static inline kernel_t new_kernel(const char *name) {
  ze_kernel_desc_t desc = {.stype = ZE_STRUCTURE_TYPE_KERNEL_DESC, .pKernelName = name};
  kernel_t k;
  MUST(ze.KernelCreate(module, &desc, &k));
  return k;
}
static inline uint32_t *new_buffer(void) {
  ze_device_mem_alloc_desc_t dd = {.stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC};
  ze_host_mem_alloc_desc_t hd = {.stype = ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC};
  void *p;
  MUST(ze.MemAllocShared(context, &dd, &hd, BYTES, 64, device, &p));
  return p;
}

/* Appends a kernel with up to three arguments. */
static inline void launch(list_t l, kernel_t k, uint64_t a, uint64_t b, uint64_t c, event_t signal, uint32_t n, event_t *waits) {
  const ze_group_count_t one = {1, 1, 1};
  uint64_t args[] = {a, b, c};
  for (uint32_t i = 0; i < 3; i++) MUST(ze.KernelSetArgumentValue(k, i, 8, &args[i]));
  MUST(ze.CommandListAppendLaunchKernel(l, k, &one, signal, n, n ? waits : NULL));
}

static inline void execute(queue_t q, list_t l, ze_fence_handle_t fence) {
  MUST(ze.CommandListClose(l));
  MUST(ze.CommandQueueExecuteCommandLists(q, 1, &l, fence));
}

#endif
