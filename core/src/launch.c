/* SPDX-License-Identifier: Apache-2.0
 * The launcher: clones core into its namespaces, maps its ids from outside, waits until it serves, exits.
 *
 * Stages:  launcher: clone ── map ids ── "M" ─► core: take ids, execute the program again, set up, serve
 *                                        ◄─ "R" ──┘
 * CLONE_PARENT makes core a child of whoever called the launcher, so that the daemon reaps it. A user namespace's
 * maps can be written only by a process outside it that holds the ids, hence two processes. */
#define _GNU_SOURCE
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "cgroups.h"
#include "launch.h"
#include "log.h"
#include "quotas.h"
#include "serve.h"
#include "syscalls.h"

#define NAMESPACES                                                                                                 \
  (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWCGROUP)
#define MAP_WORDS_MAX 64

static int
write_proc(long pid, const char *name, const char *text, struct err *err)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%ld/%s", pid, name);
  cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);
  ssize_t length = (ssize_t)strlen(text);
  if (fd < 0 || write(fd, text, (size_t)length) != length)
    return err_step(err, RAMET_STEP_MAP_IDS, "%s: %s", name, strerror(errno));
  return 0;
}

static int
write_map(long pid, const char *name, const char *map, struct err *err)
{
  char lines[512];

  if (snprintf(lines, sizeof lines, "%s\n", map) >= (int)sizeof lines)
    return err_field(err, name, "is too long");
  for (char *c = lines; *c; c++)
    if (*c == ',')
      *c = '\n';
  return write_proc(pid, name, lines, err);
}

/* newuidmap(1) is setuid root and writes the ranges of /etc/subuid. */
static int
helper_map(long pid, const char *directory, const char *helper, const char *map, struct err *err)
{
  char path[256], words[512], number[24];
  char *argv[MAP_WORDS_MAX + 3] = {path, number};
  int argc = 2, status;

  snprintf(path, sizeof path, "%s/%s", directory, helper);
  snprintf(number, sizeof number, "%ld", pid);
  snprintf(words, sizeof words, "%s", map);
  for (char *word = strtok(words, " ,"); word && argc < MAP_WORDS_MAX + 2; word = strtok(NULL, " ,"))
    argv[argc++] = word;
  argv[argc] = NULL;
  pid_t child = vfork();
  if (child == 0) {
    execv(path, argv);
    _exit(127);
  }
  if (child < 0 || waitpid(child, &status, 0) < 0)
    return err_step(err, RAMET_STEP_MAP_IDS, "%s: %s", helper, strerror(errno));
  if (status != 0) {
    errno = EPERM;
    return err_step(err, RAMET_STEP_MAP_IDS, "%s ended with status %#x", path, (unsigned)status);
  }
  return 0;
}

int
launch_map_ids(long pid, const char *uid_map, const char *gid_map, const char *newidmap, struct err *err)
{
  if (newidmap)
    return helper_map(pid, newidmap, "newuidmap", uid_map, err) < 0
               ? -1
               : helper_map(pid, newidmap, "newgidmap", gid_map, err);
  /* An unprivileged writer of gid_map must give up setgroups(2) first: user_namespaces(7). */
  if (geteuid() != 0 && write_proc(pid, "setgroups", "deny", err) < 0)
    return -1;
  return write_map(pid, "uid_map", uid_map, err) < 0 ? -1 : write_map(pid, "gid_map", gid_map, err);
}

static int
map_ids(long pid, const struct serve_options *options, struct err *err)
{
  if (fault_here(RAMET_STEP_MAP_IDS, err) < 0)
    return -1;
  return launch_map_ids(pid, options->uid_map, options->gid_map, options->newidmap, err);
}

static int
report(const struct serve_options *options, const struct err *err)
{
  cleanup_writer struct writer writer = {0};

  put_err(&writer, err);
  log_setup(options->log);
  log_err("launch_failed", err);
  if (frame_send(options->control.connection, RAMET_ERROR, 0, &writer, NULL, 0) < 0)
    fprintf(stderr, "ramet-core: %s\n", err->text);
  return EXIT_SYSTEM;
}

