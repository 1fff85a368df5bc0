/* SPDX-License-Identifier: Apache-2.0
 * System calls that the C libraries we build with (glibc 2.31+, musl) do not all wrap. */
#ifndef RAMET_SYSCALLS_H
#define RAMET_SYSCALLS_H

#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_open_tree
#define SYS_open_tree 428
#define SYS_move_mount 429
#define SYS_fsopen 430
#define SYS_fsconfig 431
#define SYS_fsmount 432
#define SYS_fspick 433
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif
#ifndef AT_EMPTY_PATH
#define AT_EMPTY_PATH 0x1000
#endif

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

static inline int
sys_renameat2(int from, const char *from_path, int to, const char *to_path, unsigned flags)
{
  return (int)syscall(SYS_renameat2, from, from_path, to, to_path, flags);
}

static inline int
sys_open_tree(int dir, const char *path, unsigned flags)
{
  return (int)syscall(SYS_open_tree, dir, path, flags);
}

static inline int
sys_move_mount(int from, const char *from_path, int to, const char *to_path, unsigned flags)
{
  return (int)syscall(SYS_move_mount, from, from_path, to, to_path, flags);
}

static inline int
sys_fsopen(const char *type, unsigned flags)
{
  return (int)syscall(SYS_fsopen, type, flags);
}

static inline int
sys_fsconfig(int fs, unsigned command, const char *key, const void *value, int aux)
{
  return (int)syscall(SYS_fsconfig, fs, command, key, value, aux);
}

static inline int
sys_fspick(int dir, const char *path, unsigned flags)
{
  return (int)syscall(SYS_fspick, dir, path, flags);
}

static inline int
sys_fsmount(int fs, unsigned flags, unsigned attributes)
{
  return (int)syscall(SYS_fsmount, fs, flags, attributes);
}

static inline int
sys_mount_setattr(int dir, const char *path, unsigned flags, struct mount_attr *attr)
{
  return (int)syscall(SYS_mount_setattr, dir, path, flags, attr, sizeof *attr);
}

static inline int
sys_pivot_root(const char *new_root, const char *put_old)
{
  return (int)syscall(SYS_pivot_root, new_root, put_old);
}

static inline int
sys_close_range(unsigned first, unsigned last, unsigned flags)
{
  return (int)syscall(SYS_close_range, first, last, flags);
}

static inline int
sys_pidfd_send_signal(int pidfd, int number)
{
  return (int)syscall(SYS_pidfd_send_signal, pidfd, number, NULL, 0);
}

/* A path of a guest's that was resolved once: a link in it is not of that time. */
#define RESOLVE_AS_NAMED (RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)
/* What is to be written of our own accord: a bind may be a directory of the host's. */
#define RESOLVE_IN_OWN_LAYER (RESOLVE_AS_NAMED | RESOLVE_NO_XDEV)

static inline int
sys_openat2(int dir, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve)
{
  struct open_how how = {.flags = flags | O_CLOEXEC, .mode = mode, .resolve = resolve};

  return (int)syscall(SYS_openat2, dir, path, &how, sizeof how);
}

/* fork() without libc's handlers: core is single threaded and its children never return to libc's exit. */
static inline long
sys_clone(uint64_t flags, int *pidfd)
{
  return syscall(SYS_clone, flags | SIGCHLD, NULL, pidfd, NULL, 0);
}

#endif
