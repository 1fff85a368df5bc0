/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "probe.h"

#include <linux/fs.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "launch.h"
#include "mounts.h"
#include "syscalls.h"

#ifndef PAGEMAP_SCAN
/* linux/fs.h of Linux 6.7. */
struct pm_scan_arg {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted, category_mask,
      category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)
#endif
/* An id that no process of an ordinary host has: host root itself is never mapped. */
#define ROOT_MAP "0 1879048192 1"

static void
say(const char *name, int failed, const char *text)
{
  if (failed)
    printf("%s\t%d\t%s\n", name, errno, text[0] ? text : strerror(errno));
  else
    printf("%s\tok\t\n", name);
}

static void
say_err(const char *name, int result, const struct err *err)
{
  if (result < 0)
    printf("%s\t%d\t%s\n", name, err->number, err->text);
  else
    printf("%s\tok\t\n", name);
}

/* ---- namespaces: each with a user namespace of its own -------------------------------------------------------- */

static const struct {
  const char *name;
  uint64_t flag;
} namespaces[] = {
    {"userns", 0},           {"mntns", CLONE_NEWNS},  {"pidns", CLONE_NEWPID},       {"ipcns", CLONE_NEWIPC},
    {"utsns", CLONE_NEWUTS}, {"netns", CLONE_NEWNET}, {"cgroupns", CLONE_NEWCGROUP},
};

static int
probe_namespaces(void)
{
  int usable = 1;

  for (size_t i = 0; i < sizeof namespaces / sizeof namespaces[0]; i++) {
    fflush(stdout);
    long pid = sys_clone(CLONE_NEWUSER | namespaces[i].flag, NULL);
    if (pid == 0)
      _exit(0);
    say(namespaces[i].name, pid < 0, "");
    if (pid < 0)
      usable = 0;
    else
      waitpid((pid_t)pid, NULL, 0);
  }
  return usable;
}

/* ---- inside namespaces like core's ---------------------------------------------------------------------------- */

static int
probe_xattr(int tmpfs)
{
  cleanup_fd int file = openat(tmpfs, "file", O_CREAT | O_RDWR | O_CLOEXEC, 0600);

  return file < 0 ? -1 : fsetxattr(file, "user.ramet", "1", 1, 0);
}

static void
probe_overlay(void)
{
  struct err err = {0};
  struct tmpfs_options options = {.mode = "0755"};
  cleanup_fd int lower = tmpfs_make(&options, 0, RAMET_STEP_UPPER, &err);
  cleanup_fd int upper = lower < 0 ? -1 : tmpfs_make(&options, 0, RAMET_STEP_UPPER, &err);

  say_err("tmpfs", upper, &err);
  if (upper < 0)
    return;
  say("tmpfs-xattr", probe_xattr(upper) < 0, "");
  if (overlay_fill_upper(upper, &err) < 0) {
    say_err("overlay-userxattr", -1, &err);
    return;
  }
  /* Attached, which every kernel takes: /sys and /proc are there to stand on, and this namespace is thrown away. */
  if (tree_attach(lower, AT_FDCWD, "/sys", RAMET_STEP_OVERLAY, &err) < 0 ||
      tree_attach(upper, AT_FDCWD, "/tmp", RAMET_STEP_OVERLAY, &err) < 0) {
    say_err("overlay-userxattr", -1, &err);
    return;
  }
  cleanup_fd int overlay = overlay_make("/sys", "/tmp", &err);
  say_err("overlay-userxattr", overlay, &err);
}

/* Not needed, but a hand-out is faster with it: Linux 6.15. */
static void
probe_detached_layers(void)
{
  struct err err = {0};

  say("detached-layers", !overlay_takes_detached(&err), err.text);
}

static void
probe_kernel_calls(void)
{
  unsigned action = SECCOMP_RET_ERRNO;
  struct pm_scan_arg scan = {.size = sizeof scan, .category_mask = 0};
  cleanup_fd int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  cleanup_fd int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);

  say("seccomp-filter", syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) < 0, "");
  say("close-range", sys_close_range(1000000, 1000000, 0) < 0, "");
  say("pidfd", pidfd < 0, "");
  say("pagemap-scan", pagemap < 0 || ioctl(pagemap, PAGEMAP_SCAN, &scan) < 0, "");
}

static void
probe_inside(void)
{
  static const char *const pts[] = {"mode", "0620", "ptmxmode", "0666", NULL};
  struct err err = {0};

  say("private-mounts", mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0, "");
  probe_detached_layers();
  probe_overlay();
  cleanup_fd int proc = filesystem_make("proc", NULL, 0, RAMET_STEP_INIT_PROC, &err);
  say_err("proc", proc, &err);
  cleanup_fd int devpts = filesystem_make("devpts", pts, 0, RAMET_STEP_INIT_PTS, &err);
  say_err("devpts", devpts, &err);
  cleanup_fd int tree = tree_clone(AT_FDCWD, "/usr", RAMET_STEP_ROOT_BIND, &err);
  say_err("new-mount-api", tree, &err);
  say_err("mount-setattr", tree < 0 ? -1 : tree_set_read_only(tree, RAMET_STEP_ROOT_BIND, &err), &err);
  fflush(stdout);
}

static int
probe_as_core(void)
{
  struct err err = {0};
  char uid_map[32], gid_map[32], mapped;
  int go[2], status = 0;

  snprintf(uid_map, sizeof uid_map, geteuid() ? "0 %u 1" : ROOT_MAP, geteuid());
  snprintf(gid_map, sizeof gid_map, geteuid() ? "0 %u 1" : ROOT_MAP, getegid());
  fflush(stdout);
  if (pipe2(go, O_CLOEXEC) < 0)
    return EXIT_SYSTEM;
  long pid = sys_clone(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET, NULL);
  if (pid == 0) {
    close(go[1]);
    if (read(go[0], &mapped, 1) == 1 && setresgid(0, 0, 0) == 0 && setresuid(0, 0, 0) == 0)
      probe_inside();
    _exit(0);
  }
  close(go[0]);
  if (pid < 0)
    return EXIT_SYSTEM;
  int result = launch_map_ids(pid, uid_map, gid_map, NULL, &err);
  say_err("id-map", result, &err);
  fflush(stdout);
  if (result == 0 && write(go[1], "M", 1) != 1)
    return EXIT_SYSTEM;
  close(go[1]);
  waitpid((pid_t)pid, &status, 0);
  return 0;
}

int
probe_main(void)
{
  int usable = probe_namespaces();

  probe_kernel_calls();
  return usable ? probe_as_core() : 0;
}
