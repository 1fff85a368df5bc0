/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "usage.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>

#include "procfs.h"

#define PROCESSES_MAX 65536
/* Of /proc/PID/stat, proc(5). */
enum { FIELD_USER = 14, FIELD_SYSTEM = 15, FIELD_USER_REAPED = 16, FIELD_SYSTEM_REAPED = 17, FIELD_THREADS = 20 };

struct sum {
  uint64_t user, system, resident, shared;
  uint32_t processes, threads;
};

static uint64_t
field_bytes(const char *text, const char *name)
{
  const char *value = procfs_field(text, name);

  return value ? strtoull(value, NULL, 10) * 1024 : 0;
}

/* From the page tables: the resident set of stat and statm is of counters per processor, which for a small process are
 * behind by all of it. Shared are pages that a snapshot, or any other process, has as well: memory of a fork that nobody
 * has written to, programs. */
static void
add_memory(struct sum *sum, int pid)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/smaps_rollup", pid);
  cleanup_free char *text = procfs_read(path, NULL);
  if (!text)
    return; /* of a zombie nothing is resident */
  sum->resident += field_bytes(text, "Rss");
  sum->shared += field_bytes(text, "Shared_Clean") + field_bytes(text, "Shared_Dirty");
}

/* Time of those who are gone is in whoever waited for them, in the end in init. */
static void
add(struct sum *sum, int pid, bool is_init)
{
  char path[32];

  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  cleanup_free char *stat = procfs_read(path, NULL);
  if (!stat)
    return;
  sum->user += procfs_stat_field(stat, FIELD_USER_REAPED) + (is_init ? 0 : procfs_stat_field(stat, FIELD_USER));
  sum->system +=
      procfs_stat_field(stat, FIELD_SYSTEM_REAPED) + (is_init ? 0 : procfs_stat_field(stat, FIELD_SYSTEM));
  if (is_init)
    return;
  add_memory(sum, pid);
  sum->threads += (uint32_t)procfs_stat_field(stat, FIELD_THREADS);
  sum->processes++;
}

static uint64_t
nanoseconds(uint64_t ticks)
{
  return ticks * (1000000000u / (uint64_t)sysconf(_SC_CLK_TCK));
}

static uint64_t
used_bytes(const struct statfs *fs)
{
  return (uint64_t)(fs->f_blocks - fs->f_bfree) * (uint64_t)fs->f_bsize;
}

/* Below the sandbox's /dev, of which nothing is the guest's but what is in there. */
static int
put_shm(int tree, struct writer *writer, struct err *err)
{
  struct statfs fs;
  cleanup_fd int shm = openat(tree, "dev/shm", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

  if (shm < 0 || fstatfs(shm, &fs) < 0)
    return err_code(err, "internal", "its /dev/shm cannot be told: %s", strerror(errno));
  put_u64(writer, RAMET_TAG_SHM_PEAK, used_bytes(&fs));
  put_u64(writer, RAMET_TAG_SHM_BYTES, (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize);
  put_u64(writer, RAMET_TAG_SHM_FILE_COUNT, (uint64_t)(fs.f_files - fs.f_ffree));
  put_u64(writer, RAMET_TAG_SHM_INODES, (uint64_t)fs.f_files);
  return 0;
}

int
usage_put(int init, int tree, bool own_shm, struct writer *writer, struct err *err)
{
  static int pids[PROCESSES_MAX];
  struct sum sum = {0};
  struct statfs fs;
  int count = 1;

  pids[0] = init;
  for (int at = 0; at < count; at++) {
    add(&sum, pids[at], at == 0);
    int found = procfs_children(pids[at], pids + count, PROCESSES_MAX - count);
    if (found < 0)
      return err_code(err, "internal", "its processes cannot be told: %s", strerror(errno));
    count += found;
  }
  if (fstatfs(tree, &fs) < 0)
    return err_code(err, "internal", "its disk cannot be told: %s", strerror(errno));
  put_u64(writer, RAMET_TAG_USER_NS, nanoseconds(sum.user));
  put_u64(writer, RAMET_TAG_SYSTEM_NS, nanoseconds(sum.system));
  put_u64(writer, RAMET_TAG_MEMORY_BYTES, sum.resident);
  put_u64(writer, RAMET_TAG_SHARED_BYTES, sum.shared);
  put_u32(writer, RAMET_TAG_PROCESS_COUNT, sum.processes);
  put_u32(writer, RAMET_TAG_THREAD_COUNT, sum.threads);
  put_u64(writer, RAMET_TAG_FILE_BYTES, used_bytes(&fs));
  put_u64(writer, RAMET_TAG_DISK_BYTES, (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize);
  put_u64(writer, RAMET_TAG_FILE_COUNT, (uint64_t)(fs.f_files - fs.f_ffree));
  put_u64(writer, RAMET_TAG_DISK_INODES, (uint64_t)fs.f_files);
  return own_shm ? put_shm(tree, writer, err) : 0;
}
