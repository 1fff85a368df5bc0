/* SPDX-License-Identifier: Apache-2.0
 * Pid 1 of a sandbox: prepares what knows no root, waits in the pool, takes root and limits at hand-out, starts
 * commands, reaps everything, reports exits. It holds capabilities inside the sandbox's namespaces only, keeps no
 * descriptor but its channel, and guests can neither trace it (they lack its capabilities), nor signal it (the
 * kernel drops signals to pid 1 from inside), nor change its limits (the filter refuses pid 1). */
#define _GNU_SOURCE
#include "init.h"

#include <limits.h>
#include <linux/ptrace.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <time.h>

#include "causes.h"
#include "census.h"
#include "cgroups.h"
#include "commands.h"
#include "confine.h"
#include "corefs.h"
#include "descriptors.h"
#include "guest_view.h"
#include "loop.h"
#include "marked.h"
#include "memory_watch.h"
#include "mounts.h"
#include "nudge.h"
#include "ports.h"
#include "proc_masks.h"
#include "quotas.h"
#include "rootfs.h"
#include "syscalls.h"
#include "time_watch.h"
#include "title.h"

struct running {
  struct running *next;
  int pid;
  uint32_t number;
};

static int channel = -1;
static int child_signals = -1;
static struct running *commands;
static int run_pid; /* the command of RUN: init ends with it */
static uint64_t run_started; /* told at its end: a word of its own would wake core for nothing */
static uint8_t *receive_buffer;
static bool cgroup_joined = true;
static struct err cgroup_failed;
static bool has_network;
static bool own_shm;
static int memory_group = -1, time_group = -1, kill_events = -1;

/* ---- before hand-out ------------------------------------------------------------------------------------------ */

static int
protect_self(struct err *err)
{
  sigset_t all;

  if (fault_here(RAMET_STEP_INIT_PROTECT, err) < 0)
    return -1;
  /* Core is pid 1 of the outer namespace, so its end is ours anyhow; this is for the moment before PREPARE. */
  title_set("ramet-init");
  /* Out of core's session and group: a signal of a guest to its own group must not reach them. */
  if (setsid() < 0)
    return err_step(err, RAMET_STEP_INIT_PROTECT, "setsid: %s", strerror(errno));
  if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
    return err_step(err, RAMET_STEP_INIT_PROTECT, "prctl: %s", strerror(errno));
  sigfillset(&all);
  if (sigprocmask(SIG_SETMASK, &all, NULL) < 0)
    return err_step(err, RAMET_STEP_INIT_PROTECT, "sigprocmask: %s", strerror(errno));
  return 0;
}

static int
take_ids(struct err *err)
{
  if (fault_here(RAMET_STEP_INIT_IDS, err) < 0)
    return -1;
  if (getuid() != 0 || getgid() != 0) {
    errno = EPERM;
    return err_step(err, RAMET_STEP_INIT_IDS, "uid %u, gid %u inside", getuid(), getgid());
  }
  /* Only now: while core writes the id maps, /proc/PID has to belong to it. */
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
    return err_step(err, RAMET_STEP_INIT_IDS, "prctl: %s", strerror(errno));
  return 0;
}

/* Its root is the cgroup that was joined: nothing above is seen. */
static int
own_cgroups(struct err *err)
{
  if (!cgroup_joined) {
    *err = cgroup_failed;
    return -1;
  }
  if (fault_here(RAMET_STEP_INIT_CGROUP, err) < 0)
    return -1;
  if (unshare(CLONE_NEWCGROUP) < 0)
    return err_step(err, RAMET_STEP_INIT_CGROUP, "unshare: %s", strerror(errno));
  return 0;
}

static int
own_network(struct err *err)
{
  if (fault_here(RAMET_STEP_INIT_NETWORK, err) < 0)
    return -1;
  if (unshare(CLONE_NEWNET) < 0)
    return err_step(err, RAMET_STEP_INIT_NETWORK, "unshare: %s", strerror(errno));
  return 0;
}

static int
raise_loopback(struct err *err)
{
  struct ifreq request = {.ifr_name = "lo"};
  cleanup_fd int fd = -1;

  if (fault_here(RAMET_STEP_INIT_LOOPBACK, err) < 0)
    return -1;
  fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  request.ifr_flags = IFF_UP | IFF_LOOPBACK | IFF_RUNNING;
  if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) < 0)
    return err_step(err, RAMET_STEP_INIT_LOOPBACK, "raise lo: %s", strerror(errno));
  return 0;
}

/* Readable as ever, but not to be written. */
static int
seal_entry(int proc, const char *name, struct err *err)
{
  cleanup_fd int mount = tree_clone(proc, name, RAMET_STEP_INIT_MASK_PROC, err);

  if (mount < 0 || tree_set_read_only(mount, RAMET_STEP_INIT_MASK_PROC, err) < 0)
    return -1;
  return tree_attach(mount, proc, name, RAMET_STEP_INIT_MASK_PROC, err);
}

