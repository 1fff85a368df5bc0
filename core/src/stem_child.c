/* SPDX-License-Identifier: Apache-2.0
 * What a child of a stem restores besides its memory: signals, threads, timers, descriptors, locks, terminal, limits. */
#define _GNU_SOURCE
#include "stem_parts.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "syscalls.h"

/* glibc registers a restartable-sequence area for the thread core runs in; musl does not. */
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));
#define RSEQ_SIGNATURE_X86 0x53053053

/* Of children: a stem that had the one would lose the area at its forks, the other ends there. */
static const struct {
  uint32_t flag;
  int32_t advice;
} late_advice_of[] = {{IMAGE_DONTFORK, MADV_DONTFORK}, {IMAGE_LOCKED, PIE_LOCK}};
_Static_assert(STEM_LATE_KINDS == sizeof late_advice_of / sizeof late_advice_of[0], "kinds of advice");

/* The process with the channel finds what its twin needs to know there, and looks at its next safe point: by default
 * SIGURG is ignored. */
static bool
has_channel(const struct builder *b)
{
  const struct image *image = b->plan->image;

  for (uint32_t i = 0; stem_is_first(b) && i < image->description_count; i++)
    if (image->descriptions[i].kind == IMAGE_STREAM && image->descriptions[i].value[0] == STREAM_CHANNEL)
      return true;
  return false;
}

void
stem_build_signals(struct builder *b)
{
  const struct process_image *p = b->process;
  struct pie_signal *out = stem_table(b, p->signal_count * sizeof *out, &b->args->signals);

  for (uint32_t i = 0; i < p->signal_count; i++)
    out[i] = (struct pie_signal){p->signals[i].number, p->signals[i].handler, p->signals[i].flags,
                                 p->signals[i].restorer, p->signals[i].mask};
  b->args->signal_count = p->signal_count;
  bool told = has_channel(b);
  struct pie_pending *pending = stem_table(b, (p->pending_count + told) * sizeof *pending, &b->args->pending);
  for (uint32_t i = 0; i < p->pending_count; i++) {
    pending[i] = (struct pie_pending){.thread = p->pending[i].thread, .shared = p->pending[i].shared};
    memcpy(pending[i].info, p->pending[i].info, sizeof pending[i].info);
  }
  b->args->pending_count = p->pending_count + told;
  if (told) {
    const siginfo_t urgent = {.si_signo = SIGURG, .si_code = SI_QUEUE};
    pending[p->pending_count] = (struct pie_pending){.shared = 1};
    memcpy(pending[p->pending_count].info, &urgent, sizeof pending->info);
  }
  _Static_assert(sizeof(struct pie_timer) == sizeof(struct image_timer), "the same");
  _Static_assert(sizeof(struct pie_scheduling) == sizeof(struct image_scheduling), "the same");
  stem_copy_table(b, p->timers, p->timer_count * sizeof *p->timers, &b->args->timers);
  stem_copy_table(b, p->schedulings, p->scheduling_count * sizeof *p->schedulings, &b->args->schedulings);
  b->args->timer_count = p->timer_count;
  b->args->scheduling_count = p->scheduling_count;
}

int
stem_build_threads(struct builder *b, uint64_t stacks)
{
  const struct process_image *p = b->process;
  struct pie_thread *threads = (struct pie_thread *)(void *)(b->args + 1);

  b->args->threads = (uint64_t)(uintptr_t)threads;
  b->args->thread_count = p->thread_count;
  for (uint32_t i = 0; i < p->thread_count; i++) {
    const struct image_thread *t = &p->threads[i];
    uint64_t stack = stacks + (uint64_t)i * (PIE_STACK_BYTES + ARCH_FRAME_BYTES);
    uint64_t frame = stack + PIE_STACK_BYTES;
    threads[i] = (struct pie_thread){.frame = frame,
                                     .stack_top = stack + PIE_STACK_BYTES,
                                     .fs_base = t->fs_base,
                                     .gs_base = t->gs_base,
                                     .rseq = t->rseq,
                                     .robust_list = t->robust_list,
                                     .tid_address = t->tid_address,
                                     .stack_address = t->stack_address,
                                     .stack_size = t->stack_size,
                                     .stack_flags = t->stack_flags,
                                     .rseq_length = t->rseq_length,
                                     .rseq_signature = t->rseq_signature,
                                     .tid = t->tid};
    memcpy(threads[i].name, t->name, sizeof threads[i].name);
    threads[i].holds_tiles = arch_holds_asked(p->xstates[i], t->xstate_length);
    const struct arch_stack alternate = {t->stack_address, t->stack_size, t->stack_flags};
    if (!arch_write_frame((uint8_t *)(uintptr_t)frame, frame, &t->registers, t->signal_mask, &alternate,
                          p->xstates[i], t->xstate_length))
      return err_code(b->err, "other_processor", "a thread's state does not fit a signal frame");
  }
  return 0;
}

