/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "confine.h"

#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "causes.h"
#include "marked.h"
#include "sanitize.h"
#include "syscalls.h"

int
confine_bounding_set(struct err *err)
{
  if (fault_here(RAMET_STEP_INIT_BOUNDING_SET, err) < 0)
    return -1;
  for (int cap = 0; cap <= 63; cap++)
    if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0) {
      /* EINVAL: above the last capability that this kernel knows. */
      if (errno == EINVAL && cap > CAP_AUDIT_READ)
        return 0;
      return err_step(err, RAMET_STEP_INIT_BOUNDING_SET, "drop capability %d: %s", cap, strerror(errno));
    }
  return 0;
}

/* Runs in the child of a vfork: it shares init's memory, so it only reads the plan and writes `err`. */
struct child {
  const struct plan *plan;
  const int *streams;
  struct err *err;
};

static int
step_session(const struct child *child)
{
  sigset_t none;
  struct sigaction default_action = {.sa_handler = SIG_DFL};

  if (fault_here(RAMET_STEP_SESSION, child->err) < 0)
    return -1;
  if (setsid() < 0)
    return err_step(child->err, RAMET_STEP_SESSION, "setsid: %s", strerror(errno));
  umask(022); /* core's own is 0: it writes modes as plans give them */
  /* exec keeps ignored signals ignored. */
  sigaction(SIGPIPE, &default_action, NULL);
  sigemptyset(&none);
  if (sigprocmask(SIG_SETMASK, &none, NULL) < 0)
    return err_step(child->err, RAMET_STEP_SESSION, "sigprocmask: %s", strerror(errno));
  return 0;
}

/* A command without a channel has descriptors 0, 1 and 2. */
static int
stream_count(const struct child *child)
{
  return child->plan->command.streams[STREAM_CHANNEL] == RAMET_FD_NONE ? STREAM_CHANNEL : STREAM_COUNT;
}

static int
step_streams(const struct child *child)
{
  int fds[STREAM_COUNT], count = stream_count(child);

  if (fault_here(RAMET_STEP_STREAMS, child->err) < 0)
    return -1;
  for (int i = 0; i < count; i++) {
    uint32_t index = child->plan->command.streams[i];
    int fd = index == RAMET_FD_NONE ? open("/dev/null", O_RDWR | O_CLOEXEC) : child->streams[index];
    /* Out of the way first: a stream may stand on another's number. */
    fds[i] = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, STREAM_COUNT);
    if (fds[i] < 0)
      return err_step(child->err, RAMET_STEP_STREAMS, "stream %d: %s", i, strerror(errno));
  }
  for (int i = 0; i < count; i++)
    if (dup2(fds[i], i) < 0)
      return err_step(child->err, RAMET_STEP_STREAMS, "dup2 %d: %s", i, strerror(errno));
  /* As login(1) does: the session's terminal, so that its keys are signals, and jobs have a foreground. */
  if (child->plan->flags & RAMET_START_TERMINAL && ioctl(0, TIOCSCTTY, 0) < 0)
    return err_step(child->err, RAMET_STEP_STREAMS, "take the terminal: %s", strerror(errno));
  return 0;
}

static int
step_close(const struct child *child)
{
  if (fault_here(RAMET_STEP_CLOSE_DESCRIPTORS, child->err) < 0)
    return -1;
  if (sys_close_range((unsigned)stream_count(child), UINT_MAX, 0) < 0)
    return err_step(child->err, RAMET_STEP_CLOSE_DESCRIPTORS, "close_range: %s", strerror(errno));
  return 0;
}

static int
step_rlimits(const struct child *child)
{
  const struct plan *plan = child->plan;

  if (fault_here(RAMET_STEP_RLIMITS, child->err) < 0)
    return -1;
  for (int i = 0; i < plan->rlimit_count; i++) {
    struct rlimit limit = {plan->rlimits[i].soft, plan->rlimits[i].hard};
    if (setrlimit((int)plan->rlimits[i].resource, &limit) < 0)
      return err_step(child->err, RAMET_STEP_RLIMITS, "resource %u: %s", plan->rlimits[i].resource,
                      strerror(errno));
  }
  if (plan->command.number && mark_self(plan->command.number) < 0)
    return err_step(child->err, RAMET_STEP_RLIMITS, "mark the command: %s", strerror(errno));
  if (plan->processes) {
    rlim_t most = plan_rlimit_processes(plan);
    struct rlimit limit = {most, most};
    if (setrlimit(RLIMIT_NPROC, &limit) < 0)
      return err_step(child->err, RAMET_STEP_RLIMITS, "processes: %s", strerror(errno));
  }
  return 0;
}

