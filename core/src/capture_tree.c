/* SPDX-License-Identifier: Apache-2.0
 * All processes of a sandbox: found, stopped until a round finds nobody new, and what they are to each other. */
#define _GNU_SOURCE
#include "capture_parts.h"

#include <linux/kcmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#include "births.h"
#include "loop.h"
#include "overdue.h"

/* From vfork(2) to exec or exit, on a busy machine. */
#define VFORK_PATIENCE_NS 500000000u
#define EXIT_SIGNAL_FIELD 38
#define START_TIME_FIELD 22
#define EXIT_CODE_FIELD 52

/* ---- finding -------------------------------------------------------------------------------------------------- */

struct found {
  int pid, parent;
  bool zombie;
};

struct finding {
  struct capture_tree *tree;
  struct found *items;
  int count;
  bool passing; /* one that was listed is gone: the listing may lack others */
  struct err *err;
};

static struct capture *
known_process(const struct capture_tree *tree, int pid)
{
  for (int i = 0; i < tree->count; i++)
    if (tree->processes[i]->pid == pid)
      return tree->processes[i];
  return NULL;
}

/* The frozen copy of a snapshot before, whose stem is being filled: another tracer of core's holds it until it dies. */
static bool
is_frozen(int pid)
{
  int tracer = procfs_tracer(pid);

  return tracer > 0 && tracer != getpid() && procfs_parent(tracer) == getppid();
}

/* Zombies of init's it only has yet to wait for: nobody else can see how they ended. */
static int
add_found(struct finding *f, int pid, int parent)
{
  int threads[2], init = f->tree->source->init_pid;
  struct found found = {.pid = pid, .parent = parent};

  if (!known_process(f->tree, pid)) {
    char state = procfs_state(pid);
    if (state == PROCFS_UNTOLD)
      return err_step(f->err, RAMET_STEP_FIND_PROCESSES, "state of %d: %s", pid, strerror(errno));
    /* The first thread of a process may end before the others. */
    int left = state == 'Z' ? procfs_threads(pid, threads, 2) : 2;
    if (left < 0 && !procfs_gone())
      return err_step(f->err, RAMET_STEP_FIND_PROCESSES, "threads of %d: %s", pid, strerror(errno));
    /* Or hands its number on to another, by execve(2). */
    found.zombie = left < 2 && procfs_state(pid) == 'Z';
    if (state == 0 || state == 'X' || (parent == init && (found.zombie || is_frozen(pid))))
      return 0;
  }
  if (f->count == IMAGE_PROCESSES_MAX)
    return err_code(f->err, "unforkable", "the sandbox has more than %d processes", IMAGE_PROCESSES_MAX);
  f->items[f->count++] = found;
  return 0;
}

/* The kernel's list of children goes from each to the next, and leaves some out when one has gone meanwhile
 * (get_children_pid() of fs/proc/array.c): so it is whole if all that it names are still there. */
static int
add_children(struct finding *f, int parent)
{
  static int children[IMAGE_PROCESSES_MAX + 1];
  int count = procfs_children(parent, children, IMAGE_PROCESSES_MAX + 1);

  if (count < 0)
    return err_step(f->err, RAMET_STEP_FIND_PROCESSES, "children of %d: %s", parent, strerror(errno));
  for (int i = 0; i < count; i++) {
    if (add_found(f, children[i], parent) < 0)
      return -1;
    f->passing |= kill(children[i], 0) < 0 && errno == ESRCH;
  }
  return 0;
}

/* Whose parent ends gets an ancestor for it: so parents are asked after their children, all that are known already and
 * stand still. Those that are new come with parents before their children. */
