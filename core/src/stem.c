/* SPDX-License-Identifier: Apache-2.0
 * From an image to the restorer's tables. This runs in a fork of core, up to the jump into the region. */
#define _GNU_SOURCE
#include "stem_parts.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "deposit.h"
#include "log.h"
#include "procfs.h"
#include "syscalls.h"
#include "title.h"
#include "twin.h"

#define STEM_STACK_BYTES 65536
#define NAMESPACES (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWCGROUP)

static uint64_t
code_length(void)
{
  return stem_page_up((uint64_t)(__stop_ramet_restorer - __start_ramet_restorer));
}

static uint64_t
args_length(const struct process_image *process)
{
  return stem_page_up(sizeof(struct pie_args) + process->thread_count * sizeof(struct pie_thread));
}

static uint64_t
stacks_length(const struct process_image *process)
{
  return (uint64_t)process->thread_count * (PIE_STACK_BYTES + ARCH_FRAME_BYTES);
}

/* Its part of the region. That of the first has the stem's own stack too. */
static uint64_t
own_length(const struct process_image *process)
{
  return args_length(process) + stacks_length(process);
}

static uint64_t
process_tables_length(const struct process_image *p)
{
  uint64_t paths = sizeof FROZEN_PATH + 16, inherited = stem_inherited_runs(p);

  for (uint32_t i = 0; i < p->mapping_count; i++)
    paths += p->paths[i].length + 17;
  return p->mapping_count *
             (sizeof(struct pie_map) + (STEM_ADVICE_KINDS + STEM_LATE_KINDS) * sizeof(struct pie_protect) +
              sizeof(struct pie_late)) +
         inherited * (sizeof(struct pie_map) + sizeof(struct pie_range)) +
         2 * (p->run_count + inherited) * sizeof(struct pie_fill) + 2 * p->run_count * sizeof(struct pie_store) +
         p->mapping_count * sizeof(struct pie_take) + p->signal_count * sizeof(struct pie_signal) +
         p->fd_count * sizeof(struct pie_fd) + (p->pending_count + 1) * sizeof(struct pie_pending) +
         p->lock_count * sizeof(struct pie_lock) + p->timer_count * sizeof(struct pie_timer) +
         p->scheduling_count * sizeof(struct pie_scheduling) + paths + p->cwd.length + p->auxv.length + 4096;
}

static uint64_t
tables_length(const struct image *image, struct span filter)
{
  uint64_t length =
      filter.length + 4096 + image->epoll_count * sizeof(struct pie_epoll) +
      image->description_count * sizeof(int32_t) + image->process_count * (sizeof(uint32_t) + 1) +
      (uint64_t)(image->process_count + image->zombie_count) * BIRTHS_FOR_EACH * sizeof(struct pie_node);

  for (uint32_t i = 0; i < image->process_count; i++)
    length += process_tables_length(&image->processes[i]) + image->process_count * 16;
  return stem_page_up(length);
}

static uint64_t
parts_length(const struct image *image)
{
  uint64_t length = STEM_STACK_BYTES;

  for (uint32_t i = 0; i < image->process_count; i++)
    length += own_length(&image->processes[i]);
  return length;
}

/* ---- the region ----------------------------------------------------------------------------------------------- */

static bool
overlaps_guest(const struct image *image, uint64_t start, uint64_t end)
{
  for (uint32_t p = 0; p < image->process_count; p++) {
    const struct process_image *process = &image->processes[p];
    for (uint32_t i = 0; i < process->mapping_count; i++)
      if (process->mappings[i].start < end && process->mappings[i].end > start)
        return true;
  }
  return false;
}

static bool
overlaps_own(const struct procmaps *maps, uint64_t start, uint64_t end)
{
  for (uint32_t i = 0; i < maps->count; i++)
    if (maps->items[i].start < end && maps->items[i].end > start)
      return true;
  return false;
}

