/* SPDX-License-Identifier: Apache-2.0
 * Objects of the sandbox's IPC namespace, which need no descriptor and no mapping to live: a child would not find
 * them. */
#define _GNU_SOURCE
#include "capture_parts.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#include "mounts.h"

static int
enter_namespace(const struct capture *capture)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/ns/ipc", capture->pid);
  cleanup_fd int ns = open(path, O_RDONLY | O_CLOEXEC);
  return ns < 0 ? -1 : setns(ns, CLONE_NEWIPC);
}

static int
refuse(struct capture *capture, bool found, const char *what, struct err *err)
{
  return found && capture_refuse(capture, err, "%s", what) < 0 && !capture_drops(capture->tree, err) ? -1 : 0;
}

/* Each of these tells the highest index in use, and by the way how many there are. */
static int
refuse_system_v(struct capture *capture, struct err *err)
{
  struct seminfo semaphores = {0};
  struct msginfo queues = {0};
  struct shm_info memory = {0};

  if (semctl(0, 0, SEM_INFO, &semaphores) < 0 || msgctl(0, MSG_INFO, (struct msqid_ds *)(void *)&queues) < 0 ||
      shmctl(0, SHM_INFO, (struct shmid_ds *)(void *)&memory) < 0)
    return err_step(err, RAMET_STEP_DESCRIPTORS, "System V objects: %s", strerror(errno));
  return refuse(capture, semaphores.semusz > 0, "has System V semaphores", err) < 0 ||
                 refuse(capture, queues.msgpool > 0, "has System V message queues", err) < 0 ||
                 refuse(capture, memory.used_ids > 0, "has System V shared memory", err) < 0
             ? -1
             : 0;
}

/* Their names are a file system; /proc tells of none. It is unmounted with the tracer: that waits for processors. */
static int
refuse_named_queues(struct capture *capture, struct err *err)
{
  int mount = filesystem_make("mqueue", NULL, 0, RAMET_STEP_DESCRIPTORS, err);
  int listing = mount < 0 ? -1 : openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = listing < 0 ? NULL : fdopendir(listing);
  int result = 0;

  if (!dir)
    return mount < 0 ? -1 : err_step(err, RAMET_STEP_DESCRIPTORS, "message queues: %s", strerror(errno));
  for (struct dirent *entry; result == 0 && (entry = readdir(dir));)
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
      result = capture_refuse(capture, err, "has a message queue (%.40s)", entry->d_name) < 0 &&
                       !capture_drops(capture->tree, err)
                   ? -1
                   : 0;
  closedir(dir);
  return result;
}

int
capture_ipc(struct capture *capture, struct err *err)
{
  if (enter_namespace(capture) < 0)
    return err_step(err, RAMET_STEP_DESCRIPTORS, "enter the IPC namespace: %s", strerror(errno));
  return refuse_system_v(capture, err) < 0 ? -1 : refuse_named_queues(capture, err);
}
