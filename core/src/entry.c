/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "entry.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "init.h"
#include "networks.h"
#include "syscalls.h"

/* Without CLONE_NEWNET: init is born in a network namespace that was kept (networks.h), or unshares one for itself, for
 * the kernel takes about 0.4 ms for that, and core would not hear of anything meanwhile; and the cgroup namespace, whose root is to be the entry's own cgroup. */
#define NAMESPACES (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS)

static char uid_map[512], gid_map[512];
static bool single_uid;

/* An id map of an entry must lie inside core's, range by range: "All of the mapping must be mapped" (user_namespaces(7)). */
static int
read_map(const char *path, char *out, size_t size, uint32_t *mapped, struct err *err)
{
  FILE *file = fopen(path, "re");
  unsigned inside, outside, count;
  size_t used = 0;

  if (!file)
    return err_step(err, RAMET_STEP_TAKE_IDS, "open %s: %s", path, strerror(errno));
  *mapped = 0;
  while (fscanf(file, "%u %u %u", &inside, &outside, &count) == 3 && used + 40 < size) {
    used += (size_t)snprintf(out + used, size - used, "%u %u %u\n", inside, inside, count);
    *mapped += count;
  }
  fclose(file);
  if (used == 0) {
    errno = EINVAL;
    return err_step(err, RAMET_STEP_TAKE_IDS, "%s is empty", path);
  }
  return 0;
}

int
sandbox_setup(struct err *err)
{
  uint32_t uids, gids;

  if (read_map("/proc/self/uid_map", uid_map, sizeof uid_map, &uids, err) < 0 ||
      read_map("/proc/self/gid_map", gid_map, sizeof gid_map, &gids, err) < 0)
    return -1;
  single_uid = uids == 1 || gids == 1;
  return 0;
}

bool
sandbox_single_uid(void)
{
  return single_uid;
}

static int
write_map(int pid, const char *name, const char *map, struct err *err)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
  cleanup_fd int fd = open(path, O_WRONLY | O_CLOEXEC);
  size_t length = strlen(map);
  if (fd < 0 || write(fd, map, length) != (ssize_t)length)
    return err_step(err, RAMET_STEP_MAP_INIT, "%s: %s", name, strerror(errno));
  return 0;
}

static int
map_ids(int pid, struct err *err)
{
  if (fault_here(RAMET_STEP_MAP_INIT, err) < 0)
    return -1;
  return write_map(pid, "uid_map", uid_map, err) < 0 ? -1 : write_map(pid, "gid_map", gid_map, err);
}

static int
clone_init(struct sandbox *sandbox, struct err *err)
{
  int pair[2];

  if (fault_here(RAMET_STEP_CLONE_INIT, err) < 0)
    return -1;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
    return err_step(err, RAMET_STEP_CLONE_INIT, "socketpair: %s", strerror(errno));
  bool inside = sandbox->network >= 0 && network_enter(sandbox->network) == 0;
  const struct birth birth = {sandbox->cgroup, sandbox->limits,
                              sandbox->cgroup_is_there ? &sandbox->limits_before : NULL, inside};
  long pid = sys_clone(NAMESPACES | CLONE_PIDFD, &sandbox->pidfd);
  if (pid == 0)
    init_main(pair[1], &birth);
  int saved = errno;
  if (inside)
    network_leave();
  close_fd(&sandbox->network);
  close(pair[1]);
  sandbox->channel = pair[0];
  errno = saved;
  if (pid < 0)
    return err_step(err, RAMET_STEP_CLONE_INIT, "clone: %s", strerror(errno));
  sandbox->pid = (int)pid;
  return 0;
}

int
entry_clone(struct sandbox *sandbox, struct err *err)
{
  return clone_init(sandbox, err) < 0 ? -1 : map_ids(sandbox->pid, err);
}