static int
take_ids(struct err *err)
{
  if (fault_here(RAMET_STEP_TAKE_IDS, err) < 0)
    return -1;
  /* With one mapped id "deny" stands in /proc/self/setgroups and the launching user's groups stay. */
  if (setgroups(0, NULL) < 0 && errno != EPERM)
    return err_step(err, RAMET_STEP_TAKE_IDS, "setgroups: %s", strerror(errno));
  if (setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
    return err_step(err, RAMET_STEP_TAKE_IDS, "become uid 0 inside: %s", strerror(errno));
  return 0;
}

/* Core is the program run again, inside: memory that was mapped before belongs to the host's user namespace, and
 * capabilities in core's own would not reach it (ptrace_may_access), nor the memory of any fork. */
static void
run_core(const struct serve_options *options, char **argv, int program, int report)
{
  const int kept[] = {options->control.connection,
                      options->control.listener,
                      options->control.runtime_dir,
                      options->log,
                      options->hold,
                      options->spill,
                      report};
  static char *const no_environment[] = {NULL};
  char *words[64], number[16];
  int count = 0;

  snprintf(number, sizeof number, "%d", report);
  for (; argv[count] && count < 60; count++)
    words[count] = argv[count];
  words[0] = (char *)(uintptr_t)"ramet-core";
  words[1] = (char *)(uintptr_t)"core";
  words[count++] = (char *)(uintptr_t)"--report";
  words[count++] = number;
  words[count] = NULL;
  for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
    if (kept[i] >= 0)
      fcntl(kept[i], F_SETFD, 0);
  int groups[CGROUP_DIRECTORIES_MAX], group_count = cgroups_descriptors(groups);
  for (int i = 0; i < group_count; i++)
    fcntl(groups[i], F_SETFD, 0);
  syscall(SYS_execveat, program, "", words, no_environment, AT_EMPTY_PATH);
}

static void
core_stage(const struct serve_options *options, char **argv, int go[2], int ready[2])
{
  struct err err = {0};
  char mapped;
  /* Opened with the launcher's rights: the directory may be closed to the ids that core takes. */
  int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

  close(go[1]);
  close(ready[0]);
  if (read(go[0], &mapped, 1) != 1 || mapped != 'M')
    _exit(EXIT_SYSTEM);
  close(go[0]);
  if (take_ids(&err) == 0 && fault_here(RAMET_STEP_RUN_CORE, &err) == 0) {
    run_core(options, argv, program, ready[1]);
    err_step(&err, RAMET_STEP_RUN_CORE, "execute the program again: %s", strerror(errno));
  }
  _exit(report(options, &err));
}

int
launch(const struct serve_options *options, char **argv)
{
  struct err err = {0};
  int go[2], ready[2];
  char state = 0;

  fault_arm(options->fault);
  if (pipe2(go, O_CLOEXEC) < 0 || pipe2(ready, O_CLOEXEC) < 0) {
    err_code(&err, "internal", "pipe: %s", strerror(errno));
    return report(options, &err);
  }
  if (fault_here(RAMET_STEP_CORE_CGROUP, &err) < 0 || cgroups_enter(&err) < 0)
    return report(options, &err);
  if (fault_here(RAMET_STEP_CLONE_CORE, &err) < 0)
    return report(options, &err);
  quotas_lower();
  long pid = sys_clone(NAMESPACES | CLONE_PARENT, NULL);
  if (pid == 0)
    core_stage(options, argv, go, ready);
  if (pid < 0) {
    err_step(&err, RAMET_STEP_CLONE_CORE, "clone: %s", strerror(errno));
    return report(options, &err);
  }
  close(go[0]);
  close(ready[1]);
  /* Core is the child of whoever started this program, who has to reap it also when it fails. */
  dprintf(STDOUT_FILENO, "%ld\n", pid);
  if (cgroups_settle(pid, &err) < 0 || map_ids(pid, options, &err) < 0) {
    close(go[1]); /* core reads the end and exits */
    return report(options, &err);
  }
  if (write(go[1], "M", 1) != 1 || read(ready[0], &state, 1) != 1 || state != 'R')
    return EXIT_SYSTEM; /* core has told why */
  return 0;
}
