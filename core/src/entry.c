/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "entry.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "networks.h"
#include "sandbox.h"
#include "syscalls.h"
#include "wire.h"

/* Without CLONE_NEWNET: init is born in a network namespace that was kept (networks.h), or unshares one for itself, for
 * the kernel takes about 0.4 ms for that, and other entries would wait meanwhile. Nor with a cgroup namespace, whose root is
 * to be the entry's own cgroup. */
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

/* CLONE_PARENT: it is core's child. Told to prepare here, once its ids are mapped, so that core is not waited for. */
static int
clone_init(const struct birth *asked, int out[2], struct err *err)
{
  struct birth birth = *asked;
  int pair[2];

  if (fault_here(RAMET_STEP_CLONE_INIT, err) < 0)
    return -1;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
    return err_step(err, RAMET_STEP_CLONE_INIT, "socketpair: %s", strerror(errno));
  birth.has_network = birth.network >= 0 && network_enter(birth.network) == 0;
  long pid = sys_clone(NAMESPACES | CLONE_PARENT | CLONE_PIDFD, &out[1]);
  if (pid == 0)
    init_main(pair[1], &birth);
  int saved = errno;
  if (birth.has_network)
    network_leave();
  close(pair[1]);
  out[0] = pair[0];
  errno = saved;
  return pid < 0 ? err_step(err, RAMET_STEP_CLONE_INIT, "clone: %s", strerror(errno)) : (int)pid;
}

static int
begin(int pid, int channel, struct err *err)
{
  struct writer nothing = {0};

  if (map_ids(pid, err) < 0)
    return -1;
  if (frame_send(channel, RAMET_INIT_PREPARE, 0, &nothing, NULL, 0) < 0)
    return err_step(err, RAMET_STEP_CLONE_INIT, "speak to init: %s", strerror(errno));
  return 0;
}

int
entry_clone(const struct birth *birth, int out[2], struct err *err)
{
  fault_arm(birth->fault);
  int pid = clone_init(birth, out, err);
  int result = pid < 0 ? -1 : begin(pid, out[0], err);
  fault_arm(RAMET_STEP_NONE);
  if (result == 0)
    return pid;
  if (pid > 0)
    sys_pidfd_send_signal(out[1], SIGKILL);
  close_fd(&out[0]);
  close_fd(&out[1]);
  return -1;
}