/* The entry's own, nearly empty root, for the root of the plan to be mounted over. Leaving core's here and not at
 * hand-out, because to detach a mount is to wait for every processor (synchronize_rcu_expedited). */
static int
open_entry_root(struct err *err)
{
  int root;

  if (fault_here(RAMET_STEP_PIVOT_ROOT, err) < 0)
    return -1;
  root = tree_clone(AT_FDCWD, COREFS_ENTRY, RAMET_STEP_PIVOT_ROOT, err);
  if (root >= 0 && tree_attach(root, AT_FDCWD, COREFS_NEW_ROOT, RAMET_STEP_PIVOT_ROOT, err) < 0)
    return -1;
  return root;
}

static int
pivot(int root, struct err *err)
{
  if (fchdir(root) < 0 || sys_pivot_root(".", ".") < 0)
    return err_step(err, RAMET_STEP_PIVOT_ROOT, "pivot_root: %s", strerror(errno));
  if (fault_here(RAMET_STEP_DETACH_OLD_ROOT, err) < 0)
    return -1;
  if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
    return err_step(err, RAMET_STEP_DETACH_OLD_ROOT, "umount: %s", strerror(errno));
  return 0;
}

static int
mount_proc(int root, struct err *err)
{
  if (fault_here(RAMET_STEP_INIT_PROC, err) < 0)
    return -1;
  cleanup_fd int proc = filesystem_make("proc", NULL, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC,
                                        RAMET_STEP_INIT_PROC, err);
  if (proc < 0 || tree_attach(proc, root, "p", RAMET_STEP_INIT_PROC, err) < 0 ||
      quotas_bound_one(proc, RAMET_STEP_INIT_PROC, err) < 0)
    return -1;
  if (fault_here(RAMET_STEP_INIT_MASK_PROC, err) < 0)
    return -1;
  /* Network sysctls belong to the sandbox's uid 0 by mode: only the mount keeps them from being written. */
  if (seal_entry(proc, "sys", err) < 0)
    return -1;
  /* The files of a process that cannot be dumped belong to uid 0 of the user namespace that it was executed in, which
   * is the guest's uid too (task_dump_owner()): its oom_score_adj and the like are writable but for this. */
  if (seal_entry(proc, "1", err) < 0)
    return -1;
  return proc_masks_attach(proc, err);
}

static int
mount_dev(int root, struct err *err)
{
  /* All sandboxes share the kernel's number of terminals (sysctl kernel.pty.max). */
  static const char *const options[] = {"mode", "0620", "ptmxmode", "0666", "max", "256", NULL};

  if (fault_here(RAMET_STEP_INIT_DEV, err) < 0)
    return -1;
  /* The copy that came with the namespace is locked in place; a clone of it can be moved. */
  cleanup_fd int dev = tree_clone(AT_FDCWD, "/dev", RAMET_STEP_INIT_DEV, err);
  if (dev < 0 || tree_attach(dev, root, "d", RAMET_STEP_INIT_DEV, err) < 0)
    return -1;
  if (fault_here(RAMET_STEP_INIT_PTS, err) < 0)
    return -1;
  cleanup_fd int pts =
      filesystem_make("devpts", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, RAMET_STEP_INIT_PTS, err);
  if (pts < 0)
    return -1;
  return tree_attach(pts, root, "d/pts", RAMET_STEP_INIT_PTS, err);
}

static int
prepare(struct err *err)
{
  if (protect_self(err) < 0 || take_ids(err) < 0 || own_cgroups(err) < 0 ||
      (!has_network && (own_network(err) < 0 || raise_loopback(err) < 0)))
    return -1;
  cleanup_fd int root = open_entry_root(err);
  if (root < 0)
    return -1;
  return mount_proc(root, err) < 0 || mount_dev(root, err) < 0 || guest_view_prepare(root, memory_group, err) < 0 ||
                 pivot(root, err) < 0 || confine_bounding_set(err) < 0
             ? -1
             : 0;
}

/* ---- hand-out ------------------------------------------------------------------------------------------------- */

static int
attach_binds(int root, const struct plan *plan, const int *mounts, struct err *err)
{
  char path[PATH_MAX];

  if (fault_here(RAMET_STEP_ATTACH_BINDS, err) < 0)
    return -1;
  for (int i = 0; i < plan->bind_count; i++) {
    struct span target = plan->targets[i];
    memcpy(path, target.data + 1, target.length - 1);
    path[target.length - 1] = 0;
    if (tree_attach(mounts[i], root, path, RAMET_STEP_ATTACH_BINDS, err) < 0)
      return -1;
  }
  return 0;
}

