/* SPDX-License-Identifier: Apache-2.0
 * Signals: handlers at work, alternate stacks, masks, what is pending. */
#include "victim.h"

static volatile sig_atomic_t handled;
static volatile uintptr_t handler_stack;

static void
handle(int number, void (*handler)(int), int flags)
{
  struct sigaction action = {.sa_handler = handler, .sa_flags = flags};

  NEED(sigaction(number, &action, NULL) == 0);
}

static bool
is_blocked(int number)
{
  sigset_t mask;

  pthread_sigmask(SIG_BLOCK, NULL, &mask);
  return sigismember(&mask, number) == 1;
}

static void
wait_in_handler(int number)
{
  int local;

  handler_stack = (uintptr_t)&local;
  ready();
  await_go();
  CHECK(is_blocked(number), "signal %d is not blocked in its handler", number);
  handled = number;
}

VICTIM(handler, "in a handler, and back from it")
{
  handle(SIGUSR1, wait_in_handler, 0);
  volatile double kept = 1.5;
  raise(SIGUSR1);
  CHECK(handled == SIGUSR1 && kept == 1.5, "the handler did not return to where it was called");
  CHECK(!is_blocked(SIGUSR1), "the mask is not as before");
}

static void
raise_second(int number)
{
  (void)number;
  raise(SIGUSR2);
  handled += 1000;
}

VICTIM(nested_handlers, "in a handler that interrupted a handler")
{
  handle(SIGUSR1, raise_second, 0);
  handle(SIGUSR2, wait_in_handler, 0);
  raise(SIGUSR1);
  CHECK(handled == SIGUSR2 + 1000, "%d", handled);
}

/* ---- alternate stacks ----------------------------------------------------------------------------------------- */

#define STACK 65536

static bool
is_on(const stack_t *stack)
{
  uintptr_t base = (uintptr_t)stack->ss_sp;

  return handler_stack >= base && handler_stack < base + stack->ss_size;
}

static stack_t
use_stack(int flags)
{
  stack_t stack = {.ss_sp = anonymous(STACK), .ss_size = STACK, .ss_flags = flags};

  NEED(sigaltstack(&stack, NULL) == 0);
  return stack;
}

static void
check_stack(const stack_t *stack, int flags)
{
  stack_t now;

  sigaltstack(NULL, &now);
  CHECK(now.ss_sp == stack->ss_sp && now.ss_size == stack->ss_size && now.ss_flags == flags,
        "the alternate stack is %p, %zu bytes, flags %#x", now.ss_sp, now.ss_size, (unsigned)now.ss_flags);
}

static stack_t main_stack;

static void
wait_on_stack(int number)
{
  wait_in_handler(number);
  check_stack(&main_stack, SS_ONSTACK);
}

VICTIM(on_alternate_stack, "in a handler on its alternate stack")
{
  main_stack = use_stack(0);
  handle(SIGUSR1, wait_on_stack, SA_ONSTACK);
  raise(SIGUSR1);
  CHECK(is_on(&main_stack), "the handler was on another stack");
  check_stack(&main_stack, 0);
}

static void
note_stack(int number)
{
  int local;

  handler_stack = (uintptr_t)&local;
  handled = number;
}

VICTIM(alternate_stack, "an alternate stack that is not in use")
{
  main_stack = use_stack(0);
  handle(SIGUSR1, note_stack, SA_ONSTACK);
  ready();
  await_go();
  check_stack(&main_stack, 0);
  raise(SIGUSR1);
  CHECK(is_on(&main_stack), "the handler was on another stack");
}

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1U << 31)
#endif

VICTIM(autodisarm, "an alternate stack that disarms itself")
{
  main_stack = use_stack((int)SS_AUTODISARM);
  handle(SIGUSR1, note_stack, SA_ONSTACK);
  ready();
  await_go();
  check_stack(&main_stack, (int)SS_AUTODISARM);
  raise(SIGUSR1);
  CHECK(is_on(&main_stack), "the handler was on another stack");
}

static pthread_barrier_t barrier;

static void *
thread_with_stack(void *ignored)
{
  stack_t stack = use_stack(0);

  (void)ignored;
  pthread_barrier_wait(&barrier);
  pthread_barrier_wait(&barrier);
  check_stack(&stack, 0);
  return NULL;
}

VICTIM(alternate_stacks_of_threads, "every thread its own alternate stack")
{
  pthread_t threads[4];

  pthread_barrier_init(&barrier, NULL, 5);
  for (int i = 0; i < 4; i++)
    start(&threads[i], thread_with_stack, NULL);
  pthread_barrier_wait(&barrier);
  ready();
  await_go();
  pthread_barrier_wait(&barrier);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
}

/* ---- masks and dispositions ----------------------------------------------------------------------------------- */

static void
action_with_info(int number, siginfo_t *info, void *context)
{
  (void)context;
  handled = number + info->si_value.sival_int;
}

