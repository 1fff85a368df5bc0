/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "proc_masks.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "corefs.h"
#include "mounts.h"

#define STEP RAMET_STEP_INIT_MASK_PROC

enum cover { COVER_NONE, COVER_FILE, COVER_DIRECTORY };

/* What container runtimes hide. Most of it only host root could read, whom no guest ever is; keys and key-users show
 * the host user's keyrings, the rest names hardware. Directories come with modules of the kernel, at any time; which
 * files there are was decided when it was built. */
static struct masked {
  const char *name;
  bool comes_later;
  enum cover cover;
} masked[] = {
    {.name = "acpi", .comes_later = true},
    {.name = "asound", .comes_later = true},
    {.name = "bus", .comes_later = true},
    {.name = "driver", .comes_later = true},
    {.name = "fs", .comes_later = true},
    {.name = "irq", .comes_later = true},
    {.name = "scsi", .comes_later = true},
    {.name = "interrupts"},
    {.name = "iomem"},
    {.name = "ioports"},
    {.name = "kallsyms"},
    {.name = "kcore"},
    {.name = "key-users"},
    {.name = "keys"},
    {.name = "kmsg"},
    {.name = "kpagecgroup"},
    {.name = "kpagecount"},
    {.name = "kpageflags"},
    {.name = "latency_stats"},
    {.name = "mtrr"},
    {.name = "pagetypeinfo"},
    {.name = "sched_debug"},
    {.name = "slabinfo"},
    {.name = "sysrq-trigger"},
    {.name = "timer_list"},
    {.name = "timer_stats"},
    {.name = "vmallocinfo"},
};
enum { MASKED = sizeof masked / sizeof masked[0] };

static int
look(int proc, const char *name, enum cover *cover, struct err *err)
{
  struct stat st;

  *cover = COVER_NONE;
  if (fstatat(proc, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
    return errno == ENOENT ? 0 : err_step(err, STEP, "stat %s: %s", name, strerror(errno));
  /* A file that nobody but the host's root may touch is closed by its mode: no id of a guest is host root. */
  if (!S_ISREG(st.st_mode) || (st.st_mode & 0077) != 0 || st.st_uid == 0)
    *cover = S_ISDIR(st.st_mode) ? COVER_DIRECTORY : COVER_FILE;
  return 0;
}

int
proc_masks_learn(int proc, struct err *err)
{
  for (int i = 0; i < MASKED; i++)
    if (!masked[i].comes_later && look(proc, masked[i].name, &masked[i].cover, err) < 0)
      return -1;
  return 0;
}

static int
attach(int proc, const char *name, enum cover cover, struct err *err)
{
  cleanup_fd int mount = tree_clone(AT_FDCWD, cover == COVER_DIRECTORY ? COREFS_EMPTY : "/dev/null", STEP, err);

  return mount < 0 ? -1 : tree_attach(mount, proc, name, STEP, err);
}

int
proc_masks_attach(int proc, struct err *err)
{
  for (int i = 0; i < MASKED; i++) {
    enum cover cover = masked[i].cover;
    if (masked[i].comes_later && look(proc, masked[i].name, &cover, err) < 0)
      return -1;
    if (cover != COVER_NONE && attach(proc, masked[i].name, cover, err) < 0)
      return -1;
  }
  return 0;
}
