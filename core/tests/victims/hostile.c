/* SPDX-License-Identifier: Apache-2.0
 * Guests that do their worst to the engine: before a fork of them, after one, and while it is made. Whatever becomes of
 * them, core and its other sandboxes go on, and nobody here holds anything that a guest must not. Each answers a line
 * with what it holds. */
#include "victim.h"

#include <asm/prctl.h>
#include <poll.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static void
put_field(const char *status, const char *name)
{
  const char *at = strstr(status, name);

  while (at && *at && *at != '\n' && *at != ':')
    at++;
  at += at && *at == ':' ? 1 + strspn(at + 1, "\t ") : 0;
  say("%s %.*s", name, at ? (int)strcspn(at, "\n") : 0, at ? at : "");
}

/* Descriptors beyond the three streams; capabilities; filters. One line each, then "END". */
static void
tell(void)
{
  char status[8192];
  int extra = 0, fd = open("/proc/self/status", O_RDONLY);
  ssize_t length = read(fd, status, sizeof status - 1);

  close(fd);
  status[length > 0 ? length : 0] = 0;
  put_field(status, "CapEff");
  put_field(status, "CapPrm");
  put_field(status, "CapBnd");
  put_field(status, "NoNewPrivs");
  put_field(status, "Seccomp");
  for (fd = 3; fd < 4096; fd++)
    extra += fcntl(fd, F_GETFD) >= 0;
  say("descriptors %d", extra);
  say("END");
}

/* For guests that do not rest: they answer between two rounds. */
static void
tell_if_asked(void)
{
  struct pollfd word = {.fd = 0, .events = POLLIN};

  if (poll(&word, 1, 0) != 1)
    return;
  await_go();
  tell();
}

static void
serve(void)
{
  say("DONE");
  for (;;) {
    await_go();
    tell();
  }
}

struct area {
  uintptr_t start, end;
  char mode[8], name[64];
};

static int
areas(struct area *out, int most)
{
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[512];
  int count = 0;

  while (count < most && fgets(line, sizeof line, maps)) {
    struct area *area = &out[count++];
    area->name[0] = 0;
    sscanf(line, "%lx-%lx %7s %*s %*s %*s %63s", &area->start, &area->end, area->mode, area->name);
  }
  fclose(maps);
  return count;
}

static bool
holds(const struct area *area, const void *address)
{
  return (uintptr_t)address >= area->start && (uintptr_t)address < area->end;
}

/* Its stack, its program, and where the list of areas itself is. */
static bool
is_own(const struct area *area)
{
  return holds(area, &area) || holds(area, area) || strstr(area->name, "hostile") || strstr(area->name, "[heap]") ||
         strstr(area->name, "[v");
}

static volatile sig_atomic_t faults;

static void
count_fault(int number)
{
  (void)number;
  faults++;
}

/* What the restorer left in it, above all: its pages are shared with the parked twin. */
VICTIM(scribbles, "writes over all memory that is not its own program, made writable and executable")
{
  static struct area all[512];

  ready();
  await_go();
  int count = areas(all, 512);
  for (int i = 0; i < count; i++) {
    if (is_own(&all[i]))
      continue;
    if (mprotect((void *)all[i].start, all[i].end - all[i].start, PROT_READ | PROT_WRITE | PROT_EXEC) == 0)
      memset((void *)all[i].start, 0xcc, all[i].end - all[i].start);
  }
  serve();
}

VICTIM(unmaps, "unmaps all memory that is not its own program, its vdso too")
{
  static struct area all[512];

  ready();
  await_go();
  int count = areas(all, 512);
  for (int i = 0; i < count; i++)
    if (!is_own(&all[i]) || strstr(all[i].name, "[vvar") || strcmp(all[i].name, "[vdso]") == 0)
      munmap((void *)all[i].start, all[i].end - all[i].start);
  serve();
}