static int
step_switch_user(const struct child *child)
{
  uint32_t uid = child->plan->command.uid, gid = child->plan->command.gid;

  if (fault_here(RAMET_STEP_SWITCH_USER, child->err) < 0)
    return -1;
  if (gid != 0 && setresgid(gid, gid, gid) < 0)
    return err_step(child->err, RAMET_STEP_SWITCH_USER, "setresgid %u: %s", gid, strerror(errno));
  if (uid != 0 && setresuid(uid, uid, uid) < 0)
    return err_step(child->err, RAMET_STEP_SWITCH_USER, "setresuid %u: %s", uid, strerror(errno));
  return 0;
}

static int
step_capabilities(const struct child *child)
{
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct none[2] = {{0}};
  unsigned bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP | SECBIT_NO_SETUID_FIXUP_LOCKED |
                  SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;

  if (fault_here(RAMET_STEP_DROP_CAPABILITIES, child->err) < 0)
    return -1;
  /* A switch of user has cleared them already; then the bits cannot and need not be set. */
  if (child->plan->command.uid == 0 && prctl(PR_SET_SECUREBITS, bits, 0, 0, 0) < 0)
    return err_step(child->err, RAMET_STEP_DROP_CAPABILITIES, "securebits: %s", strerror(errno));
  if (syscall(SYS_capset, &header, none) < 0)
    return err_step(child->err, RAMET_STEP_DROP_CAPABILITIES, "capset: %s", strerror(errno));
  if (syscall(SYS_capget, &header, none) < 0 || none[0].permitted || none[1].permitted || none[0].effective ||
      none[1].effective || none[0].inheritable || none[1].inheritable) {
    errno = EPERM;
    return err_step(child->err, RAMET_STEP_DROP_CAPABILITIES, "capabilities are left");
  }
  return 0;
}

static int
step_no_new_privs(const struct child *child)
{
  if (fault_here(RAMET_STEP_NO_NEW_PRIVS, child->err) < 0)
    return -1;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
    return err_step(child->err, RAMET_STEP_NO_NEW_PRIVS, "prctl: %s", strerror(errno));
  return 0;
}

static int
step_seccomp(const struct child *child)
{
  struct span program = child->plan->filter_program;
  struct sock_fprog filter = {.len = (unsigned short)(program.length / sizeof(struct sock_filter)),
                              .filter = (struct sock_filter *)(uintptr_t)program.data};

  if (fault_here(RAMET_STEP_SECCOMP, child->err) < 0)
    return -1;
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) < 0)
    return err_step(child->err, RAMET_STEP_SECCOMP, "seccomp: %s", strerror(errno));
  return 0;
}

static int
step_directory(const struct child *child)
{
  const char *cwd = child->plan->command.cwd;

  if (fault_here(RAMET_STEP_WORKING_DIRECTORY, child->err) < 0)
    return -1;
  if (cwd && chdir(cwd) < 0)
    return err_step(child->err, RAMET_STEP_WORKING_DIRECTORY, "chdir %s: %s", cwd, strerror(errno));
  return 0;
}

/* As a shell words it, to the command's own standard error. */
static void
complain(const char *name, const char *why)
{
  struct iovec parts[] = {{(void *)(uintptr_t)name, strlen(name)},
                          {(void *)(uintptr_t)": ", 2},
                          {(void *)(uintptr_t)why, strlen(why)},
                          {(void *)(uintptr_t)"\n", 1}};
  ssize_t written = writev(2, parts, 4);

  (void)written; /* the reader of stderr may be gone; the exit code tells all the same */
}

static const char *
path_of(char *const *envp)
{
  for (; *envp; envp++)
    if (strncmp(*envp, "PATH=", 5) == 0)
      return *envp + 5;
  return "/usr/local/bin:/usr/bin:/bin";
}

