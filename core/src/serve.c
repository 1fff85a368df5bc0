/* SPDX-License-Identifier: Apache-2.0
 * Core: sets itself up step by step, then serves requests and keeps the pool filled. */
#define _GNU_SOURCE
#include "serve.h"

#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "capture.h"
#include "corefs.h"
#include "log.h"
#include "loop.h"
#include "networks.h"
#include "overuse.h"
#include "pressure.h"
#include "quotas.h"
#include "rootfs.h"
#include "sandbox.h"
#include "snapshot.h"
#include "syscalls.h"
#include "title.h"

/* After this many entries that failed to prepare the pool is not refilled until a request asks. */
#define REFILL_FAILURES_MAX 3

/* Making an entry takes a processor for about a millisecond, which a run that has just started needs more, as long
 * as enough entries are left. */
#define REFILL_DELAY_NS 4000000u
/* A spare is made by the stem: it is ordered as soon as the child before it runs and has a processor of its own. */
#define SPARE_DELAY_NS 1500000u

static int signals = -1;
static struct deadline refill_later;

static void
refill_now(struct deadline *deadline)
{
  (void)deadline;
}

static void
signals_ready(struct watch *watch, uint32_t events)
{
  struct signalfd_siginfo info;

  (void)watch;
  (void)events;
  while (read(signals, &info, sizeof info) == sizeof info)
    if (info.ssi_signo == SIGTERM)
      loop_stop();
  sandbox_reap();
}

static struct watch signals_watch = {signals_ready};

/* Too soon after a request: the loop is woken when it is not any more. */
static bool
too_soon(uint64_t delay)
{
  uint64_t due = sandbox_last_activity() + delay;

  if (due <= loop_now())
    return false;
  refill_later.fire = refill_now;
  if (!refill_later.index)
    deadline_set(&refill_later, due);
  return true;
}

/* One thing at a time: a request that arrives meanwhile waits for a single clone at most. First entries, as long as
 * few are left; then what other processes work at. */
static bool
refill(void)
{
  struct err err = {0};
  int waiting = sandbox_count(SANDBOX_POOLED) + sandbox_count(SANDBOX_BORN), size = (int)control_pool_size();
  bool entry = waiting < size && sandbox_prepare_failures() < REFILL_FAILURES_MAX;
  bool urgent = entry && waiting <= size / 2, spare = snapshot_spare_low() && !pressure_is_high();

  if (!entry && !spare && !root_stock_low())
    return false;
  /* Who is being started needs this process next, and takes less time than a clone. */
  if (waiting > 1 && sandbox_count(SANDBOX_STARTING) && too_soon(REFILL_DELAY_NS))
    return false;
  if (spare && !too_soon(SPARE_DELAY_NS)) {
    snapshot_spare_add();
    return true;
  }
  if (!urgent && too_soon(REFILL_DELAY_NS))
    return false;
  if (!entry) {
    root_stock_add();
    return true;
  }
  if (!sandbox_born(RAMET_STEP_NONE, &err)) {
    log_err("pool_entry_failed", &err);
    return false;
  }
  return true;
}

/* What the starter ignored would stay ignored here and in every command; with SIGCHLD ignored the kernel reaps by
 * itself, and no exit code is left to tell. By the bare call: libc keeps two signals for itself. */
static void
reset_dispositions(void)
{
  const uint64_t defaults[4] = {0};

  for (int number = 1; number <= 64; number++)
    syscall(SYS_rt_sigaction, number, defaults, NULL, 8); /* EINVAL for SIGKILL and SIGSTOP */
}

static int
take_signals(struct err *err)
{
  sigset_t all, wanted;

  reset_dispositions();

  sigfillset(&all);
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGCHLD);
  sigaddset(&wanted, SIGTERM);
  if (sigprocmask(SIG_SETMASK, &all, NULL) < 0)
    return err_code(err, "internal", "sigprocmask: %s", strerror(errno));
  signals = signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0 || loop_add(signals, &signals_watch, EPOLLIN) < 0)
    return err_code(err, "internal", "signalfd: %s", strerror(errno));
  return 0;
}

/* Entries record these as the most that their user namespaces may ever use, and each costs a few descriptors. */
static void
raise_limits(void)
{
  static const int resources[] = {RLIMIT_NOFILE, RLIMIT_NPROC};

  for (size_t i = 0; i < sizeof resources / sizeof resources[0]; i++) {
    struct rlimit limit;
    if (getrlimit(resources[i], &limit) == 0) {
      limit.rlim_cur = limit.rlim_max;
      setrlimit(resources[i], &limit);
    }
  }
}

static int
bound_quotas(struct err *err)
{
  cleanup_fd int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);

  if (proc < 0)
    return err_step(err, RAMET_STEP_CORE_PROC, "open /proc: %s", strerror(errno));
  return quotas_bound_all(proc, RAMET_STEP_CORE_PROC, err);
}

static int
setup(const struct serve_options *options, struct err *err)
{
  umask(0);
  raise_limits();
  if (setsid() < 0)
    return err_code(err, "internal", "setsid: %s", strerror(errno));
  if (corefs_setup(options->attach_layers, err) < 0 || bound_quotas(err) < 0 || sandbox_setup(err) < 0 ||
      networks_setup(err) < 0 || loop_setup(err) < 0 || take_signals(err) < 0)
    return -1;
  capture_setup();
  overuse_setup();
  snapshot_memory_setup(options->snapshot_memory, options->spill);
  if (options->snapshot_ms)
    snapshot_allow(options->snapshot_ms);
  pressure_setup(options->memory_reserve);
  return control_setup(&options->control, err);
}

static void
report_failure(const struct serve_options *options, const struct err *err)
{
  cleanup_writer struct writer writer = {0};

  put_err(&writer, err);
  log_err("core_failed", err);
  if (frame_send(options->control.connection, RAMET_ERROR, 0, &writer, NULL, 0) < 0)
    _exit(EXIT_DEFECT);
}

/* They belong to whoever started the launcher, who waits for the end of some of them. */
static void
leave_standard_streams(void)
{
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);

  for (int fd = 0; fd <= 2 && null >= 0; fd++)
    if (fcntl(fd, F_GETFD) >= 0 && !(fcntl(fd, F_GETFD) & FD_CLOEXEC))
      dup2(null, fd);
  close_fd(&null);
}

void
serve(const struct serve_options *options)
{
  struct err err = {0};

  log_setup(options->log);
  fault_arm(options->fault);
  if (setup(options, &err) < 0) {
    report_failure(options, &err);
    _exit(EXIT_SYSTEM);
  }
  fault_arm(RAMET_STEP_NONE);
  title_set("ramet-core");
  leave_standard_streams();
  if (write(options->report, "R", 1) != 1)
    _exit(EXIT_SYSTEM);
  close(options->report);
  loop_run(refill);
  control_close();
  /* Pid 1's exit ends every process of the namespace. */
  _exit(0);
}