static int
find_all(struct finding *f)
{
  f->count = 0;
  f->passing = false;
  for (int i = f->tree->count - 1; i >= 0; i--)
    if (add_children(f, f->tree->processes[i]->pid) < 0)
      return -1;
  if (add_children(f, f->tree->source->init_pid) < 0)
    return -1;
  for (int i = 0; i < f->count; i++)
    if (!f->items[i].zombie && !known_process(f->tree, f->items[i].pid) && add_children(f, f->items[i].pid) < 0)
      return -1;
  return 0;
}

static uint64_t
stat_number(int pid, int field)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  cleanup_free char *stat = procfs_read(path, NULL);
  return stat ? procfs_stat_field(stat, field) : 0;
}

static bool
leads_session(int pid)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%d/status", pid);
  cleanup_free char *status = procfs_read(path, NULL);
  return status && procfs_inside(status, "NSsid") == procfs_inside(status, "NSpid");
}

/* The first of all is the oldest child of init's that leads a session, as commands do; or any, once such are gone. */
static void
put_main_first(struct finding *f)
{
  int best = -1;
  uint64_t best_start = UINT64_MAX;

  for (int i = 0; i < f->count; i++) {
    if (f->items[i].zombie || f->items[i].parent != f->tree->source->init_pid)
      continue;
    uint64_t start = leads_session(f->items[i].pid) ? stat_number(f->items[i].pid, START_TIME_FIELD) : UINT64_MAX;
    if (best < 0 || start < best_start) {
      best = i;
      best_start = start;
    }
  }
  for (; best > 0; best--) {
    struct found swapped = f->items[best];
    f->items[best] = f->items[best - 1];
    f->items[best - 1] = swapped;
  }
}

/* ---- stopping ------------------------------------------------------------------------------------------------- */

static void
forget_process(struct capture_tree *tree, struct capture *capture)
{
  for (int i = 0; i < tree->count; i++)
    if (tree->processes[i] == capture) {
      memmove(&tree->processes[i], &tree->processes[i + 1], sizeof(void *) * (size_t)(tree->count - i - 1));
      tree->count--;
      break;
    }
  free(capture->threads);
  free(capture->status);
  free(capture);
}

/* What trace.c refuses, with the process in front. */
static int
name_refusal(const struct capture *capture, struct err *err)
{
  struct err told = *err;

  if ((strcmp(told.code, "unforkable") != 0 && strcmp(told.code, "exiting") != 0) ||
      strncmp(told.text, "pid ", 4) == 0)
    return -1;
  capture_refuse(capture, err, "%s", told.text);
  memcpy(err->code, told.code, sizeof err->code);
  return -1;
}

/* One that ends while it is being stopped is none any more. It counts as a zombie when it is found again, and without
 * the first nothing is left to fork. 1: it is forgotten. */
static int
let_end(struct capture_tree *tree, struct capture *capture, struct err *err)
{
  if (strcmp(err->code, "exiting") != 0 || capture == tree->processes[0])
    return name_refusal(capture, err);
  forget_process(tree, capture);
  return 1;
}

static int
add_process(struct capture_tree *tree, int pid, struct err *err)
{
  struct capture *capture = calloc(1, sizeof *capture);
  struct capture **grown = realloc(tree->processes, sizeof *grown * (size_t)(tree->count + 1));
  char path[48];

  if (grown)
    tree->processes = grown;
  if (!capture || !grown) {
    free(capture);
    return err_code(err, "internal", "no memory for a process");
  }
  *capture = (struct capture){.source = tree->source, .tree = tree, .pid = pid, .memory = -1, .pidfd = -1};
  tree->processes[tree->count++] = capture;
  procfs_name(pid, capture->name);
  snprintf(path, sizeof path, "/proc/%d/status", pid);
  capture->status = procfs_read(path, NULL);
  if (trace_seize_process(pid, &capture->threads, &capture->thread_count, err) == 0)
    return 0;
  return let_end(tree, capture, err);
}

static int stop_process(struct capture_tree *tree, struct capture *capture, struct err *err);