/* A text file without "#!" is run by the shell, as execvp(3) and every shell do. */
static void
exec_script(const char *path, const struct command *command)
{
  char *argv[command->arg_count + 2];

  argv[0] = (char *)(uintptr_t)"/bin/sh";
  argv[1] = (char *)(uintptr_t)path;
  for (uint32_t i = 1; i <= command->arg_count; i++)
    argv[i + 1] = command->argv[i];
  execve(argv[0], argv, command->envp);
}

static bool
is_directory(const char *path)
{
  struct stat st;

  return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static void
try_exec(const char *path, const struct command *command)
{
  execve(path, command->argv, command->envp);
  if (errno == ENOEXEC && command->arg_count < 65536)
    exec_script(path, command);
  else if (errno == EACCES && is_directory(path))
    errno = EISDIR;
}

/* execvp(3)'s search, with the guest's PATH in the guest's root. */
static void
search_exec(const struct command *command)
{
  const char *name = command->argv[0];
  int found = ENOENT;
  char path[PATH_MAX];

  if (strchr(name, '/')) {
    try_exec(name, command);
    return;
  }
  for (const char *at = path_of(command->envp); *name;) {
    size_t length = strcspn(at, ":");
    int n = snprintf(path, sizeof path, "%.*s%s%s", (int)length, at, length ? "/" : "", name);
    if (n > 0 && (size_t)n < sizeof path) {
      try_exec(path, command);
      if (errno != ENOENT && errno != ENOTDIR && errno != EISDIR)
        found = errno;
    }
    if (!at[length])
      break;
    at += length + 1;
  }
  errno = found;
}

static int
step_exec(const struct child *child)
{
  const char *name = child->plan->command.argv[0];

  if (fault_here(RAMET_STEP_EXEC, child->err) < 0)
    return -1;
  search_exec(&child->plan->command);
  switch (errno) {
  case ENOENT:
  case ENOTDIR:
    complain(name, strchr(name, '/') ? "No such file or directory" : "command not found");
    _exit(127);
  case EISDIR:
    complain(name, "Is a directory");
    _exit(126);
  case EACCES:
  case EPERM:
    complain(name, "Permission denied");
    _exit(126);
  default:
    complain(name, strerror(errno));
    _exit(126);
  }
}

/* The order: streams before everything is closed; limits while there is a capability to raise them; the directory
 * as the user who will use it; no_new_privs before seccomp, which without capabilities requires it; seccomp last,
 * since it forbids what the steps before it do. */
/* While it has init's sockets, and is who may open it. */
static int
step_introduce(const struct child *child)
{
  (void)child;
  causes_introduce();
  return 0;
}

static int (*const child_steps[])(const struct child *) = {
    step_introduce,    step_session,   step_streams,      step_close,   step_rlimits, step_switch_user,
    step_capabilities, step_directory, step_no_new_privs, step_seccomp, step_exec,
};

static int
child_main(void *argument)
{
  const struct child *child = argument;

  stack_enter();
  for (size_t i = 0; i < sizeof child_steps / sizeof child_steps[0]; i++)
    if (child_steps[i](child) < 0)
      break;
  _exit(EXIT_SYSTEM);
}

/* Pages of the stack that the vforked child borrows. search_exec() and exec_script() keep paths and pointers there. */
static uint8_t child_stack[1 << 20] __attribute__((aligned(16)));

int
confine_spawn(const struct plan *plan, const int *streams, struct err *err)
{
  struct err failed = {0};
  struct child child = {plan, streams, &failed};

  if (fault_here(RAMET_STEP_FORK_COMMAND, err) < 0)
    return -1;
  /* CLONE_VFORK: init sleeps until the child has called exec or _exit, and copies no page table. */
  stack_lend(child_stack, sizeof child_stack);
  int pid = clone(child_main, child_stack + sizeof child_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &child);
  stack_return();
  if (pid < 0)
    return err_step(err, RAMET_STEP_FORK_COMMAND, "clone: %s", strerror(errno));
  if (failed.step != RAMET_STEP_NONE) {
    *err = failed;
    return -1;
  }
  return pid;
}