static uint32_t
description_index(const struct image *image, uint32_t id)
{
  for (uint32_t i = 0; i < image->description_count; i++)
    if (image->descriptions[i].id == id)
      return i;
  return 0; /* image_decode() has checked that there is one */
}

/* The number under which the process has the description, or -1. */
static int
number_of(const struct process_image *process, uint32_t description)
{
  for (uint32_t f = 0; f < process->fd_count; f++)
    if (process->fds[f].description == description)
      return process->fds[f].number;
  return -1;
}

/* Items are registered under the number that the epoll has in the guest, by the process to which the target's is known. */
static void
build_epolls(struct builder *b)
{
  const struct image *image = b->plan->image;
  uint32_t own = 0;

  for (uint32_t i = 0; i < image->epoll_count; i++)
    own += image->epolls[i].process == b->process->process.relations.pid;
  struct pie_epoll *out = stem_table(b, own * sizeof *out, &b->args->epolls);
  for (uint32_t d = 0; d < image->description_count; d++)
    for (uint32_t i = image->first_epoll[d]; i < image->first_epoll[d + 1]; i++) {
      const struct image_epoll *item = &image->epolls[i];
      int number = number_of(b->process, image->descriptions[d].id);
      if (item->process == b->process->process.relations.pid && number >= 0)
        out[b->args->epoll_count++] =
            (struct pie_epoll){.epoll = number, .target = item->target, .events = item->events, .data = item->data};
    }
}

/* Shared memory, and advice that only a process that runs may have. */
void
stem_build_late(struct builder *b)
{
  const struct process_image *p = b->process;
  struct pie_late *late_table = stem_table(b, p->mapping_count * sizeof *late_table, &b->args->late_table);

  stem_table(b, p->mapping_count * STEM_LATE_KINDS * sizeof(struct pie_protect), &b->args->advice_table);
  for (uint32_t i = 0; i < p->mapping_count; i++) {
    const struct image_mapping *mapping = &p->mappings[i];
    for (size_t j = 0; j < STEM_LATE_KINDS; j++)
      if (mapping->flags & late_advice_of[j].flag)
        stem_add_protect(b->args->advice_table, &b->args->advice_count, mapping, late_advice_of[j].advice);
    if (!stem_is_late(mapping))
      continue;
    bool writes = mapping->protection & PROT_WRITE || mapping->flags & IMAGE_MAY_WRITE;
    struct pie_late *late = &late_table[b->args->late_count++];
    *late = (struct pie_late){.start = mapping->start,
                              .length = mapping->end - mapping->start,
                              .offset = mapping->offset,
                              .protection = mapping->protection,
                              .open_flags = writes ? O_RDWR | O_CLOEXEC : O_RDONLY | O_CLOEXEC};
    if (mapping->backing == IMAGE_SHARED) {
      late->description = description_index(b->plan->image, mapping->description - 1);
      continue;
    }
    char *path = stem_table(b, p->paths[i].length + 1, &late->path);
    memcpy(path, p->paths[i].data, p->paths[i].length);
    path[p->paths[i].length] = 0;
  }
}

/* Above every process's numbers: they are forked from each other. */
static int
first_free(const struct image *image)
{
  int highest = -1;

  for (uint32_t i = 0; i < image->process_count; i++) {
    const struct process_image *p = &image->processes[i];
    if (p->fd_count && p->fds[p->fd_count - 1].number > highest)
      highest = p->fds[p->fd_count - 1].number;
  }
  return highest + 1;
}

