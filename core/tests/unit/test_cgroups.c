/* SPDX-License-Identifier: Apache-2.0
 * On a directory that stands for a cgroup of version 2, with the files that the kernel would make. */
#define _GNU_SOURCE
#include "cgroups.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tap.h"

static char top[] = "/tmp/ramet-cgroups.XXXXXX";
static int dir = -1;

static void
put(const char *name, const char *text)
{
  int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

  NEED(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
  close(fd);
}

static bool
holds(const char *name, const char *text)
{
  char found[64] = {0};
  int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);

  NEED(fd >= 0 && read(fd, found, sizeof found - 1) >= 0);
  close(fd);
  return strncmp(found, text, strlen(text)) == 0;
}

static void
what_is_no_list_of_controllers_is_refused(void)
{
  static const char *const bad[] = {"",        "2", "3 dir=0 memory", "2 memory=0", "1 memory", "2 dir=0 misc",
                                    "1 dir=0", "x"};

  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    CHECK(cgroups_take(bad[i]) < 0);
  CHECK(cgroups_take("2 dir=9999 memory") < 0);
}

static void
what_was_taken_is_told(void)
{
  char text[64];
  int kept[CGROUP_DIRECTORIES_MAX];

  snprintf(text, sizeof text, "2 dir=%d memory cpu pids", dir);
  CHECK(cgroups_take(text) == 0);
  CHECK(strcmp(cgroups_told(), "2 memory cpu pids") == 0 && cgroups_version() == 2);
  CHECK(cgroups_descriptors(kept) == 1 && kept[0] == dir);
  CHECK(cgroups_control_memory() && cgroups_control_cpu());
}

static void
only_limits_that_differ_are_written(void)
{
  const struct cgroup_limits none = {0}, some = {.memory = 1 << 20, .processes = 5, .quota = 50000};
  const struct cgroup_limits less = {.memory = 1 << 20, .processes = 5};
  struct err err = {0};

  CHECK(cgroups_limit(7, &some, &none, &err) == 0);
  CHECK(holds("s7/memory.max", "1048576") && holds("s7/memory.swap.max", "0"));
  CHECK(holds("s7/cpu.max", "50000 100000") && holds("s7/pids.max", "7"));
  put("s7/memory.max", "as it was");
  CHECK(cgroups_limit(7, &less, &some, &err) == 0);
  CHECK(holds("s7/memory.max", "as it was") && holds("s7/cpu.max", "max 100000"));
}

static void
disks_are_bounded_one_by_one(void)
{
  static const char *const bad[] = {"8", "8:", "8:0;", "8:0,x", ","};
  const struct cgroup_limits none = {0}, some = {.io = 1 << 20};
  struct err err = {0};
  char text[64];

  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    CHECK(cgroups_take_disks(bad[i]) < 0);
  snprintf(text, sizeof text, "2 dir=%d memory cpu pids io", dir);
  CHECK(cgroups_take(text) == 0 && cgroups_take_disks("8:0,259:3") == 0);
  CHECK(strcmp(cgroups_told(), "2 memory cpu pids io") == 0 && cgroups_control_io());
  CHECK(cgroups_limit(7, &some, &none, &err) == 0 && holds("s7/io.max", "259:3 wbps=1048576"));
  CHECK(cgroups_limit(7, &none, &some, &err) == 0 && holds("s7/io.max", "259:3 wbps=max"));
  CHECK(cgroups_take_disks("") == 0 && !cgroups_control_io());
  CHECK(strcmp(cgroups_told(), "2 memory cpu pids") == 0);
}

static void
a_limit_that_cannot_be_written_is_an_error(void)
{
  const struct cgroup_limits none = {0}, some = {.memory = 1 << 20};
  struct err err = {0};

  CHECK(cgroups_limit(8, &some, &none, &err) < 0 && err.step == RAMET_STEP_INIT_CGROUP);
}

static void
peak_and_kills_are_read(void)
{
  uint64_t peak, kills;

  put("s7/memory.peak", "12345\n");
  put("s7/memory.events", "low 0\nhigh 9\nmax 8\noom 3\noom_kill 2\noom_group_kill 0\n");
  cgroups_read(7, &peak, &kills);
  CHECK(peak == 12345 && kills == 2);
  cgroups_read(8, &peak, &kills);
  CHECK(peak == 0 && kills == 0);
}

static void
what_is_busy_is_removed_later(void)
{
  NEED(mkdirat(dir, "s9", 0700) == 0);
  cgroups_remove(9);
  CHECK(faccessat(dir, "s9", F_OK, 0) < 0);
  cgroups_remove(9); /* nothing is there: no matter */
}

int
main(void)
{
  static const char *const files[] = {"memory.max",  "memory.swap.max", "cpu.max", "pids.max",
                                      "memory.peak", "memory.events",   "io.max"};
  char name[40];

  NEED(mkdtemp(top) != NULL);
  dir = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  NEED(dir >= 0 && mkdirat(dir, "s7", 0700) == 0);
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    snprintf(name, sizeof name, "s7/%s", files[i]);
    put(name, "");
  }
  RUN(what_is_no_list_of_controllers_is_refused);
  RUN(what_was_taken_is_told);
  RUN(only_limits_that_differ_are_written);
  RUN(disks_are_bounded_one_by_one);
  RUN(a_limit_that_cannot_be_written_is_an_error);
  RUN(peak_and_kills_are_read);
  RUN(what_is_busy_is_removed_later);
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    snprintf(name, sizeof name, "s7/%s", files[i]);
    unlinkat(dir, name, 0);
  }
  unlinkat(dir, "s7", AT_REMOVEDIR);
  rmdir(top);
  return tap_end();
}
