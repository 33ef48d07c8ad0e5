// A fake libcuda with one GPU that only measures time: each stream is busy until its
// last kernel ends, and an iteration takes 10 ns for every grid. It returns
// CUDA_ERROR_INVALID_VALUE for arguments that the real library refuses, so that a wrong
// order or width of arguments is noticed.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, INVALID = 1, BAD_PTX = 218, NOT_READY = 600 };

typedef struct { int64_t until; } stream;
typedef struct { int64_t at; unsigned flags; } event;

static int spin_fn, parked_fn, module_obj, context_obj;
static void *current;

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int wait_until(int64_t t) {
	struct timespec s = {t / 1000000000LL, t % 1000000000LL};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &s, 0)) {}
	return OK;
}

int cuInit(unsigned flags) { return flags ? INVALID : OK; }
int cuDriverGetVersion(int *v) { *v = 13000; return OK; }
int cuGetErrorName(int e, const char **s) {
	*s = e == INVALID ? "CUDA_ERROR_INVALID_VALUE" : e == BAD_PTX ? "CUDA_ERROR_INVALID_PTX" : e == NOT_READY ? "CUDA_ERROR_NOT_READY" : 0;
	return *s ? OK : INVALID;
}
int cuGetErrorString(int e, const char **s) { *s = "said the fake"; return OK; }
int cuDeviceGetCount(int *n) { *n = 1; return OK; }
int cuDeviceGet(int *d, int i) { *d = i; return i ? INVALID : OK; }
int cuDeviceGetName(char *s, int len, int d) { strncpy(s, "Fake GPU", len); return len == 256 && !d ? OK : INVALID; }
int cuDeviceGetUuid_v2(unsigned char *u, int d) { for (int i = 0; i < 16; i++) u[i] = i * 17; return OK; }
int cuDeviceGetAttribute(int *v, int a, int d) {
	*v = a == 16 ? 132 : a == 75 ? 9 : a == 76 ? 0 : -1;
	return *v < 0 ? INVALID : OK;
}
int cuDevicePrimaryCtxSetFlags_v2(int d, unsigned f) { return f == 1 || f == 4 ? OK : INVALID; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = &context_obj; return OK; }
int cuCtxSetCurrent(void *c) { current = c; return c == &context_obj ? OK : INVALID; }
int cuCtxSynchronize(void) { return OK; }

int cuModuleLoadDataEx(void **m, const char *ptx, unsigned n, int *options, void **values) {
	if (n != 2 || options[0] != 5 || options[1] != 6 || (uintptr_t)values[1] != 4096) return INVALID;
	if (!strstr(ptx, ".entry spin(") || strstr(ptx, "sm_40")) {
		strcpy(values[0], "ptxas: no such target");
		return BAD_PTX;
	}
	*m = &module_obj;
	return OK;
}
int cuModuleGetFunction(void **f, void *m, const char *name) {
	*f = !strcmp(name, "spin") ? &spin_fn : !strcmp(name, "parked") ? &parked_fn : 0;
	return *f && m == &module_obj ? OK : INVALID;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *f, int threads, size_t shared) {
	*n = 8;
	return f == &spin_fn && threads == 256 && !shared ? OK : INVALID;
}

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		unsigned shared, stream *s, void **params, void **extra) {
	if (!gx || gy != 1 || gz != 1 || by != 1 || bz != 1 || shared || !s || !params || extra) return INVALID;
	int64_t start = now(), length;
	if (f == &spin_fn && bx == 256 && *(uint64_t *)params[0] == 0xd0d0) {
		length = 10LL * *(uint32_t *)params[1];
	} else if (f == &parked_fn && bx == 1 && gx == 1 && *(volatile uint32_t **)params[0] && *(uint32_t *)params[1] && *(uint64_t *)params[2]) {
		length = 1000;
	} else {
		return INVALID;
	}
	s->until = (s->until > start ? s->until : start) + 2000 + length;
	return OK;
}

int cuStreamCreate(stream **s, unsigned flags) { *s = calloc(1, sizeof **s); return flags == 1 ? OK : INVALID; }
int cuStreamSynchronize(stream *s) { return wait_until(s->until); }
int cuStreamQuery(stream *s) { return now() < s->until ? NOT_READY : OK; }
int cuEventCreate(event **e, unsigned flags) { *e = calloc(1, sizeof **e); (*e)->flags = flags; return OK; }
int cuEventRecord(event *e, stream *s) { int64_t t = now(); e->at = s->until > t ? s->until : t; return OK; }
int cuEventSynchronize(event *e) { return wait_until(e->at); }
int cuEventQuery(event *e) { return now() < e->at ? NOT_READY : OK; }
int cuEventElapsedTime(float *ms, event *a, event *b) { *ms = (b->at - a->at) / 1e6; return a->flags || b->flags ? INVALID : OK; }
int cuMemAlloc_v2(uint64_t *p, size_t n) { *p = 0xd0d0; return n ? OK : INVALID; }
int cuMemHostAlloc(void **p, size_t n, unsigned flags) { *p = calloc(1, n); return flags == 3 ? OK : INVALID; }
int cuMemHostGetDevicePointer_v2(uint64_t *d, void *h, unsigned flags) { *d = (uint64_t)(uintptr_t)h; return flags ? INVALID : OK; }