VICTIM(dispositions, "handlers, flags, masks, and what is ignored")
{
  struct sigaction action = {.sa_sigaction = action_with_info, .sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER},
                   got;

  sigaddset(&action.sa_mask, SIGHUP);
  sigaddset(&action.sa_mask, SIGRTMAX);
  NEED(sigaction(SIGRTMIN + 5, &action, NULL) == 0);
  handle(SIGPIPE, SIG_IGN, 0);
  handle(SIGINT, SIG_IGN, 0);
  ready();
  await_go();
  sigaction(SIGRTMIN + 5, NULL, &got);
  CHECK(got.sa_sigaction == action_with_info, "another handler");
  CHECK((got.sa_flags & (SA_SIGINFO | SA_RESTART | SA_NODEFER | SA_ONSTACK)) ==
            (SA_SIGINFO | SA_RESTART | SA_NODEFER),
        "flags %#x", (unsigned)got.sa_flags);
  CHECK(sigismember(&got.sa_mask, SIGHUP) == 1 && sigismember(&got.sa_mask, SIGRTMAX) == 1 &&
            sigismember(&got.sa_mask, SIGTERM) == 0,
        "another mask");
  sigaction(SIGPIPE, NULL, &got);
  CHECK(got.sa_handler == SIG_IGN, "SIGPIPE is not ignored");
  sigaction(SIGTERM, NULL, &got);
  CHECK(got.sa_handler == SIG_DFL, "SIGTERM has a handler");
  raise(SIGINT);
  sigqueue(getpid(), SIGRTMIN + 5, (union sigval){.sival_int = 100});
  CHECK(handled == SIGRTMIN + 5 + 100, "the handler got %d", handled);
}

static void *
thread_with_mask(void *argument)
{
  int number = (int)(intptr_t)argument;
  sigset_t mask;

  sigemptyset(&mask);
  sigaddset(&mask, number);
  pthread_sigmask(SIG_SETMASK, &mask, NULL);
  pthread_barrier_wait(&barrier);
  pthread_barrier_wait(&barrier);
  CHECK(is_blocked(number) && !is_blocked(number + 1), "the mask of the thread for %d", number);
  return NULL;
}

VICTIM(masks, "every thread its own mask")
{
  pthread_t threads[8];

  pthread_barrier_init(&barrier, NULL, 9);
  for (intptr_t i = 0; i < 8; i++)
    start(&threads[i], thread_with_mask, (void *)(SIGRTMIN + 2 * i));
  pthread_barrier_wait(&barrier);
  ready();
  await_go();
  CHECK(!is_blocked(SIGRTMIN), "the mask of the first thread");
  pthread_barrier_wait(&barrier);
  for (int i = 0; i < 8; i++)
    pthread_join(threads[i], NULL);
}

/* ---- pending -------------------------------------------------------------------------------------------------- */

static void
block_all(void)
{
  sigset_t all;

  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, NULL);
}

static void
take(int number, int code, int value)
{
  sigset_t set;
  siginfo_t info = {0};
  const struct timespec at_once = {0, 0};

  sigemptyset(&set);
  sigaddset(&set, number);
  int got = sigtimedwait(&set, &info, &at_once);
  CHECK(got == number, "signal %d is not pending", number);
  CHECK(info.si_code == code, "signal %d has code %d", number, info.si_code);
  CHECK(info.si_pid == getpid(), "signal %d comes from %d", number, info.si_pid);
  CHECK(code != SI_QUEUE || info.si_value.sival_int == value, "signal %d has value %d, not %d", number,
        info.si_value.sival_int, value);
}

VICTIM(pending, "signals of the process that wait, standard and queued, with their values and order")
{
  block_all();
  kill(getpid(), SIGUSR1);
  kill(getpid(), SIGCHLD); /* ignored by default, and yet pending while it is blocked */
  for (int i = 1; i <= 5; i++)
    NEED(sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = i * 11}) == 0);
  NEED(sigqueue(getpid(), SIGRTMIN + 2, (union sigval){.sival_int = 99}) == 0);
  ready();
  await_go();
  take(SIGUSR1, SI_USER, 0);
  take(SIGCHLD, SI_USER, 0);
  for (int i = 1; i <= 5; i++)
    take(SIGRTMIN + 1, SI_QUEUE, i * 11);
  take(SIGRTMIN + 2, SI_QUEUE, 99);
  sigset_t left;
  sigpending(&left);
  for (int number = 1; number < 64; number++)
    CHECK(!sigismember(&left, number), "signal %d is pending too", number);
}

static void *
thread_with_pending(void *argument)
{
  int value = (int)(intptr_t)argument;

  pthread_barrier_wait(&barrier);
  pthread_barrier_wait(&barrier);
  take(SIGRTMIN + 4, SI_QUEUE, value);
  take(SIGRTMIN + 4, SI_QUEUE, value + 1);
  take(SIGUSR2, SI_USER, 0); /* libc says so for tgkill(2) */
  return NULL;
}

VICTIM(pending_of_threads, "signals that wait for one thread")
{
  pthread_t threads[4];

  block_all();
  pthread_barrier_init(&barrier, NULL, 5);
  for (intptr_t i = 0; i < 4; i++)
    start(&threads[i], thread_with_pending, (void *)(i * 10));
  pthread_barrier_wait(&barrier);
  for (int i = 0; i < 4; i++) {
    NEED(pthread_sigqueue(threads[i], SIGRTMIN + 4, (union sigval){.sival_int = i * 10}) == 0);
    NEED(pthread_sigqueue(threads[i], SIGRTMIN + 4, (union sigval){.sival_int = i * 10 + 1}) == 0);
    NEED(pthread_kill(threads[i], SIGUSR2) == 0);
  }
  ready();
  await_go();
  pthread_barrier_wait(&barrier);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
}

VICTIM(pending_handler, "a pending signal whose handler runs when it is let in")
{
  sigset_t none;

  handle(SIGUSR1, note_stack, 0);
  block_all();
  raise(SIGUSR1);
  ready();
  await_go();
  CHECK(handled == 0, "the handler ran too early");
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, NULL);
  CHECK(handled == SIGUSR1, "the handler did not run");
}