static bool
was_let_go(const struct capture *capture)
{
  for (int t = 0; t < capture->thread_count; t++)
    if (capture->threads[t].let_go)
      return true;
  return false;
}

/* Those that share the memory of one in vfork(2) are its child, or its child's: they go on until it has what it waits
 * for. Its child may have been asked to stop before anybody knew that it is waited for. */
static int
run_borrowers(struct capture_tree *tree, const struct capture *lender, struct err *err)
{
  for (int i = 0; i < tree->count; i++) {
    struct capture *other = tree->processes[i];
    if (other == lender || was_let_go(other) || (!other->still && procfs_parent(other->pid) != lender->pid) ||
        syscall(SYS_kcmp, lender->pid, other->pid, KCMP_VM, 0, 0) != 0)
      continue;
    int ended = other->still ? 0 : stop_process(tree, other, err);
    if (ended < 0)
      return -1;
    if (ended) {
      i = -1;
      continue;
    }
    other->still = false;
    for (int t = 0; t < other->thread_count; t++)
      if (trace_run_on(&other->threads[t], err) < 0)
        return -1;
  }
  return 0;
}

/* One that is stopped goes on from call to call, the last of which ends where it stands as a guest: not an instruction
 * further. Its first thread lets the others go. */
static int
step_out(struct capture *capture, struct err *err)
{
  const struct capture_source *source = capture->source;

  for (int i = 0; i < capture->thread_count; i++) {
    struct tracee *thread = &capture->threads[i];
    while (thread->registers.rip >= source->region_start && thread->registers.rip < source->region_end)
      if (trace_step_call(thread, err) < 0)
        return -1;
  }
  return 0;
}

/* A child is told of before its threads have left the restorer, whose memory is in no image. What has left stays
 * stopped; the others go on and are stopped again, later each time: on a busy machine they get nowhere at once. */
static int
leave_restorer(struct capture *capture, struct err *err)
{
  const struct capture_source *source = capture->source;

  if (capture->threads[0].stopped)
    return step_out(capture, err);
  for (long wait_ns = 200000;; wait_ns *= 2) {
    int left = 0;
    for (int i = 0; i < capture->thread_count; i++) {
      struct tracee *thread = &capture->threads[i];
      if (thread->registers.rip < source->region_start || thread->registers.rip >= source->region_end)
        continue;
      left++;
      if (trace_run_on(thread, err) < 0)
        return -1;
    }
    if (left == 0)
      return 0;
    if (trace_patience_over())
      return capture_refuse(capture, err, "executes what is left of the restorer");
    nanosleep(&(struct timespec){wait_ns / 1000000000, wait_ns % 1000000000}, NULL);
    int waited = trace_stop_again(capture->pid, capture->threads, &capture->thread_count, err);
    if (waited)
      return waited;
  }
}

/* 1: it has ended. */
static int
stop_process(struct capture_tree *tree, struct capture *capture, struct err *err)
{
  uint64_t since = loop_now();
  int waited;

  do {
    waited = trace_stop_process(capture->pid, capture->threads, &capture->thread_count, err);
    if (waited == 0 && capture->source->frozen)
      waited = trace_thaw(capture->pid, capture->threads, &capture->thread_count, err);
    if (waited == 0)
      waited = leave_restorer(capture, err);
    if (waited > 0 && (loop_now() - since > VFORK_PATIENCE_NS || trace_patience_over()))
      return capture_refuse(capture, err, "waits in vfork for its child");
    if (waited > 0 && run_borrowers(tree, capture, err) < 0)
      return -1;
  } while (waited > 0);
  if (waited < 0)
    return let_end(tree, capture, err);
  capture->still = true;
  return 0;
}