static int
move_prepared(const char *from, int root, const char *to, enum ramet_step step, struct err *err)
{
  if (fault_here(step, err) < 0)
    return -1;
  if (sys_move_mount(AT_FDCWD, from, root, to, 0) < 0)
    return err_step(err, step, "move_mount to /%s: %s", to, strerror(errno));
  return 0;
}

/* A /dev/shm of its own stands in the writable layer as well, where snapshots find it. What is attached nowhere yet can
 * be copied only from Linux 6.15 on. */
static int
hide_shm(int mount, struct err *err)
{
  cleanup_fd int again = tree_clone(mount, "", RAMET_STEP_ATTACH_SHM, err);

  return again < 0 ? -1 : tree_attach(again, AT_FDCWD, "/u/shm", RAMET_STEP_ATTACH_SHM, err);
}

/* `mounts`: the overlay, /dev/shm, the writable layer, one a bind. As switch_root(8): the new root over the old one,
 * whose directories were only there to be mounted on. Nothing leads below a process's root: "..", ends there, and
 * chroot, mount and their like need capabilities that no guest has. */
static int
enter_root(const struct plan *plan, const int *mounts, struct err *err)
{
  int root = mounts[0];

  if (fault_here(RAMET_STEP_ATTACH_ROOT, err) < 0 ||
      /* Hidden below: a mount that is attached nowhere is taken apart when its last descriptor closes, and core
       * would wait for that. */
      tree_attach(mounts[ROOT_MOUNT_UPPER], AT_FDCWD, "/u", RAMET_STEP_ATTACH_ROOT, err) < 0 ||
      tree_attach(root, AT_FDCWD, "/", RAMET_STEP_ATTACH_ROOT, err) < 0)
    return -1;
  if (attach_binds(root, plan, mounts + ROOT_MOUNTS_FIXED, err) < 0 || guest_view_show(plan, root, err) < 0)
    return -1;
  if (move_prepared("/p", root, "proc", RAMET_STEP_ATTACH_PROC, err) < 0 ||
      move_prepared("/d", root, "dev", RAMET_STEP_ATTACH_DEV, err) < 0)
    return -1;
  if (fault_here(RAMET_STEP_ATTACH_SHM, err) < 0 ||
      tree_attach(mounts[1], root, "dev/shm", RAMET_STEP_ATTACH_SHM, err) < 0 ||
      (plan->shm_bytes && hide_shm(mounts[1], err) < 0))
    return -1;
  if (fchdir(root) < 0 || chroot(".") < 0)
    return err_step(err, RAMET_STEP_ATTACH_ROOT, "chroot: %s", strerror(errno));
  if (fault_here(RAMET_STEP_HOSTNAME, err) < 0)
    return -1;
  if (plan->hostname[0] && sethostname(plan->hostname, strlen(plan->hostname)) < 0)
    return err_step(err, RAMET_STEP_HOSTNAME, "sethostname: %s", strerror(errno));
  /* RAMET_NETWORK_NONE: the namespace of the pool entry as it is. */
  return fault_here(RAMET_STEP_NETWORK, err);
}

/* ---- messages ------------------------------------------------------------------------------------------------- */

static void
tell_with(uint16_t kind, uint64_t request, const struct writer *writer, int fd)
{
  /* A thousand commands may end at once; core reads one frame a turn. */
  if (frame_send_waiting(channel, kind, request, writer, &fd, fd >= 0) < 0)
    _exit(EXIT_DEFECT);
}

static void
tell(uint16_t kind, uint64_t request, const struct writer *writer)
{
  tell_with(kind, request, writer, -1);
}

static void
tell_failed(uint64_t request, const struct err *err)
{
  cleanup_writer struct writer writer = {0};

  put_err(&writer, err);
  tell(RAMET_INIT_FAILED, request, &writer);
}

static uint64_t
nanoseconds(struct timeval time)
{
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_usec * 1000u;
}

static uint64_t
written_to(const char *path)
{
  struct statfs fs;

  return statfs(path, &fs) == 0 ? (uint64_t)(fs.f_blocks - fs.f_bfree) * (uint64_t)fs.f_bsize : 0;
}

