// SPDX-License-Identifier: GPL-2.0 OR MIT
// The init program of the test kernel. It runs the tests of the driver, writes their output to the second serial
// line in sections that begin with "== name", and powers the machine off.

#define _GNU_SOURCE
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static int report;

static void section(const char *name) { dprintf(report, "== %s\n", name); }

// Copies the lines of a file that contain word, or all lines if word is NULL.
static void show(const char *path, const char *word) {
  FILE *f = fopen(path, "r");
  char line[4096];
  if (!f) {
    dprintf(report, "%s: %m\n", path);
    return;
  }
  while (fgets(line, sizeof line, f))
    if (!word || strstr(line, word)) dprintf(report, "%s", line);
  fclose(f);
}

// Runs a program with its output to out, and returns its exit status; 255 if a signal ended it.
static int run(char *const argv[], int out) {
  int status;
  pid_t pid = fork();
  if (pid == 0) {
    dup2(out, 1);
    execv(argv[0], argv);
    _exit(127);
  }
  if (pid < 0 || waitpid(pid, &status, 0) != pid) return 255;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static void mounts(void) {
  mkdir("/proc", 0755);
  mkdir("/sys", 0755);
  mkdir("/tmp", 01777);
  mount("proc", "/proc", "proc", 0, NULL);
  mount("sysfs", "/sys", "sysfs", 0, NULL);
  mount("dev", "/dev", "devtmpfs", 0, NULL);
  mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL);
  mount("tmp", "/tmp", "tmpfs", 0, NULL);
  chmod("/dev/kfd", 0666);  // some of the tests run as unprivileged users
}

static void conformance(void) {
  char *argv[] = {"/kfdtest.test", "-test.run=TestConformance/Real", "-test.v", NULL};
  setenv("KFDTEST_DEV", "/dev/kfd", 1);
  setenv("KFDTEST_OUT", "/tmp/seen.txt", 1);
  int status = run(argv, 1);
  section("conformance");
  show("/tmp/seen.txt", NULL);
  section("conformance status");
  dprintf(report, "%d\n", status);
}

static void rights(void) {
  char *argv[] = {"/rights", NULL};
  section("rights");
  int status = run(argv, report);
  section("rights status");
  dprintf(report, "%d\n", status);
}

int main(void) {
  struct termios tty;
  mounts();
  report = open("/dev/ttyS1", O_WRONLY | O_NOCTTY | O_CLOEXEC);
  if (report < 0) report = 1;
  if (tcgetattr(report, &tty) == 0) {
    cfmakeraw(&tty);
    tcsetattr(report, TCSANOW, &tty);
  }

  section("kernel");
  show("/proc/version", NULL);
  conformance();
  rights();

  glob_t found;
  section("kunit");
  if (glob("/sys/kernel/debug/kunit/*/results", 0, NULL, &found) == 0)
    for (size_t i = 0; i < found.gl_pathc; i++) show(found.gl_pathv[i], NULL);

  // Lockdep turns itself off when it finds a problem.
  section("lockdep");
  show("/proc/lockdep_stats", "debug_locks");
  section("end");
  tcdrain(report);
  sync();
  reboot(RB_POWER_OFF);
  return 0;
}