VICTIM(fills_holes, "maps memory wherever the restorer of its children could go")
{
  ready();
  await_go();
  for (uintptr_t at = (uintptr_t)1 << 44; at < (uintptr_t)0x7e << 40; at += (uintptr_t)1 << 36)
    mmap((void *)at, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  serve();
}

static uint8_t *
vdso(size_t *length)
{
  static struct area all[512];
  int count = areas(all, 512);

  for (int i = 0; i < count; i++)
    if (strcmp(all[i].name, "[vdso]") == 0) {
      *length = all[i].end - all[i].start;
      return (uint8_t *)all[i].start;
    }
  return NULL;
}

VICTIM(poisons_vdso, "its vdso holds traps where it held system calls")
{
  size_t length;
  uint8_t *code = vdso(&length);

  NEED(code);
  ready();
  await_go();
  if (mprotect(code, length, PROT_READ | PROT_WRITE | PROT_EXEC) == 0)
    memset(code + 0x200, 0xcc, length - 0x200);
  serve();
}

VICTIM(moves_vdso, "its vdso is elsewhere, and its place is its own page of other calls")
{
  size_t length;
  uint8_t *code = vdso(&length);

  NEED(code);
  ready();
  await_go();
  void *to = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mremap(code, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to);
  uint8_t *fake =
      mmap(code, length, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (fake == code)
    memset(fake, 0xf4, length);
  serve();
}

VICTIM(remaps_text, "its program's text is anonymous memory that can be written")
{
  static struct area all[512];

  ready();
  await_go();
  int count = areas(all, 512);
  for (int i = 0; i < count; i++) {
    if (!holds(&all[i], (void *)(uintptr_t)serve))
      continue;
    size_t length = all[i].end - all[i].start;
    void *copy = mmap(NULL, length, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(copy, (void *)all[i].start, length);
    mremap(copy, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)all[i].start);
  }
  serve();
}

VICTIM(no_stack, "its stack pointer points nowhere while it waits")
{
  static char byte;
  uint64_t saved;

  ready();
  await_go();
  say("DONE");
  for (;;) {
    long got;
    __asm__ volatile(
        "mov %%rsp, %[saved]\n\tmov $0x1000, %%rsp\n\txor %%eax, %%eax\n\tsyscall\n\tmov %[saved], %%rsp"
        : "=&a"(got), [saved] "=&r"(saved)
        : "D"(0L), "S"(&byte), "d"(1L)
        : "rcx", "r11", "memory");
    if (got == 0)
      _exit(0);
    if (byte == '\n')
      tell();
  }
}

VICTIM(segments, "its segment bases point to memory of the kernel's side, as far as it may")
{
  static char byte;
  long got;

  ready();
  await_go();
  say("DONE");
  uint64_t own;
  syscall(SYS_arch_prctl, ARCH_GET_FS, &own);
  for (;;) {
    syscall(SYS_arch_prctl, ARCH_SET_GS, 0x7ffffffff000ul);
    /* Not one instruction of libc between the two: its thread is gone. */
    __asm__ volatile("syscall"
                     : "=a"(got)
                     : "0"(SYS_arch_prctl), "D"(ARCH_SET_FS), "S"(0x10ul)
                     : "rcx", "r11", "memory");
    __asm__ volatile("syscall" : "=a"(got) : "0"(0L), "D"(0L), "S"(&byte), "d"(1L) : "rcx", "r11", "memory");
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(SYS_arch_prctl), "D"(ARCH_SET_FS), "S"(own)
                     : "rcx", "r11", "memory");
    if (got == 0)
      _exit(0);
    if (byte == '\n')
      tell();
  }
}

VICTIM(signals, "handlers for what a tracer uses, and every signal blocked")
{
  const int numbers[] = {SIGTRAP, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGSYS, SIGCHLD, SIGCONT, SIGALRM, SIGURG};
  sigset_t set;

  ready();
  await_go();
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
    signal(numbers[i], count_fault);
  sigfillset(&set);
  sigprocmask(SIG_SETMASK, &set, NULL);
  raise(SIGCONT);
  kill(getpid(), SIGTRAP);
  serve();
}

VICTIM(descriptors, "writes garbage to every descriptor it can name, and closes them")
{
  char garbage[256];

  ready();
  await_go();
  memset(garbage, 0xa5, sizeof garbage);
  for (int fd = 3; fd < 70000; fd++)
    if (write(fd, garbage, sizeof garbage) >= 0 || errno != EBADF)
      say("gained descriptor %d", fd);
  syscall(SYS_close_range, 3, ~0u, 0);
  serve();
}

VICTIM(attacks_init, "traces, signals and reads everybody it can name")
{
  char path[64];

  ready();
  await_go();
  for (int pid = 1; pid < 64; pid++) {
    if (pid == getpid())
      continue;
    for (int number = 1; number < 32; number++)
      if (kill(pid, number) == 0 && pid == 1)
        continue;
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    if (open(path, O_RDWR) >= 0)
      say("gained the memory of %d", pid);
  }
  serve();
}

/* ---- during the fork: these do not stop --------------------------------------------------------------------------- */

VICTIM(forks, "forks all the time")
{
  ready();
  for (;;) {
    pid_t child = fork();
    if (child == 0)
      _exit(0);
    waitpid(child, NULL, 0);
    tell_if_asked();
  }
}

VICTIM(vforks, "calls vfork all the time")
{
  ready();
  for (;;) {
    pid_t child = vfork();
    if (child == 0)
      _exit(0);
    waitpid(child, NULL, 0);
    tell_if_asked();
  }
}

VICTIM(execs, "executes itself all the time")
{
  if (!getenv("AGAIN"))
    ready();
  setenv("AGAIN", "1", 1);
  tell_if_asked();
  execl("/proc/self/exe", "hostile", "execs", (char *)NULL);
}

static void *
execute_self(void *ignored)
{
  execl("/proc/self/exe", "hostile", "threads_exec", (char *)NULL);
  return ignored;
}

static void *
stay(void *ignored)
{
  for (;;)
    pause();
  return ignored;
}

VICTIM(threads_exec, "executes itself all the time, each time in another of its nine threads")
{
  pthread_t thread;

  if (!getenv("AGAIN"))
    ready();
  setenv("AGAIN", "1", 1);
  tell_if_asked();
  for (int i = 0; i < 8; i++)
    start(&thread, stay, NULL);
  start(&thread, execute_self, NULL);
  stay(NULL);
}

static void *
map_and_unmap(void *ignored)
{
  (void)ignored;
  for (;;) {
    void *at = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at != MAP_FAILED) {
      memset(at, 1, 4096);
      mprotect(at, 4096, PROT_NONE);
      munmap(at, 1 << 20);
    }
  }
  return NULL;
}

VICTIM(maps, "four threads map, protect and unmap all the time")
{
  pthread_t thread;

  for (int i = 0; i < 4; i++)
    start(&thread, map_and_unmap, NULL);
  ready();
  for (;;) {
    await_go();
    tell();
  }
}

static void *
kill_self(void *pid)
{
  for (;;)
    kill((pid_t)(intptr_t)pid, SIGUSR1);
  return NULL;
}

VICTIM(signals_itself, "two threads send it signals all the time")
{
  pthread_t thread;

  signal(SIGUSR1, count_fault);
  for (int i = 0; i < 2; i++)
    start(&thread, kill_self, (void *)(intptr_t)getpid());
  ready();
  for (;;) {
    await_go();
    tell();
  }
}

VICTIM(stops_itself, "stops itself, and another process lets it go on, all the time")
{
  pid_t self = getpid(), child = fork();

  if (child == 0)
    for (;;)
      kill(self, SIGCONT);
  ready();
  for (;;) {
    raise(SIGSTOP);
    tell_if_asked();
  }
}