/* `usage` is the command's own, with the children it waited for, or everybody's. */
static void
tell_end(uint16_t kind, uint32_t number, int status, const struct rusage *usage, uint32_t reached)
{
  cleanup_writer struct writer writer = {0};

  put_u32(&writer, RAMET_TAG_COMMAND, number);
  put_u32(&writer, RAMET_TAG_STATUS, (uint32_t)status);
  put_u64(&writer, RAMET_TAG_USER_NS, nanoseconds(usage->ru_utime));
  put_u64(&writer, RAMET_TAG_SYSTEM_NS, nanoseconds(usage->ru_stime));
  put_u64(&writer, RAMET_TAG_PEAK_BYTES, (uint64_t)usage->ru_maxrss * 1024u);
  put_u64(&writer, RAMET_TAG_DISK_PEAK, written_to("/"));
  put_u64(&writer, RAMET_TAG_SHM_PEAK, own_shm ? written_to("/dev/shm") : 0);
  put_u32(&writer, RAMET_TAG_REACHED, reached);
  if (reached & RAMET_REACHED_CPU || time_watch_killed())
    put_u64(&writer, RAMET_TAG_CPU_PEAK_NS, time_watch_used());
  put_u64(&writer, RAMET_TAG_MEMORY_PEAK, memory_watch_peak());
  put_u64(&writer, RAMET_TAG_OOM_KILLS, memory_watch_kills());
  put_u32(&writer, RAMET_TAG_CPU_KILLED, time_watch_killed());
  if (run_started)
    put_u64(&writer, RAMET_TAG_STARTED_NS, run_started);
  tell(kind, 0, &writer);
}

static void
tell_spawned(uint64_t request, uint32_t number, int pid)
{
  cleanup_writer struct writer writer = {0};

  put_u32(&writer, RAMET_TAG_COMMAND, number);
  put_u32(&writer, RAMET_TAG_PID, (uint32_t)pid);
  tell(RAMET_INIT_SPAWNED, request, &writer);
}

static int
spawn(struct plan *plan, const int *streams, struct err *err)
{
  if (plan_strings(plan, err) < 0)
    return -1;
  causes_expect();
  int pid = confine_spawn(plan, streams, err);
  causes_watch(pid);
  return pid;
}

/* A standing sandbox: the command's number is remembered until it is reaped. */
static int
remember(int pid, uint32_t number, struct err *err)
{
  struct running *command = malloc(sizeof *command);

  if (!command)
    return err_code(err, "internal", "no memory for a command");
  *command = (struct running){commands, pid, number};
  commands = command;
  return 0;
}

/* The sandbox's plan is kept for later commands: its limits and filter are theirs too. */
static struct plan standing;
static void *standing_payload;

static int
keep_plan(const struct plan *plan, struct err *err)
{
  standing_payload = malloc(plan->payload.length);
  if (!standing_payload)
    return err_code(err, "internal", "no memory for the plan");
  memcpy(standing_payload, plan->payload.data, plan->payload.length);
  struct span copy = {standing_payload, plan->payload.length};
  return plan_decode(copy, PLAN_CREATE, true, RAMET_FRAME_FDS, &standing, err);
}

/* Core's end of a pipe that was made anew, as an open file of its own; -1: nobody has the pipe. */
static int
far_end(const struct image *image, const struct descriptors *made, uint64_t device, uint64_t inode, int flags)
{
  char path[32];

  for (uint32_t i = 0; inode && i < image->description_count; i++) {
    const struct image_description *d = &image->descriptions[i];
    if (d->kind != IMAGE_PIPE || d->value[0] != inode || d->value[2] != device)
      continue;
    snprintf(path, sizeof path, "/proc/self/fd/%d", made->fds[i]);
    return open(path, flags | O_NONBLOCK | O_CLOEXEC);
  }
  errno = 0;
  return -1;
}

static int
tell_carried(const struct image *image, const struct descriptors *made, const struct image_command *command,
             struct err *err)
{
  cleanup_writer struct writer writer = {0};
  int fds[3], count = 0, result = 0;
  uint32_t which = 0;

  for (int i = 0; i < 3 && result == 0; i++) {
    uint64_t inode = i == 0 && !command->takes_input ? 0 : command->pipes[i];
    int fd = far_end(image, made, command->device, inode, i == 0 ? O_WRONLY : O_RDONLY);
    /* ENXIO: to write where nobody has the end for reading. */
    if (fd < 0 && errno && errno != ENXIO)
      result = err_step(err, RAMET_STEP_CHILD_MAKE_FDS, "a command's stream: %s", strerror(errno));
    if (fd < 0)
      continue;
    which |= 1u << i;
    fds[count++] = fd;
  }
  put_u32(&writer, RAMET_TAG_COMMAND, command->number);
  put_u32(&writer, RAMET_TAG_FLAGS, which);
  if (result == 0 && frame_send(channel, RAMET_INIT_CARRIED, 0, &writer, fds, count) < 0)
    result = err_step(err, RAMET_STEP_CHILD_MAKE_FDS, "hand a command's streams to core: %s", strerror(errno));
  while (count > 0)
    close(fds[--count]);
  return result;
}