/* Those that have run on for another's sake are asked again. */
static int
stop_running(struct capture_tree *tree, struct err *err)
{
  for (int i = 0; i < tree->count; i++) {
    struct capture *capture = tree->processes[i];
    if (capture->still)
      continue;
    if (overdue_check(RAMET_STEP_SEIZE, err) < 0)
      return -1;
    if (trace_interrupt(capture->threads, capture->thread_count, err) < 0)
      return -1;
    int ended = stop_process(tree, capture, err);
    if (ended < 0)
      return -1;
    /* Others before it may run now, and this place is another's. */
    if (ended || i > 0)
      i = -1;
  }
  return 0;
}

/* Who is stopped may have been sent SIGCONT before everybody stood still; a SIGSTOP that was sent to one that stood still
 * by then could not be kept waiting in a child. What the parent was not told yet is there for it to ask. */
int
capture_stopped(struct capture *capture, struct err *err)
{
  const char *own = procfs_field(capture->status, "SigPnd"), *shared = procfs_field(capture->status, "ShdPnd");
  uint64_t pending = (own ? strtoull(own, NULL, 16) : 0) | (shared ? strtoull(shared, NULL, 16) : 0);

  capture->stopped = pending & (1u << (SIGSTOP - 1)) ? SIGSTOP | IMAGE_STOP_UNTOLD : 0;
  if (!capture->threads[0].stopped)
    return 0;
  if (trace_look_again(&capture->threads[0], err) < 0)
    return name_refusal(capture, err);
  if (capture->threads[0].stopped)
    capture->stopped = (uint32_t)capture->threads[0].stopped |
                       (stat_number(capture->pid, EXIT_CODE_FIELD) & 0x7f ? IMAGE_STOP_UNTOLD : 0);
  return 0;
}

static int
note_zombie(struct capture_tree *tree, const struct found *found, struct err *err)
{
  struct image_zombie zombie = {.status = (uint32_t)stat_number(found->pid, EXIT_CODE_FIELD)};
  struct image_zombie *grown = realloc(tree->zombies, sizeof *grown * (size_t)(tree->zombie_count + 1));

  if (!grown)
    return err_code(err, "internal", "no memory for a zombie");
  tree->zombies = grown;
  const struct capture *parent = known_process(tree, found->parent);
  if (!parent)
    return err_step(err, RAMET_STEP_SEIZE, "process %d has lost its parent", found->pid);
  char path[48];
  snprintf(path, sizeof path, "/proc/%d/status", found->pid);
  cleanup_free char *status = procfs_read(path, NULL);
  if (!status)
    return err_step(err, RAMET_STEP_SEIZE, "read %s: %s", path, strerror(errno));
  capture_read_relations(status, found->pid, &zombie.relations);
  zombie.relations.parent = procfs_inside(parent->status, "NSpid");
  procfs_copy_name(status, zombie.name);
  grown[tree->zombie_count++] = zombie;
  return 0;
}

/* Everybody stands still: who is whose. */
static int
note_found(struct finding *f)
{
  for (int i = 0; i < f->count; i++) {
    struct capture *capture = known_process(f->tree, f->items[i].pid);
    if (capture)
      capture->parent = f->items[i].parent;
    else if (note_zombie(f->tree, &f->items[i], f->err) < 0)
      return -1;
  }
  return 0;
}

/* All that are not known yet: their count. */
static int
seize_found(struct finding *f)
{
  int added = 0;

  for (int i = 0; i < f->count; i++) {
    if (f->items[i].zombie || known_process(f->tree, f->items[i].pid))
      continue;
    added++;
    if (add_process(f->tree, f->items[i].pid, f->err) < 0)
      return -1;
  }
  return added;
}