void
stem_build_descriptors(struct builder *b)
{
  const struct process_image *p = b->process;
  struct pie_fd *out = stem_table(b, p->fd_count * sizeof *out, &b->args->fds);

  for (uint32_t i = 0; i < p->fd_count; i++) {
    out[i] = (struct pie_fd){.number = p->fds[i].number,
                             .description = description_index(b->plan->image, p->fds[i].description),
                             .close_on_exec = p->fds[i].close_on_exec};
  }
  b->args->fd_count = p->fd_count;
  b->args->description_count = b->plan->image->description_count;
  b->args->first_free = first_free(b->plan->image);
  build_epolls(b);
}

void
stem_build_locks(struct builder *b)
{
  const struct process_image *p = b->process;
  struct pie_lock *out = stem_table(b, p->lock_count * sizeof *out, &b->args->locks);

  for (uint32_t i = 0; i < p->lock_count; i++)
    out[i] = (struct pie_lock){p->locks[i].number, p->locks[i].exclusive, p->locks[i].start, p->locks[i].length};
  b->args->lock_count = p->lock_count;
}

/* The leader of a session has its terminal, or nobody has. */
static const struct image_terminal *
session_terminal(const struct image *image, int32_t session)
{
  for (uint32_t i = 0; i < image->terminal_count; i++)
    if (image->terminals[i].session == session)
      return &image->terminals[i];
  return NULL;
}

void
stem_build_terminal(struct builder *b)
{
  const struct image *image = b->plan->image;
  const struct image_process *p = &b->process->process;
  const struct image_terminal *terminal = session_terminal(image, p->relations.session);

  if (!terminal)
    return;
  b->args->terminal = description_index(image, IMAGE_TERMINAL_IDS + terminal->index);
  b->args->foreground = terminal->foreground;
  if (p->relations.session == p->relations.pid)
    b->args->control_kind = PIE_TAKES;
  else if (p->terminal != terminal->index + 1)
    b->args->control_kind = PIE_GIVES_UP;
}

/* A snapshot may come from where more was allowed: nobody here can raise a hard limit above core's. */
static void
build_limits(struct builder *b)
{
  uint64_t (*limits)[2] = b->args->rlimits;
  struct rlimit own;

  memcpy(limits, b->process->process.rlimits, sizeof b->args->rlimits);
  for (int resource = 0; resource < PIE_RESOURCES; resource++) {
    if (getrlimit(resource, &own) < 0 || own.rlim_max >= limits[resource][1])
      continue;
    limits[resource][1] = own.rlim_max;
    if (limits[resource][0] > own.rlim_max)
      limits[resource][0] = own.rlim_max;
  }
}

void
stem_build_rest(struct builder *b)
{
  const struct image_process *p = &b->process->process;
  struct pie_args *args = b->args;
  char *cwd = stem_table(b, b->process->cwd.length + 1, &args->cwd);

  memcpy(stem_table(b, sizeof p->exe, &args->exe), p->exe, sizeof p->exe);
  memcpy(cwd, b->process->cwd.data, b->process->cwd.length);
  cwd[b->process->cwd.length] = 0;
  args->filter_length = (int32_t)(b->plan->filter.length / 8);
  build_limits(b);
  memcpy(args->itimers, p->itimers, sizeof args->itimers);
  memcpy(args->fd_path, PIE_FD_PATH, sizeof PIE_FD_PATH);
  args->umask = p->umask;
  args->fault = b->plan->fault;
  args->personality = p->personality;
  args->asked_features = p->asked_features;
  args->no_thp = p->no_thp;
  args->death_signal = p->death_signal;
  args->subreaper = p->subreaper;
  if (&__rseq_offset && __rseq_size) {
    args->own_rseq = (uint64_t)(uintptr_t)__builtin_thread_pointer() + (uint64_t)__rseq_offset;
    args->own_rseq_length = __rseq_size < 32 ? 32 : __rseq_size;
    args->own_rseq_signature = RSEQ_SIGNATURE_X86;
  }
}