int
stem_find_region(const struct image *image, uint64_t avoid_start, uint64_t avoid_end, uint64_t *start,
                 uint64_t *length, struct err *err)
{
  const uint64_t step = (uint64_t)1 << 36, deposit = deposit_length(image);
  struct procmaps own;
  const struct span longest_filter = {NULL, RAMET_FILTER_BYTES_MAX};

  /* The page that is shared stands in front of the parking place. */
  *length = code_length() + parts_length(image) + tables_length(image, longest_filter) + IMAGE_PAGE + PARKING_BYTES;
  if (procfs_maps(getpid(), &own, RAMET_STEP_STEM_REGION, err) < 0)
    return -1;
  *start = 0;
  for (uint64_t at = (uint64_t)1 << 44; at < (uint64_t)0x7e << 40 && !*start; at += step) {
    uint64_t end = deposit_start(at, *length) + deposit;
    if (!overlaps_guest(image, at, end) && !overlaps_own(&own, at, end) && (at >= avoid_end || end <= avoid_start))
      *start = at;
  }
  procfs_maps_free(&own);
  if (*start)
    return 0;
  errno = ENOMEM;
  return err_step(err, RAMET_STEP_STEM_REGION, "no hole of %llu bytes in the guest's memory",
                  (unsigned long long)*length);
}

void *
stem_table(struct builder *b, size_t bytes, uint64_t *address)
{
  uint8_t *at = b->at;

  b->at += (bytes + 15) & ~(size_t)15;
  if (b->at > b->end)
    _exit(EXIT_DEFECT); /* tables_length() is wrong */
  *address = (uint64_t)(uintptr_t)at;
  return at;
}

void
stem_copy_table(struct builder *b, const void *from, size_t bytes, uint64_t *address)
{
  void *to = stem_table(b, bytes, address);

  if (bytes)
    memcpy(to, from, bytes);
}

/* ---- the region's content ------------------------------------------------------------------------------------- */