/* Before the child gets what it waits for: core knows of all of them before one can end. */
static int
carry_commands(const struct image *image, const struct descriptors *made, uint32_t first, struct err *err)
{
  for (uint32_t i = 0; i < image->command_count; i++) {
    const struct image_command *command = &image->commands[i];
    if (command->number == first)
      return err_field(err, "image", "two commands have number %u", first);
    if (tell_carried(image, made, command, err) < 0 || remember(command->pid, command->number, err) < 0)
      return -1;
  }
  return 0;
}

/* Of the image only open files matter here; it is not kept. */
static int
make_from_image(const struct plan *plan, const struct frame *frame, int first, struct descriptors *made, int *pid,
                struct err *err)
{
  struct image image;
  struct stat description, pages;

  if (fstat(frame->fds[first], &description) < 0 || fstat(frame->fds[first + 1], &pages) < 0)
    return err_step(err, RAMET_STEP_CHILD_MAKE_FDS, "the image's files: %s", strerror(errno));
  void *at = mmap(NULL, (size_t)description.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, frame->fds[first], 0);
  if (at == MAP_FAILED)
    return err_step(err, RAMET_STEP_CHILD_MAKE_FDS, "map the image: %s", strerror(errno));
  int result =
      image_decode_files((struct span){at, (uint32_t)description.st_size}, (uint64_t)pages.st_size, &image, err);
  if (result == 0) {
    result = descriptors_make(&image, frame->fds[first + 1], &plan->command, frame->fds + first + 3, made, err);
    if (result == 0)
      result = carry_commands(&image, made, plan->command.number, err);
    *pid = image.processes[0].process.relations.pid;
    image_free(&image);
  }
  munmap(at, (size_t)description.st_size);
  return result;
}

/* Behind the mounts: the image's description, its pages, the socket to the child, the command's streams. All of them
 * are closed, and the mounts too, before the child has what it waits for: once it runs, nothing of core's is open. */
static int
make_descriptors(const struct plan *plan, struct frame *frame, int first, struct err *err)
{
  struct descriptors made = {0};
  int pid = 0;

  if (frame->fd_count < first + 3)
    return err_field(err, "fds", "a fork comes without its image");
  int result = make_from_image(plan, frame, first, &made, &pid, err);
  cleanup_fd int child = frame_steal_fd(frame, (uint32_t)first + 2);
  frame_release(frame);
  if (result == 0)
    result = descriptors_send(&made, child, err);
  if (result == 0)
    result = remember(pid, plan->command.number, err);
  descriptors_free(&made);
  return result;
}

/* No two sandboxes are one machine (machine-id(5)). In a fork the file is the guest's own, who may have put anything in
 * its place: nothing is followed or waited for, and where it cannot be written, or is of another mount, it stays as it
 * is. */
static void
renew_machine_id(void)
{
  cleanup_fd int fd = sys_openat2(AT_FDCWD, "/etc/machine-id",
                                  O_WRONLY | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0, RESOLVE_IN_OWN_LAYER);
  uint8_t random[16];
  char text[2 * sizeof random + 2];

  if (fd < 0 || getrandom(random, sizeof random, 0) != sizeof random)
    return;
  for (size_t i = 0; i < sizeof random; i++)
    snprintf(text + 2 * i, 3, "%02x", random[i]);
  text[2 * sizeof random] = '\n';
  if (write(fd, text, 2 * sizeof random + 1) < 0)
    return;
}

/* What hostname(5) says is what gethostname() says: no guest can change the latter. As above otherwise. */
static void
renew_hostname(const char *hostname)
{
  cleanup_fd int fd = sys_openat2(AT_FDCWD, "/etc/hostname",
                                  O_WRONLY | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0, RESOLVE_IN_OWN_LAYER);
  char line[RAMET_NAME_MAX + 2];

  if (fd < 0)
    return;
  int count = snprintf(line, sizeof line, "%s\n", hostname);
  if (write(fd, line, (size_t)count) < 0)
    return;
}

/* What asks for the address of its own machine (gethostbyname(gethostname()), the Java VM) is to find one: the last line
 * of /etc/hosts has it, and takes the place of that of the sandbox that this one was forked from. All other lines are
 * the guest's. As above, nothing is followed, waited for or made. */
