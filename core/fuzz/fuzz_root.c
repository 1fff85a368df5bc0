/* SPDX-License-Identifier: Apache-2.0
 * DEFINE_ROOT from any bytes: the entries of a skeleton, binds and layers. What would need privileges or leave files
 * is replaced below; which of those calls fail, the first bytes say. Whatever happens, nothing may stay behind. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "corefs.h"
#include "mounts.h"
#include "syscalls.h"
#include "treecopy.h"

static uint64_t failures; /* one bit a call, the lowest first; 0: success */
static bool detached;    /* what kind of kernel this is */
static int stored;

static int
result(void)
{
  int failed = failures & 1;

  failures >>= 1;
  errno = EACCES;
  return failed ? -1 : 0;
}

static int
descriptor(void)
{
  return result() < 0 ? -1 : memfd_create("fuzz", MFD_CLOEXEC);
}

static int
made(enum ramet_step step, struct err *err)
{
  int fd = descriptor();

  return fd < 0 ? err_step(err, step, "refused") : fd;
}

static int
named(const char *name)
{
  EXPECT(name[0] && !strchr(name, '/') && strcmp(name, ".") && strcmp(name, ".."));
  return result();
}

/* openat2(2), the only one that is made by number. */
static long
no_syscall(long number, ...)
{
  EXPECT(number == SYS_openat2);
  return descriptor();
}

#define mkdirat(dir, name, mode) named(name)
#define symlinkat(target, dir, name) ((target)[0] ? named(name) : -1)
#define openat(dir, name, ...) ((void)(dir), named(name) < 0 ? -1 : memfd_create("fuzz", MFD_CLOEXEC))
#define fchmodat(dir, name, mode, flags) ((mode) & ~07777u ? -1 : result())
#define fchmod(fd, mode) ((mode) & ~07777u ? -1 : result())
#define syscall(...) no_syscall(__VA_ARGS__)

#include "../src/rootfs.c"

int
tmpfs_make(const struct tmpfs_options *options, unsigned attributes, enum ramet_step step, struct err *err)
{
  (void)options;
  (void)attributes;
  return made(step, err);
}

int
tmpfs_resize(int tmpfs, uint64_t bytes, uint64_t inodes, enum ramet_step step, struct err *err)
{
  (void)bytes;
  (void)inodes;
  EXPECT(tmpfs >= 0);
  return result() < 0 ? err_step(err, step, "refused") : 0;
}

int
overlay_make(const char *lower, const char *upper, struct err *err)
{
  (void)lower;
  (void)upper;
  return made(RAMET_STEP_OVERLAY, err);
}

int
overlay_fill_upper(int tmpfs, struct err *err)
{
  (void)tmpfs;
  return result() < 0 ? err_step(err, RAMET_STEP_UPPER, "refused") : 0;
}

int
tree_clone(int dir, const char *path, enum ramet_step step, struct err *err)
{
  (void)dir;
  (void)path;
  return made(step, err);
}

int
tree_set_read_only(int mount, enum ramet_step step, struct err *err)
{
  EXPECT(mount >= 0);
  return result() < 0 ? err_step(err, step, "refused") : 0;
}

int
tree_attach(int mount, int dir, const char *path, enum ramet_step step, struct err *err)
{
  (void)mount;
  (void)dir;
  (void)path;
  return result() < 0 ? err_step(err, step, "refused") : 0;
}

int
treecopy(int from, int to, struct inodes *inodes, struct treecopy_count *count, enum ramet_step step,
         struct err *err)
{
  (void)from;
  (void)inodes;
  (void)to;
  (void)count;
  return result() < 0 ? err_step(err, step, "refused") : 0;
}

bool
corefs_detached_layers(void)
{
  return detached;
}

bool
corefs_detached_targets(void)
{
  return detached;
}

int
corefs_visit_host(enum ramet_step step, struct err *err)
{
  return result() < 0 ? err_step(err, step, "refused") : 0;
}

void
corefs_return_home(void)
{
}

int
corefs_open_host_tree(const char *path, enum ramet_step step, struct err *err)
{
  EXPECT(path[0] == '/' && strlen(path) < PATH_MAX && !strstr(path, "//") && !strstr(path, "/../"));
  return made(step, err);
}

int
corefs_adopt(int lent, enum ramet_step step, struct err *err)
{
  EXPECT(fcntl(lent, F_GETFD) >= 0);
  return made(step, err);
}

int
corefs_store(int mount, enum ramet_step step, struct err *err)
{
  EXPECT(mount >= 0);
  if (result() < 0)
    return err_step(err, step, "refused");
  return stored++;
}

void
corefs_unstore(int slot)
{
  EXPECT(slot >= 0);
  stored--;
}

int
corefs_copy(const int *slots, int count, int *fds, enum ramet_step step, struct err *err)
{
  (void)slots;
  for (int i = 0; i < count; i++)
    fds[i] = -1;
  return err_step(err, step, "refused");
}

static int
lowest_descriptor(void)
{
  int fd = memfd_create("fuzz", MFD_CLOEXEC);

  EXPECT(fd >= 0);
  close(fd);
  return fd;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  struct err err = {0};
  struct frame frame = {.kind = RAMET_DEFINE_ROOT};
  uint32_t id = 0;

  if (size < sizeof failures + 1)
    return 0;
  int before = lowest_descriptor();
  memcpy(&failures, data, sizeof failures);
  detached = data[sizeof failures] & 0x80;
  for (int i = data[sizeof failures] % 4; i > 0; i--)
    frame.fds[frame.fd_count++] = memfd_create("lent", MFD_CLOEXEC);
  frame.payload = (struct span){data + sizeof failures + 1, (uint32_t)(size - sizeof failures - 1)};
  if (root_define(&frame, &err) == 0) {
    EXPECT(root_count() == 1 && roots->id != 0 && root_find(roots->id) == roots);
    EXPECT(roots->bind_count <= RAMET_BINDS_MAX && roots->layer_count <= RAMET_LAYERS_MAX);
    id = roots->id;
    EXPECT(root_define(&frame, &err) < 0); /* the number is taken; or something failed */
    EXPECT(root_drop(id, &err) == 0);
  } else {
    EXPECT(err.text[0] && err.code[0]);
  }
  frame_release(&frame);
  EXPECT(root_count() == 0 && stored == 0);
  EXPECT(lowest_descriptor() == before);
  return 0;
}