static int
make_region(struct builder *b, uint64_t region, uint64_t length)
{
  void *at = mmap((void *)(uintptr_t)region, length, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

  if (at != (void *)(uintptr_t)region)
    return err_step(b->err, RAMET_STEP_STEM_REGION, "map the region: %s", strerror(errno));
  memcpy(at, __start_ramet_restorer, (size_t)(__stop_ramet_restorer - __start_ramet_restorer));
  if (mprotect(at, code_length(), PROT_READ | PROT_EXEC) < 0)
    return err_step(b->err, RAMET_STEP_STEM_REGION, "protect the region: %s", strerror(errno));
  return 0;
}

static int
build_region(struct builder *b, uint64_t region, uint64_t length)
{
  uint64_t tables = region + code_length() + parts_length(b->plan->image);

  if (fault_here(RAMET_STEP_STEM_REGION, b->err) < 0 || births_of_image(b->plan->image, &b->births, b->err) < 0 ||
      make_region(b, region, length) < 0)
    return -1;
  b->args = (struct pie_args *)(uintptr_t)(region + code_length());
  b->next = (uint64_t)(uintptr_t)b->args;
  b->at = (uint8_t *)(uintptr_t)tables;
  b->end = (uint8_t *)(uintptr_t)(region + length - PARKING_BYTES - IMAGE_PAGE);
  b->args->region = region;
  b->args->region_length = length;
  return 0;
}

/* The next process's part of the region, with what is the same for all. */
static void
open_part(struct builder *b, const struct process_image *process)
{
  uint64_t region = b->args->region, region_length = b->args->region_length;

  b->process = process;
  b->args = (struct pie_args *)(uintptr_t)b->next;
  b->next += own_length(process) + (stem_is_first(b) ? STEM_STACK_BYTES : 0);
  b->args->region = region;
  b->args->region_length = region_length;
  b->args->own = (uint64_t)(uintptr_t)b->args;
  b->args->own_end = b->next;
  if (stem_is_first(b))
    b->first = b->args;
  b->args->first = b->first->own;
  b->args->nodes = b->first->nodes;
  b->args->filter = b->first->filter;
  b->args->received = b->first->received;
  b->args->node_count = (uint32_t)b->births.count;
  b->args->node = (uint32_t)(process - b->plan->image->processes);
  b->args->passage_tid = b->births.passage_pid;
  b->args->passage_leads = b->births.passage_leads;
  b->args->filter_length = (int32_t)(b->plan->filter.length / 8);
  b->args->shared = region + region_length - PARKING_BYTES - IMAGE_PAGE;
  b->args->deposit = deposit_start(region, region_length);
  b->args->deposit_length = stem_is_first(b) ? deposit_length(b->plan->image) : b->first->deposit_length;
  b->args->heirs = b->first->heirs;
  /* At the end of the parking place, whose beginning alone is ever used. */
  b->args->hot = region + region_length - PIE_HOT_MAX * sizeof(struct pie_range);
}

/* Where its threads' stacks and frames begin. */
static uint64_t
stacks_of(const struct builder *b)
{
  return b->args->own + args_length(b->process) + (stem_is_first(b) ? STEM_STACK_BYTES : 0);
}

/* What every child of the stem restores. */
static int
build_child(struct builder *b)
{
  if (stem_build_threads(b, stacks_of(b)) < 0)
    return -1;
  stem_build_signals(b);
  stem_build_descriptors(b);
  stem_build_locks(b);
  stem_build_terminal(b);
  stem_build_late(b);
  stem_build_rest(b);
  return 0;
}

static void
build_nodes(struct builder *b)
{
  const struct image *image = b->plan->image;
  struct pie_node *nodes = stem_table(b, (size_t)b->births.count * sizeof *nodes, &b->args->nodes);

  for (int i = 0; i < b->births.count; i++) {
    const struct birth *birth = &b->births.items[i];
    nodes[i] = (struct pie_node){.pid = birth->pid,
                                 .parent = birth->parent,
                                 .kind = (uint32_t)birth->kind,
                                 .early = birth->early,
                                 .session = birth->session,
                                 .group = birth->group};
    if (birth->kind == BIRTH_PROCESS)
      nodes[i].exit_signal = image->processes[i].process.relations.exit_signal;
    if (birth->kind == BIRTH_PROCESS)
      nodes[i].status = image->processes[i].process.stopped;
    if (birth->kind != BIRTH_ZOMBIE)
      continue;
    const struct image_zombie *zombie = &image->zombies[i - (int)image->process_count];
    nodes[i].exit_signal = zombie->relations.exit_signal;
    nodes[i].status = zombie->status;
    memcpy(nodes[i].name, zombie->name, sizeof nodes[i].name);
  }
}

/* What the processes have in common. */
static void
build_common(struct builder *b)
{
  build_nodes(b);
  stem_table(b, b->plan->image->process_count * sizeof(uint32_t), &b->args->heirs);
  stem_table(b, b->plan->image->description_count * sizeof(int32_t), &b->args->received);
  stem_copy_table(b, b->plan->filter.data, b->plan->filter.length, &b->args->filter);
}

/* Those that keep some of the first's memory, and those through which they get it. */
static void
find_late(struct builder *b)
{
  uint64_t address;

  b->late = stem_table(b, b->plan->image->process_count, &address);
  for (uint32_t i = 1; i < b->plan->image->process_count; i++) {
    if (!stem_inherited_runs(&b->plan->image->processes[i]))
      continue;
    for (int at = (int)i; at > 0; at = b->births.items[at].parent)
      if (b->births.items[at].kind == BIRTH_PROCESS)
        b->late[at] = true;
  }
}

/* A process is born with the memory of the next before it that is one and has its own by then: a helper has its
 * parent's, and so has who leaves it late. */
static const struct process_image *
find_born_in(const struct builder *b, int at)
{
  do
    at = b->births.items[at].parent;
  while (b->births.items[at].kind != BIRTH_PROCESS || b->late[at]);
  return &b->plan->image->processes[at];
}

/* Of the node and of those below it, which its parent passes on to it. */
static void
find_heirs(struct builder *b, int at, uint32_t *count)
{
  struct pie_node *nodes = (struct pie_node *)(uintptr_t)b->first->nodes;
  uint32_t *heirs = (uint32_t *)(uintptr_t)b->first->heirs;

  nodes[at].first_heir = *count;
  if (nodes[at].args && ((const struct pie_args *)(uintptr_t)nodes[at].args)->part_length)
    heirs[(*count)++] = (uint32_t)at;
  for (int i = 1; i < b->births.count; i++)
    if (b->births.items[i].parent == at)
      find_heirs(b, i, count);
  nodes[at].heir_count = *count - nodes[at].first_heir;
}

/* Processes beside the first, forked from it by each child anew. */
static int
build_others(struct builder *b)
{
  const struct image *image = b->plan->image;
  uint32_t heirs = 0;

  find_late(b);
  for (uint32_t i = 1; i < image->process_count; i++) {
    open_part(b, &image->processes[i]);
    b->args->leaves_late = b->late[i];
    b->born_in = find_born_in(b, (int)i);
    struct pie_node *node = &((struct pie_node *)(uintptr_t)b->first->nodes)[i];
    node->args = b->args->own;
    if (stem_build_memory(b) < 0 || stem_build_moves(b) < 0 || stem_build_mm(b) < 0 || build_child(b) < 0)
      return -1;
  }
  b->born_in = NULL;
  b->process = &image->processes[0];
  b->args = b->first;
  find_heirs(b, 0, &heirs);
  return 0;
}

static int
build(struct builder *b, uint64_t region, uint64_t length)
{
  if (build_region(b, region, length) < 0 || fault_here(RAMET_STEP_STEM_FILES, b->err) < 0)
    return -1;
  open_part(b, &b->plan->image->processes[0]);
  build_common(b);
  if (stem_build_memory(b) < 0 || stem_build_moves(b) < 0 || stem_build_mm(b) < 0 || build_child(b) < 0)
    return -1;
  return build_others(b);
}

/* ---- adoption ------------------------------------------------------------------------------------------------- */

static uint64_t
entry_of(const struct pie_args *args, const void *function)
{
  return args->region + (uint64_t)((const uint8_t *)function - __start_ramet_restorer);
}

/* The first message on the nursery: a socket for this stem alone, and the page file. */
static int
send_control(int nursery, int pages, int *control)
{
  union {
    struct cmsghdr align;
    uint8_t bytes[CMSG_SPACE(2 * sizeof(int))];
  } space;
  int pair[2];
  struct iovec iov = {(void *)(uintptr_t)"", 1};
  struct msghdr message = {
      .msg_iov = &iov, .msg_iovlen = 1, .msg_control = space.bytes, .msg_controllen = sizeof space.bytes};

  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
    return -1;
  memset(&space, 0, sizeof space);
  space.align.cmsg_level = SOL_SOCKET;
  space.align.cmsg_type = SCM_RIGHTS;
  space.align.cmsg_len = CMSG_LEN(2 * sizeof(int));
  const int fds[] = {pair[1], pages};
  memcpy(CMSG_DATA(&space.align), fds, sizeof fds);
  ssize_t sent = sendmsg(nursery, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  int saved = errno;
  close(pair[1]);
  errno = saved;
  *control = pair[0];
  return sent < 0 ? -1 : 0;
}

static int
launch_copy(struct builder *b, const struct stem_adoption *adoption, int *control)
{
  open_part(b, &b->plan->image->processes[0]);
  build_common(b);
  if (build_child(b) < 0 || build_others(b) < 0)
    return -1;
  /* The stem before has given up its registration; this process never had one. */
  struct pie_args *args = b->args;
  args->own_rseq = 0;
  args->old_region = adoption->old_start;
  args->old_length = adoption->old_end - adoption->old_start;
  struct twin_region region = {.start = args->region,
                               .length = args->region_length,
                               .code_length = code_length(),
                               .written_length = (uint64_t)(uintptr_t)b->at - args->region,
                               .entry = entry_of(args, (const void *)(uintptr_t)&pie_adopted),
                               .argument = (uint64_t)(uintptr_t)args,
                               .stack = stacks_of(b) - 64};
  if (send_control(adoption->nursery, b->plan->pages, control) < 0)
    return err_step(b->err, RAMET_STEP_PARKED_TWIN, "the nursery: %s", strerror(errno));
  return twin_launch(adoption->pid, adoption->syscall_address, &region, b->err);
}

int
stem_adopt(const struct stem_plan *plan, const struct stem_adoption *adoption, uint64_t region,
           uint64_t region_length, int *control, struct err *err)
{
  struct builder b = {.plan = plan, .err = err};
  int result = fault_here(RAMET_STEP_STEM_ADOPT, err) < 0 ? -1 : build_region(&b, region, region_length);

  *control = -1;
  if (result == 0) {
    result = launch_copy(&b, adoption, control);
    munmap((void *)(uintptr_t)region, region_length);
  }
  births_free(&b.births);
  if (result < 0)
    close_fd(control);
  return result;
}

/* ---- the fork ------------------------------------------------------------------------------------------------- */

static void
jump(struct pie_args *args, uint64_t stack_top)
{
  uint64_t entry = entry_of(args, (const void *)(uintptr_t)&pie_stem);

  __asm__ volatile("mov %0, %%rsp\n\txor %%ebp, %%ebp\n\tmov %1, %%rdi\n\tcall *%2\n\thlt" ::"r"(stack_top),
                   "r"(args), "r"(entry)
                   : "memory", "rdi");
}

static void
become_stem(const struct stem_plan *plan, uint64_t region, uint64_t length, int control)
{
  struct err err = {0};
  struct builder b = {.plan = plan, .err = &err};

  title_set("ramet-stem");
  fault_arm(plan->fault);
  if (build(&b, region, length) < 0) {
    log_err("stem_failed", &err);
    struct pie_status failed = {.step = (int32_t)err.step, .error = err.number ? err.number : EINVAL};
    if (write(control, &failed, sizeof failed) < 0)
      _exit(EXIT_DEFECT);
    _exit(EXIT_SYSTEM);
  }
  b.args->control = control;
  b.args->pages = plan->pages;
  b.args->own_pidns = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
  jump(b.args, stacks_of(&b) - 64);
}

int
stem_fork(const struct stem_plan *plan, uint64_t region, uint64_t region_length, int *pid, int *control,
          struct err *err)
{
  int pair[2];

  fault_arm(plan->fault);
  int faulted = fault_here(RAMET_STEP_STEM_FORK, err);
  fault_arm(RAMET_STEP_NONE);
  if (faulted < 0)
    return -1;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
    return err_step(err, RAMET_STEP_STEM_FORK, "socketpair: %s", strerror(errno));
  long child = sys_clone(0, NULL);
  if (child == 0)
    become_stem(plan, region, region_length, pair[1]);
  int saved = errno;
  close(pair[1]);
  errno = saved;
  if (child < 0) {
    close(pair[0]);
    return err_step(err, RAMET_STEP_STEM_FORK, "clone: %s", strerror(errno));
  }
  *pid = (int)child;
  *control = pair[0];
  return 0;
}

_Static_assert(PIE_ENTRANCES_MAX >= CGROUP_DIRECTORIES_MAX, "an order holds an entrance to each hierarchy");

static int
send_order(int control, struct pie_spawn order, const int *fds)
{
  union {
    struct cmsghdr align;
    uint8_t bytes[CMSG_SPACE(sizeof(int) * (PIE_SPAWN_FDS + PIE_ENTRANCES_MAX))];
  } space;
  uint32_t length = (uint32_t)(sizeof(int) * (PIE_SPAWN_FDS + order.entrances));
  struct iovec iov = {&order, sizeof order};
  struct msghdr message = {.msg_iov = &iov,
                           .msg_iovlen = 1,
                           .msg_control = space.bytes,
                           .msg_controllen = (socklen_t)CMSG_SPACE(length)};

  memset(&space, 0, sizeof space);
  struct cmsghdr *c = &space.align;
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = (socklen_t)CMSG_LEN(length);
  memcpy(CMSG_DATA(c), fds, length);
  return sendmsg(control, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -1 : 0;
}

void
spawn_ends_close(struct spawn_ends *ends)
{
  close_fd(&ends->status);
  close_fd(&ends->descriptors);
  close_fd(&ends->nursery);
  cgroups_close_entrances(&ends->entrances);
}

/* By its plan. Hard limits: a guest may have raised its soft ones. */
static void
bound_child(uint64_t most[PIE_RESOURCES], const struct plan *plan)
{
  for (int i = 0; i < PIE_RESOURCES; i++)
    most[i] = RLIM_INFINITY;
  for (int i = 0; i < plan->rlimit_count; i++)
    if (plan->rlimits[i].resource < PIE_RESOURCES)
      most[plan->rlimits[i].resource] = plan->rlimits[i].hard;
  most[RLIMIT_NPROC] = plan_rlimit_processes(plan);
}

int
stem_order(int control, int init_pidfd, const struct spawn_ends *ends)
{
  int fds[PIE_SPAWN_FDS + PIE_ENTRANCES_MAX] = {init_pidfd, ends->status, ends->descriptors, ends->nursery};
  struct pie_spawn order = {.namespaces = NAMESPACES,
                            .fault = ends->fault,
                            .entrances = (uint32_t)ends->entrances.count,
                            .born_inside = ends->entrances.born_inside};

  bound_child(order.most, ends->plan);
  memcpy(fds + PIE_SPAWN_FDS, ends->entrances.fds, sizeof(int) * order.entrances);
  return send_order(control, order, fds);
}

int
stem_order_spare(int control, int spare, int pagemap)
{
  /* A descriptor in every place: the stem closes what only stands there. */
  const int fds[PIE_SPAWN_FDS] = {spare, pagemap >= 0 ? pagemap : spare, spare, spare};

  return send_order(control, (struct pie_spawn){.spare = 1, .namespaces = pagemap >= 0}, fds);
}