/* Whom the last round found has been stopped, so only those that run can have made more. */
int
capture_stop(struct capture_tree *tree, struct err *err)
{
  cleanup_free struct found *items = malloc(IMAGE_PROCESSES_MAX * sizeof *items);
  struct finding f = {.tree = tree, .items = items, .err = err};
  int added, known;
  bool again;

  if (!items)
    return err_code(err, "internal", "no memory for processes");
  do {
    known = tree->count;
    if (overdue_check(RAMET_STEP_FIND_PROCESSES, err) < 0)
      return -1;
    if (find_all(&f) < 0)
      return -1;
    if (known == 0)
      put_main_first(&f);
    if (f.count == 0 || (known == 0 && f.items[0].zombie))
      return err_code(err, "unforkable", "no process runs in the sandbox");
    added = seize_found(&f);
    if (added < 0 || stop_running(tree, err) < 0)
      return -1;
    again = added || tree->count != known || f.passing;
    if (again && trace_patience_over())
      return capture_refuse(tree->processes[0], err, "is one of those that start others faster than they stop");
  } while (again);
  return note_found(&f);
}

/* ---- relations ------------------------------------------------------------------------------------------------ */

void
capture_read_relations(const char *status, int pid, struct image_relations *relations)
{
  relations->pid = procfs_inside(status, "NSpid");
  relations->group = procfs_inside(status, "NSpgid");
  relations->session = procfs_inside(status, "NSsid");
  relations->exit_signal = (uint32_t)stat_number(pid, EXIT_SIGNAL_FIELD) & 0x7f;
}

/* kcmp(2) puts what processes have in an order, so that those that share it are neighbours. */
static int shared_kind;

static int
compare_shared(const void *a, const void *b)
{
  const struct capture *one = *(struct capture *const *)a, *other = *(struct capture *const *)b;
  long order = syscall(SYS_kcmp, one->pid, other->pid, shared_kind, 0, 0);

  return order == 0 ? 0 : order == 1 ? -1 : 1;
}

static int
refuse_shared(struct capture_tree *tree, int kind, const char *what, struct err *err)
{
  cleanup_free struct capture **sorted = malloc(sizeof *sorted * (size_t)tree->count);

  if (!sorted)
    return err_code(err, "internal", "no memory for processes");
  memcpy(sorted, tree->processes, sizeof *sorted * (size_t)tree->count);
  shared_kind = kind;
  qsort(sorted, (size_t)tree->count, sizeof *sorted, compare_shared);
  for (int i = 1; i < tree->count; i++)
    if (compare_shared(&sorted[i - 1], &sorted[i]) == 0)
      return capture_refuse(sorted[i], err, "shares %s with another process (%s)", what, sorted[i - 1]->name);
  return 0;
}

/* Whether they can be born again as what they are to each other. */
static int
check_births(const struct capture_tree *tree, struct err *err)
{
  struct births births;
  int count = tree->count + tree->zombie_count;
  cleanup_free struct kin *kin = calloc((size_t)count, sizeof *kin);

  if (!kin)
    return err_code(err, "internal", "no memory for processes");
  for (int i = 0; i < tree->count; i++)
    kin[i] = (struct kin){tree->processes[i]->relations, tree->processes[i]->name};
  for (int i = 0; i < tree->zombie_count; i++)
    kin[tree->count + i] = (struct kin){tree->zombies[i].relations, tree->zombies[i].name};
  int result = births_plan(kin, tree->count, count, 0, &births, err);
  births_free(&births);
  return result;
}

int
capture_relate(struct capture_tree *tree, struct err *err)
{
  for (int i = 0; i < tree->count; i++) {
    struct capture *capture = tree->processes[i];
    const struct capture *parent = known_process(tree, capture->parent);
    capture_read_relations(capture->status, capture->pid, &capture->relations);
    capture->relations.parent = parent ? procfs_inside(parent->status, "NSpid") : 1;
  }
  if (check_births(tree, err) < 0)
    return -1;
  if (tree->count == 1)
    return 0;
  return refuse_shared(tree, KCMP_VM, "its memory", err) < 0 ||
                 refuse_shared(tree, KCMP_FILES, "its descriptors", err) < 0 ||
                 refuse_shared(tree, KCMP_FS, "its directory", err) < 0
             ? -1
             : 0;
}
