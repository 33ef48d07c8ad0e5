/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
/*
 * A libhiprtc for tests. It compiles nothing: it checks the source's kernels and the target, and
 * writes a code object that hipdevice.c loads. A target that no AMD compiler has, any other
 * option, and a parameter of a type that it does not know are errors, with a log.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, BAD_INPUT = 3, BAD_PROGRAM = 4, BAD_OPTION = 5, FAILED = 6 };

struct program {
  uint32_t magic;
  char *source, log[1024], code[4096];
  int compiled;
};
enum { ALIVE = 0x48495052 };

static struct program *live(struct program *p) { return p && p->magic == ALIVE ? p : NULL; }

int hiprtcCreateProgram(struct program **p, const char *source, const char *name, int n, const char **headers, const char **names) {
  (void)name;
  if (!source || n || headers || names) return BAD_INPUT;
  *p = calloc(1, sizeof **p);
  (*p)->magic = ALIVE;
  (*p)->source = strdup(source);
  return OK;
}
int hiprtcDestroyProgram(struct program **p) {
  if (!p || !live(*p)) return BAD_PROGRAM;
  (*p)->magic = 0; /* not freed, so that a later use is noticed */
  *p = NULL;
  return OK;
}

static int fail(struct program *p, int code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(p->log, sizeof p->log, format, args);
  va_end(args);
  return code;
}

/* Appends the size of each parameter, up to the closing parenthesis. */
static int sizes(struct program *p, const char *at, char *line) {
  static const struct {
    const char *type;
    int bytes;
  } types[] = {{"float *", 8}, {"const volatile unsigned *", 8}, {"unsigned long long ", 8}, {"unsigned ", 4}};
  while (*at != ')') {
    size_t i = 0;
    while (i < 4 && strncmp(at, types[i].type, strlen(types[i].type))) i++;
    if (i == 4) return fail(p, FAILED, "kernels.hip: error: unknown type at '%.20s'", at);
    sprintf(line + strlen(line), " %d", types[i].bytes);
    at = strpbrk(at, ",)");
    if (*at == ',') at += 2;
  }
  return OK;
}

int hiprtcCompileProgram(struct program *p, int n, const char **options) {
  static const char *const known[] = {"gfx906", "gfx908", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"};
  static const char head[] = "extern \"C\" __global__ void ";
  if (!live(p)) return BAD_PROGRAM;
  if (n != 1 || strncmp(options[0], "--offload-arch=", 15)) return fail(p, BAD_OPTION, "error: unknown option");
  const char *arch = options[0] + 15;
  size_t i = 0, short_name = strcspn(arch, ":");
  while (i < 7 && (strlen(known[i]) != short_name || strncmp(arch, known[i], short_name))) i++;
  if (i == 7) return fail(p, FAILED, "error: unknown target '%s'", arch);
  snprintf(p->code, sizeof p->code, "HIPDOUBLE code for %s\n", arch);
  for (const char *at = p->source; (at = strstr(at, head));) {
    char line[128] = "";
    at += sizeof head - 1;
    int length = (int)strcspn(at, "(");
    if (length > 32 || strlen(p->code) > sizeof p->code - 256) return fail(p, FAILED, "error: name");
    snprintf(line, sizeof line, "kernel %.*s", length, at);
    int r = sizes(p, at + length + 1, line);
    if (r != OK) return r;
    strcat(strcat(p->code, line), "\n");
  }
  if (!strstr(p->code, "kernel ")) return fail(p, FAILED, "error: no kernel");
  p->compiled = 1;
  return OK;
}
int hiprtcGetProgramLogSize(struct program *p, size_t *n) { return live(p) ? (*n = p->log[0] ? strlen(p->log) + 1 : 0, OK) : BAD_PROGRAM; }
int hiprtcGetProgramLog(struct program *p, char *to) { return live(p) ? (strcpy(to, p->log), OK) : BAD_PROGRAM; }
int hiprtcGetCodeSize(struct program *p, size_t *n) { return live(p) && p->compiled ? (*n = strlen(p->code) + 1, OK) : BAD_PROGRAM; }
int hiprtcGetCode(struct program *p, char *to) { return live(p) && p->compiled ? (strcpy(to, p->code), OK) : BAD_PROGRAM; }
const char *hiprtcGetErrorString(int e) {
  return e == FAILED ? "HIPRTC_ERROR_COMPILATION" : e == BAD_OPTION ? "HIPRTC_ERROR_INVALID_OPTION" : e == BAD_PROGRAM ? "HIPRTC_ERROR_INVALID_PROGRAM" : "HIPRTC_ERROR_INVALID_INPUT";
}