static void
renew_own_address(const char *hostname)
{
  static const char address[] = "127.0.1.1 ", mark[] = " # this sandbox\n";
  char end[512], line[512];
  struct stat status;
  cleanup_fd int fd =
      sys_openat2(AT_FDCWD, "/etc/hosts", O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0, RESOLVE_IN_OWN_LAYER);

  if (fd < 0 || fstat(fd, &status) < 0 || !S_ISREG(status.st_mode))
    return;
  size_t size = (size_t)status.st_size < sizeof end ? (size_t)status.st_size : sizeof end;
  if (pread(fd, end, size, status.st_size - (off_t)size) != (ssize_t)size)
    return;
  size_t begin = size ? size - 1 : 0;
  while (begin > 0 && end[begin - 1] != '\n')
    begin--;
  size_t length = size - begin;
  bool open = size && end[size - 1] != '\n';
  bool ours = length > sizeof address + sizeof mark && memcmp(end + begin, address, sizeof address - 1) == 0 &&
              memcmp(end + size - (sizeof mark - 1), mark, sizeof mark - 1) == 0;
  off_t at = status.st_size - (ours ? (off_t)length : 0);
  int count = snprintf(line, sizeof line, "%s%s%s%s", open ? "\n" : "", address, hostname, mark);
  if (pwrite(fd, line, (size_t)count, at) == count && ours && ftruncate(fd, at + count) < 0)
    return;
}

static void
start_watching(const struct plan *plan)
{
  bool everybody = !plan->snapshot || plan_needs_cgroup(plan);

  own_shm = plan->shm_bytes != 0;
  memory_watch_start(plan->watch, plan->inherited, plan->shm_bytes != 0, plan->keep != 0);
  /* A fork has the resource limits of its source. */
  time_watch_start(plan->cpu_ns, plan->idle_ns, !plan->snapshot, everybody ? time_group : -1);
  guest_view_start();
}

static int
handle_enter(struct frame *frame, struct err *err)
{
  struct plan plan;

  if (plan_decode(frame->payload, PLAN_CREATE, true, frame->fd_count, &plan, err) < 0)
    return -1;
  int mounts = plan.bind_count + ROOT_MOUNTS_FIXED;
  if (frame->fd_count < mounts)
    return err_field(err, "fds", "%d mounts for %d binds", frame->fd_count, plan.bind_count);
  if (enter_root(&plan, frame->fds, err) < 0 || keep_plan(&plan, err) < 0)
    return -1;
  renew_machine_id();
  if (plan.hostname[0]) {
    renew_hostname(plan.hostname);
    renew_own_address(plan.hostname);
  }
  causes_start(memory_group, kill_events, plan_file_size(&plan));
  if (plan.snapshot && make_descriptors(&plan, frame, mounts, err) < 0)
    return -1;
  start_watching(&plan);
  struct writer nothing = {0};
  tell(RAMET_INIT_ENTERED, frame->request, &nothing);
  return 0;
}

static int
handle_spawn(struct frame *frame, struct err *err)
{
  struct plan plan;

  if (plan_decode(frame->payload, PLAN_SPAWN, true, frame->fd_count, &plan, err) < 0)
    return -1;
  memcpy(plan.rlimits, standing.rlimits, sizeof plan.rlimits);
  plan.rlimit_count = standing.rlimit_count;
  plan.processes = standing.processes;
  plan.filter_program = standing.filter_program;
  int pid = spawn(&plan, frame->fds, err);
  plan_free(&plan);
  if (pid < 0)
    return -1;
  tell_spawned(frame->request, plan.command.number, pid);
  return remember(pid, plan.command.number, err);
}

static int
handle_run(struct frame *frame, struct err *err)
{
  struct plan plan;

  if (plan_decode(frame->payload, PLAN_RUN, true, frame->fd_count, &plan, err) < 0)
    return -1;
  int mounts = plan.bind_count + ROOT_MOUNTS_FIXED;
  if (frame->fd_count < mounts)
    return err_field(err, "fds", "%d mounts for %d binds", frame->fd_count, plan.bind_count);
  if (enter_root(&plan, frame->fds, err) < 0)
    return -1;
  causes_start(memory_group, kill_events, plan_file_size(&plan));
  run_pid = spawn(&plan, frame->fds + mounts, err);
  run_started = loop_now();
  start_watching(&plan);
  plan_free(&plan);
  return run_pid < 0 ? -1 : 0;
}

/* As a terminal does: to the command's process group, so that what it waits for hears of it too. */
static void
send_signal(uint32_t number, int signal)
{
  for (const struct running *command = commands; command; command = command->next)
    if (command->number == number && kill(-command->pid, signal) < 0)
      kill(command->pid, signal);
}

static int
handle_signal(struct frame *frame, struct err *err)
{
  struct signal_request asked;
  struct writer nothing = {0};

  if (signal_read(frame, &asked, err) < 0)
    return -1;
  send_signal(asked.command, (int)asked.signal);
  if (asked.signal == SIGINT)
    nudge_plan(asked.command);
  tell(RAMET_INIT_SIGNALLED, frame->request, &nothing);
  return 0;
}

/* Also what is left of one whose first process has ended. */
static int
handle_kill_command(const struct frame *frame, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint32_t number = 0;
  uint16_t tag;

  if (attr_next(&walk, &tag, &value, err) <= 0 || tag != RAMET_TAG_COMMAND || span_u32(value, &number) < 0 ||
      !number)
    return err_field(err, "command", "is missing");
  marked_kill(number);
  return 0;
}

