/* SPDX-License-Identifier: Apache-2.0
 * The budget of snapshots: what their stems, spares and page files take, who gives it up, and when no more are taken. */
#define _GNU_SOURCE
#include "snapshot_parts.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "../pie/args.h"
#include "log.h"
#include "procfs.h"

/* Of a spare that has not said yet which process it is. */
#define SPARE_BYTES (1u << 20)
/* Before what was given up, a weight may be this old. */
#define STALE_NS 1000000000u

static uint64_t budget; /* 0: none */
static int directory = -1;

/* ---- weights -------------------------------------------------------------------------------------------------- */

/* Bytes by that name in /proc/PID/smaps_rollup. */
static uint64_t
rollup(pid_t pid, const char *const *names, int count)
{
  char path[48];
  uint64_t bytes = 0;

  snprintf(path, sizeof path, "/proc/%d/smaps_rollup", pid);
  cleanup_free char *text = procfs_read(path, NULL);
  for (int i = 0; text && i < count; i++) {
    const char *at = strstr(text, names[i]);
    bytes += at ? strtoull(at + strlen(names[i]), NULL, 10) * 1024 : 0;
  }
  return bytes;
}

static uint64_t
resident(pid_t pid)
{
  char path[48];
  unsigned long long whole, files;

  snprintf(path, sizeof path, "/proc/%d/statm", pid);
  cleanup_free char *text = procfs_read(path, NULL);
  return text && sscanf(text, "%*u %llu %llu", &whole, &files) == 2 ? (whole - files) * IMAGE_PAGE : 0;
}

/* All it has, which for the fork of a twin is the most it may be: its pages are shared with others of its family. */
void
snapshot_memory_charge(struct snapshot *s)
{
  s->stem_bytes = s->anonymous_bytes = resident(s->stem_pid);
  s->weighed_at = 0;
}

/* While it has had no stem yet: what its image tells of. */
uint64_t
snapshot_inheritance(const struct snapshot *s)
{
  uint64_t bytes = s->anonymous_bytes;

  for (uint32_t i = 0; !s->anonymous_bytes && i < s->image.process_count; i++)
    for (uint32_t run = 0; run < s->image.processes[i].run_count; run++)
      if (s->image.processes[i].runs[run].offset != IMAGE_GUARD)
        bytes += s->image.processes[i].runs[run].length;
  return bytes;
}

