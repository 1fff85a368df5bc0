/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "files.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "rootfs.h"
#include "sandbox.h"
#include "swap.h"
#include "syscalls.h"
#include "title.h"

/* Conversations at once, with all sandboxes together: each is a process. */
#define SERVERS_MAX 512
/* For the tree that a sandbox began as nothing is ever written. */
#define ORIGIN_BYTES 65536
#define ORIGIN_INODES 16
/* Socket, the sandbox's tree, the one it began as, its writable layer. */
#define TREES_FIXED 4

struct server {
  struct server *next;
  uint64_t sandbox;
  int pid;
};

static struct server *all;
static int count;

/* What file systems ask for, in core's user namespace, whose numbers are the sandbox's. */
static const int kept[] = {CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID, CAP_MKNOD};

static int
keep_file_capabilities(void)
{
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct data[2] = {{0}};

  for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
    data[kept[i] / 32].permitted |= 1u << (kept[i] % 32);
  for (int i = 0; i < 2; i++)
    data[i].effective = data[i].permitted;
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -1 : (int)syscall(SYS_capset, &header, data);
}

/* Nothing else of core's stays open in it. */
static void
serve_in_child(struct file_trees trees)
{
  int *fds[TREES_FIXED + RAMET_LAYERS_MAX] = {&trees.socket, &trees.sandbox, &trees.origin, &trees.written};
  int moved[TREES_FIXED + RAMET_LAYERS_MAX], used = TREES_FIXED;

  /* Borrowed: the directories of snapshots, in which the layers are. */
  for (int i = 0; i < trees.inherited_count; i++) {
    int layer = openat(trees.inherited[i], "upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (layer < 0)
      _exit(EXIT_SYSTEM);
    trees.inherited[i] = layer;
    fds[used++] = &trees.inherited[i];
  }
  for (int i = 0; i < used; i++)
    moved[i] = *fds[i] < 0 ? -1 : fcntl(*fds[i], F_DUPFD_CLOEXEC, used);
  for (int i = 0; i < used; i++) {
    if (*fds[i] >= 0 && (moved[i] < 0 || dup2(moved[i], i) < 0))
      _exit(EXIT_SYSTEM);
    if (*fds[i] < 0)
      close(i);
    else
      *fds[i] = i;
  }
  if (sys_close_range((unsigned)used, UINT_MAX, 0) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 ||
      keep_file_capabilities() < 0)
    _exit(EXIT_SYSTEM);
  title_set("ramet-files");
  files_serve(&trees);
}

static int
start(struct sandbox *sandbox, struct file_trees trees, struct err *err)
{
  struct server *server = calloc(1, sizeof *server);

  if (!server)
    return err_code(err, "internal", "no memory for a file server");
  long pid = sys_clone(0, NULL);
  if (pid == 0)
    serve_in_child(trees);
  if (pid < 0) {
    free(server);
    return err_code(err, "busy", "no file server can be started: %s", strerror(errno));
  }
  *server = (struct server){all, sandbox->id, (int)pid};
  all = server;
  count++;
  return 0;
}

static int
wanted_sandbox(const struct frame *frame, struct sandbox **sandbox, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint64_t id = 0;
  uint16_t tag;
  int type = 0;
  socklen_t length = sizeof type;

  if (attr_next(&walk, &tag, &value, err) <= 0 || tag != RAMET_TAG_SANDBOX || span_u64(value, &id) < 0 ||
      walk.rest.length)
    return err_field(err, "sandbox", "is missing, or not all");
  if (frame->fd_count != 1 || getsockopt(frame->fds[0], SOL_SOCKET, SO_TYPE, &type, &length) < 0 ||
      type != SOCK_SEQPACKET)
    return err_field(err, "fds", "one SEQPACKET socket has to come along");
  *sandbox = sandbox_find(id);
  if (!*sandbox || (*sandbox)->state != SANDBOX_STANDING || (*sandbox)->tree < 0)
    return err_code(err, "unknown_sandbox", "no sandbox of this number stands");
  return count < SERVERS_MAX ? 0 : err_code(err, "busy", "%d conversations about files are open", count);
}

int
files_open(struct frame *frame, struct err *err)
{
  struct plan plan = {.disk_bytes = ORIGIN_BYTES, .disk_inodes = ORIGIN_INODES};
  struct root_mounts mounts = {.count = 0};
  struct sandbox *sandbox = NULL;

  if (wanted_sandbox(frame, &sandbox, err) < 0)
    return -1;
  if (root_hand_out(sandbox->root, &plan, &mounts, err) < 0)
    return -1;
  cleanup_fd int written = openat(sandbox->upper, "upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  struct file_trees trees = {.socket = frame->fds[0],
                             .sandbox = sandbox->tree,
                             .own_shm = sandbox->own_shm,
                             .origin = mounts.fds[0],
                             .written = written,
                             .base = root_base_serial(sandbox->root),
                             .init = sandbox->pid};
  trees.inherited_count = root_uppers(sandbox->root, trees.inherited);
  int result = start(sandbox, trees, err);
  root_mounts_release(&mounts);
  return result;
}

void
files_sandbox_gone(uint64_t sandbox)
{
  for (struct server *server = all; server; server = server->next)
    if (server->sandbox == sandbox)
      kill(server->pid, SIGKILL);
}

void
files_swap(const uint64_t pair[2])
{
  for (struct server *server = all; server; server = server->next)
    swap_number(&server->sandbox, pair);
}

bool
files_reaped(int pid)
{
  for (struct server **at = &all; *at; at = &(*at)->next)
    if ((*at)->pid == pid) {
      struct server *server = *at;
      *at = server->next;
      free(server);
      count--;
      return true;
    }
  return false;
}