static int
handle_take_back(const struct frame *frame, struct err *err)
{
  static uint32_t pids[CENSUS_PIDS_MAX];
  struct attr_walk walk = {frame->payload};
  struct span value;
  uint32_t limit = RAMET_LIMIT_NONE;
  uint16_t tag;
  int count = 0, more;

  while ((more = attr_next(&walk, &tag, &value, err)) > 0) {
    int bad = -1;
    if (tag == RAMET_TAG_LIMIT)
      bad = span_u32(value, &limit);
    else if (tag == RAMET_TAG_PID && count < CENSUS_PIDS_MAX)
      bad = span_u32(value, &pids[count++]);
    if (bad < 0)
      return err_field(err, "payload", "tag %u does not belong here", tag);
  }
  if (more < 0 || !limit)
    return err_field(err, "limit", "is missing");
  causes_take_back((enum ramet_limit)limit, pids, count);
  return 0;
}

static int
handle_connect(const struct frame *frame, struct err *err)
{
  struct attr_walk walk = {frame->payload};
  struct writer nothing = {0};
  struct span value;
  uint32_t port = 0;
  uint16_t tag;

  if (attr_next(&walk, &tag, &value, err) <= 0 || tag != RAMET_TAG_PORT || span_u32(value, &port) < 0)
    return err_field(err, "port", "is missing");
  cleanup_fd int fd = ports_connect(port, err);
  if (fd < 0)
    return -1;
  tell_with(RAMET_INIT_CONNECTED, frame->request, &nothing, fd);
  return 0;
}

/* Orphans become init's children before their parent can be waited for: who has no child left is alone, but for who came
 * from outside. */
static bool
childless(void)
{
  int pid;

  while ((pid = wait4(-1, NULL, __WALL | WNOHANG, NULL)) > 0)
    continue;
  return pid < 0 && errno == ECHILD;
}

/* Until no process is left. kill(-1) is atomic against fork: the kernel refuses a fork to a process with a pending
 * signal. But it looks at every process of the machine, so not after a run that left none; a run is entered by nobody. */
static void
kill_all(struct rusage *usage)
{
  if (!run_pid || !childless()) {
    kill(-1, SIGKILL);
    while (wait4(-1, NULL, __WALL, NULL) > 0 || errno == EINTR)
      continue;
  }
  if (getrusage(RUSAGE_CHILDREN, usage) < 0)
    memset(usage, 0, sizeof *usage);
}

/* Core kills what is left once it has told the end: taking namespaces apart must not delay that. */
static void
rest(void)
{
  for (;;)
    pause();
}

static void
end_of_all(void)
{
  struct rusage usage;

  kill_all(&usage);
  tell_end(RAMET_INIT_ENDED, 0, SIGKILL, &usage, 0);
  rest();
}

static int
handle(struct frame *frame, struct err *err)
{
  struct writer nothing = {0};

  time_watch_touch();
  switch (frame->kind) {
  case RAMET_INIT_PREPARE:
    if (prepare(err) < 0)
      return -1;
    tell(RAMET_INIT_PREPARED, frame->request, &nothing);
    return 0;
  case RAMET_INIT_ENTER:
    return handle_enter(frame, err);
  case RAMET_INIT_SPAWN:
    return handle_spawn(frame, err);
  case RAMET_INIT_RUN:
    return handle_run(frame, err);
  case RAMET_INIT_SIGNAL:
    return handle_signal(frame, err);
  case RAMET_INIT_CONNECT:
    return handle_connect(frame, err);
  case RAMET_INIT_KILL_COMMAND:
    return handle_kill_command(frame, err);
  case RAMET_INIT_TAKE_BACK:
    return handle_take_back(frame, err);
  case RAMET_INIT_END:
    /* The run's command dies of it too, and its end is told as any other. */
    if (run_pid)
      kill(-1, SIGKILL);
    else
      end_of_all();
    return 0;
  default:
    return err_field(err, "kind", "init knows no message %u", frame->kind);
  }
}

/* ---- reaping -------------------------------------------------------------------------------------------------- */

/* The command of RUN has ended: no process may be left when its result is told. */
static void
end_of_run(const struct ended *ended)
{
  uint32_t reached = causes_reached(ended);
  struct rusage usage;

  kill_all(&usage);
  tell_end(RAMET_INIT_EXITED, 0, ended->status, &usage, reached);
  rest();
}

static void
reaped(const struct ended *ended)
{
  if (ended->pid == run_pid)
    end_of_run(ended);
  for (struct running **at = &commands; *at; at = &(*at)->next)
    if ((*at)->pid == ended->pid) {
      struct running *command = *at;
      *at = command->next;
      tell_end(RAMET_INIT_EXITED, command->number, ended->status, &ended->usage, causes_reached(ended));
      free(command);
      return;
    }
}