static bool
is_memory(int file)
{
  struct statfs fs;

  return fstatfs(file, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

/* One that has a name is there without core, too. */
void
snapshot_memory_charge_pages(struct snapshot *s)
{
  struct stat st;

  s->pages_bytes =
      is_memory(s->pages) && fstat(s->pages, &st) == 0 && st.st_nlink == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

void
snapshot_memory_charge_spare(struct snapshot *s)
{
  s->spare_bytes = SPARE_BYTES;
}

/* Its share of what it has in common with others. A stem that was filled owns its pages, whoever shares them. */
static void
weigh(struct snapshot *s, uint64_t since)
{
  static const char *const share[] = {"\nPss_Anon:"}, *const own[] = {"\nPrivate_Clean:", "\nPrivate_Dirty:"};
  struct pie_status word;

  if (s->weighed_at > since || s->state != SNAPSHOT_READY)
    return;
  s->weighed_at = loop_now();
  if (s->stem >= 0 && s->by_twin && s->in_stem)
    s->stem_bytes = rollup(s->stem_pid, share, 1);
  if (s->spare >= 0 && s->spare_pid == 0 && recv(s->spare, &word, sizeof word, MSG_DONTWAIT) == sizeof word)
    s->spare_pid = (pid_t)word.value;
  if (s->spare >= 0 && s->spare_pid)
    s->spare_bytes = rollup(s->spare_pid, own, 2);
}

static uint64_t
total(void)
{
  uint64_t bytes = 0;

  for (struct snapshot *s = snapshot_next(NULL); s; s = snapshot_next(s))
    bytes += s->stem_bytes + s->spare_bytes + s->pages_bytes;
  return bytes;
}

static void
weigh_all(uint64_t since)
{
  for (struct snapshot *s = snapshot_next(NULL); s; s = snapshot_next(s))
    weigh(s, since);
}

/* Weighing costs a walk through page tables: only when it may matter. */
static bool
is_over(void)
{
  if (budget == 0 || total() <= budget)
    return false;
  weigh_all(loop_now() - STALE_NS);
  return total() > budget;
}

uint64_t
snapshot_memory_used(void)
{
  weigh_all(0);
  return total();
}

uint64_t
snapshot_memory_budget(void)
{
  return budget;
}

int
snapshot_memory_directory(void)
{
  return directory;
}

bool
snapshot_memory_fits_spare(void)
{
  return budget == 0 || total() + SPARE_BYTES <= budget;
}

/* ---- giving up ------------------------------------------------------------------------------------------------ */

static struct snapshot *
coldest_with_spare(void)
{
  struct snapshot *coldest = NULL;

  for (struct snapshot *s = snapshot_next(NULL); s; s = snapshot_next(s))
    if (s->spare >= 0 && (!coldest || s->used_at < coldest->used_at))
      coldest = s;
  return coldest;
}

static struct snapshot *
being_written(void)
{
  for (struct snapshot *s = snapshot_next(NULL); s; s = snapshot_next(s))
    if (s->exporting)
      return s;
  return NULL;
}

static bool
can_go(const struct snapshot *s)
{
  return s->state == SNAPSHOT_READY && s->stem >= 0 && !s->orders && !s->exporting &&
         (!s->in_stem || (directory >= 0 && !s->stays));
}

/* Whose stem goes next. `hottest` stays: it is forked again, as a rule, and would only be built again. */
static struct snapshot *
coldest_stem(bool spare_hottest)
{
  const struct snapshot *hottest = NULL;
  struct snapshot *coldest = NULL;

  for (struct snapshot *s = snapshot_next(NULL); s; s = snapshot_next(s))
    if (s->stem >= 0 && (!hottest || s->used_at > hottest->used_at))
      hottest = s;
  for (struct snapshot *s = snapshot_next(NULL); s; s = snapshot_next(s))
    if (can_go(s) && (s != hottest || !spare_hottest) && (!coldest || s->used_at < coldest->used_at))
      coldest = s;
  return coldest;
}

/* Memory that is only there has to be written out first, which takes its time: one at a time. */
static void
give_up_stem(struct snapshot *s)
{
  struct err err;

  if (!s->in_stem) {
    snapshot_end_stem(s);
  } else if (snapshot_write_out(s, &err) < 0) {
    log_err("snapshot_not_written", &err);
    s->stays = true;
  }
}

static void
relieve(bool spare_hottest)
{
  struct snapshot *s;

  while (is_over())
    if ((s = coldest_with_spare()))
      snapshot_end_spare(s);
    else if (!being_written() && (s = coldest_stem(spare_hottest)))
      give_up_stem(s);
    else
      return;
}

void
snapshot_memory_relieve(void)
{
  relieve(true);
}

void
snapshot_memory_shrink(void)
{
  struct snapshot *s = coldest_with_spare();

  if (s)
    snapshot_end_spare(s);
  else if (!being_written() && (s = coldest_stem(true)))
    give_up_stem(s);
}

/* While one is written out others may be taken, up to twice the budget. */
int
snapshot_memory_admit(struct err *err)
{
  relieve(false);
  uint64_t used = total();
  const struct snapshot *written = being_written();
  bool bounded = written && used - written->stem_bytes <= 2 * budget;

  if (!is_over() || bounded)
    return 0;
  return err_code(err, "snapshot_memory", "snapshots take %" PRIu64 " of %" PRIu64 " bytes of memory, and %s", used,
                  budget,
                  directory < 0 ? "there is no directory to write any to"
                  : written     ? "writing them out takes its time"
                                : "none of them can be written out");
}

/* ---- setup ---------------------------------------------------------------------------------------------------- */

/* What would be memory again is of no use. */
static const char *
uselessness(int candidate)
{
  cleanup_fd int probe = openat(candidate, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

  if (probe < 0)
    return strerror(errno);
  return is_memory(probe) ? "it is in memory" : NULL;
}

void
snapshot_memory_setup(uint64_t bytes, int candidate)
{
  const char *why = candidate >= 0 ? uselessness(candidate) : NULL;

  budget = bytes;
  directory = why ? -1 : candidate;
  if (why)
    log_text("no_directory_for_snapshots", why);
}