static void
reap(void)
{
  struct ended ended;

  while (causes_reap(&ended) > 0) {
    /* A child that called PTRACE_TRACEME made init its tracer, which it must not wait for. */
    if (WIFSTOPPED(ended.status))
      syscall(SYS_ptrace, PTRACE_DETACH, ended.pid, 0,
              WSTOPSIG(ended.status) == SIGTRAP ? 0 : WSTOPSIG(ended.status));
    else
      reaped(&ended);
  }
}

/* ---- life ----------------------------------------------------------------------------------------------------- */

static void
receive(void)
{
  struct frame frame;
  struct err err = {0};

  switch (frame_receive(channel, receive_buffer, &frame, &err)) {
  case FRAME_NONE:
    return;
  case FRAME_CLOSED:
    _exit(0);
  case FRAME_MALFORMED:
    tell_failed(0, &err);
    _exit(EXIT_DEFECT);
  case FRAME_GOT:
    break;
  }
  int result = handle(&frame, &err);
  uint64_t request = frame.request;
  uint16_t kind = frame.kind;
  frame_release(&frame);
  if (result == 0)
    return;
  tell_failed(request, &err);
  /* A command that could not be started leaves a standing sandbox as it was; anything else ends it. */
  if (kind != RAMET_INIT_SPAWN && kind != RAMET_INIT_CONNECT)
    _exit(EXIT_SYSTEM);
}

/* And its own cgroup's directories, where it reads what is used. */
static void
keep_only_channel(int fd, uint64_t cgroup)
{
  int *kept[] = {&channel, &memory_group, &time_group, &kill_events};
  unsigned count = 0;

  channel = fd;
  memory_group = cgroup ? cgroups_open_memory(cgroup) : -1;
  time_group = cgroup ? cgroups_open_time(cgroup) : -1;
  kill_events = causes_open(memory_group);
  for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
    if (*kept[i] >= 0)
      *kept[i] = fcntl(*kept[i], F_DUPFD_CLOEXEC, 16); /* out of the way of the others' places */
  for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
    if (*kept[i] >= 0)
      *kept[i] = dup3(*kept[i], (int)count++, O_CLOEXEC);
  if (channel != 0 || sys_close_range(count, UINT_MAX, 0) < 0)
    _exit(EXIT_SYSTEM);
}

/* The sooner of two timeouts of poll(2). */
static int
sooner(int one, int other)
{
  return one < 0 ? other : other < 0 || one < other ? one : other;
}

static void
tell_over(int stopped_before)
{
  cleanup_writer struct writer writer = {0};

  put_u32(&writer, RAMET_TAG_PID, (uint32_t)stopped_before);
  tell(RAMET_INIT_OVER, 0, &writer);
}

static void
look(void)
{
  struct writer nothing = {0};
  int stopped_before;

  uint32_t nudged;

  if (nudge_due(&nudged))
    send_signal(nudged, SIGURG);
  if (memory_watch_look(&stopped_before))
    tell_over(stopped_before);
  if (time_watch_look())
    tell(RAMET_INIT_IDLE, 0, &nothing);
  guest_view_serve();
}

void
init_main(int fd, const struct birth *birth)
{
  sigset_t child;

  /* While its directories are open still. What failed is told when core listens. */
  if (birth->cgroup && cgroups_join(birth->cgroup, &birth->limits, birth->cgroup_is_there ? &birth->before : NULL,
                                    &cgroup_failed) < 0)
    cgroup_joined = false;
  has_network = birth->has_network;
  keep_only_channel(fd, cgroup_joined ? birth->cgroup : 0);
  receive_buffer = malloc(RAMET_FRAME_BYTES);
  if (!receive_buffer)
    _exit(EXIT_SYSTEM);
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigaddset(&child, SIGIO); /* somebody waits for a file of guest_view.h */
  child_signals = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
  if (child_signals < 0)
    _exit(EXIT_SYSTEM);
  for (;;) {
    struct pollfd polled[3] = {
        {channel, POLLIN, 0}, {child_signals, POLLIN, 0}, {kill_events, POLLIN | POLLPRI, 0}};
    struct signalfd_siginfo info;

    int timeout =
        sooner(sooner(memory_watch_timeout(), nudge_timeout()), sooner(time_watch_timeout(), guest_view_timeout()));
    if (poll(polled, 3, timeout) < 0 && errno != EINTR)
      _exit(EXIT_DEFECT);
    if (polled[2].revents)
      causes_note();
    if (polled[1].revents) {
      while (read(child_signals, &info, sizeof info) > 0)
        continue;
      reap();
    }
    look();
    if (polled[0].revents)
      receive();
  }
}
