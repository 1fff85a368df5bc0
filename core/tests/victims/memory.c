/* SPDX-License-Identifier: Apache-2.0
 * Memory: every kind of mapping, what is in it, and that it goes on working. */
#include "victim.h"

#include <setjmp.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define PAGE 4096u
#define MIB ((size_t)1 << 20)

static sigjmp_buf back;

static void
on_fault(int number)
{
  siglongjmp(back, number);
}

static bool
faults(volatile char *at, bool writing)
{
  struct sigaction action = {.sa_handler = on_fault}, before_segv, before_bus;
  volatile bool faulted = true;

  sigaction(SIGSEGV, &action, &before_segv);
  sigaction(SIGBUS, &action, &before_bus);
  if (sigsetjmp(back, 1) == 0) {
    if (writing)
      *at = *at;
    else
      (void)*at;
    faulted = false;
  }
  sigaction(SIGSEGV, &before_segv, NULL);
  sigaction(SIGBUS, &before_bus, NULL);
  return faulted;
}

static uint64_t
pattern(size_t i)
{
  return (i + 1) * 0x9e3779b97f4a7c15u;
}

static void
fill(void *at, size_t length)
{
  for (size_t i = 0; i < length / 8; i++)
    ((uint64_t *)at)[i] = pattern(i);
}

static void
check(const void *at, size_t length, const char *what)
{
  for (size_t i = 0; i < length / 8; i++)
    CHECK(((const uint64_t *)at)[i] == pattern(i), "%s differs at byte %zu", what, i * 8);
}

static void
check_zero(const void *at, size_t length, const char *what)
{
  for (size_t i = 0; i < length; i++)
    CHECK(((const uint8_t *)at)[i] == 0, "%s is not zero at byte %zu", what, i);
}

/* VmFlags of the mapping that holds `at`, as smaps tells them. */
static void
flags_of(const void *at, char flags[256])
{
  FILE *smaps = fopen("/proc/self/smaps", "r");
  char line[1024];
  uintptr_t start, end;
  bool mine = false;

  NEED(smaps);
  flags[0] = 0;
  while (fgets(line, sizeof line, smaps)) {
    if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
      mine = (uintptr_t)at >= start && (uintptr_t)at < end;
    else if (mine && strncmp(line, "VmFlags:", 8) == 0)
      snprintf(flags, 256, "%.250s", line + 9);
  }
  fclose(smaps);
}

static bool
has_flag(const void *at, const char *flag)
{
  char flags[256];

  flags_of(at, flags);
  return strstr(flags, flag) != NULL;
}

/* ---- heap and stack ------------------------------------------------------------------------------------------- */

VICTIM(heap, "a heap that was grown, and grows on")
{
  char *start = sbrk(3 * MIB);

  NEED(start != (void *)-1);
  fill(start, 3 * MIB);
  ready();
  await_go();
  check(start, 3 * MIB, "the heap");
  char *more = sbrk(2 * MIB);
  CHECK(more == start + 3 * MIB, "the heap goes on at %p, not %p", (void *)more, (void *)(start + 3 * MIB));
  fill(more, 2 * MIB);
  check(start, 3 * MIB, "the heap after it grew");
  CHECK(sbrk(-(intptr_t)(2 * MIB)) == more + 2 * MIB, "the heap does not shrink");
}

static __attribute__((noinline)) int
deep(int levels)
{
  volatile char room[4000];

  room[0] = (char)levels;
  room[sizeof room - 1] = 1;
  return levels ? deep(levels - 1) + room[sizeof room - 1] : 0;
}

VICTIM(stack, "the first stack, which the kernel grows when it is needed")
{
  volatile uint64_t kept[128];

  for (int i = 0; i < 128; i++)
    kept[i] = pattern((size_t)i);
  ready();
  await_go();
  CHECK(deep(1500) == 1500, "six megabytes of stack");
  for (int i = 0; i < 128; i++)
    CHECK(kept[i] == pattern((size_t)i), "a local variable");
}

VICTIM(grows_down, "a mapping of its own that grows down")
{
  char *area = mmap(NULL, 64 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

  NEED(area != MAP_FAILED && munmap(area, 64 * MIB) == 0);
  char *top = area + 64 * MIB - PAGE;
  NEED(mmap(top, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED, -1, 0) ==
       top);
  fill(top, PAGE);
  ready();
  await_go();
  check(top, PAGE, "the first page");
  for (char *at = top - 64; at > top - 2 * MIB; at -= PAGE)
    CHECK(!faults(at, true), "it does not grow to %zd bytes", top - at);
}

/* ---- protection ----------------------------------------------------------------------------------------------- */

VICTIM(protections, "pages of each protection, and changes of it afterwards")
{
  char *at = anonymous(5 * PAGE);

  fill(at, 5 * PAGE);
  NEED(mprotect(at + 1 * PAGE, PAGE, PROT_READ) == 0);
  NEED(mprotect(at + 2 * PAGE, PAGE, PROT_NONE) == 0);
  NEED(mprotect(at + 3 * PAGE, PAGE, PROT_READ | PROT_EXEC) == 0);
  ready();
  await_go();
  CHECK(!faults(at, true), "the writable page");
  CHECK(!faults(at + PAGE, false) && faults(at + PAGE, true), "the page for reading");
  CHECK(faults(at + 2 * PAGE, false), "the page for nothing can be read");
  CHECK(!faults(at + 3 * PAGE, false) && faults(at + 3 * PAGE, true), "the page for executing");
  CHECK(mprotect(at, 5 * PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect: %s", strerror(errno));
  check(at, 5 * PAGE, "what the protected pages held");
}

VICTIM(guard, "a guard below an area, and nothing in the guard")
{
  char *at = mmap(NULL, 16 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

  NEED(at != MAP_FAILED && mprotect(at + 4 * PAGE, 12 * PAGE, PROT_READ | PROT_WRITE) == 0);
  fill(at + 4 * PAGE, 12 * PAGE);
  ready();
  await_go();
  CHECK(faults(at + 3 * PAGE, false) && faults(at, true), "the guard");
  check(at + 4 * PAGE, 12 * PAGE, "the area");
}

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102 /* Linux 6.13 */
#endif

VICTIM(guard_pages, "guard pages inside a mapping")
{
  char *at = anonymous(8 * PAGE);

  fill(at, 8 * PAGE);
  if (madvise(at + 2 * PAGE, 2 * PAGE, MADV_GUARD_INSTALL) < 0)
    MISSING("MADV_GUARD_INSTALL");
  NEED(madvise(at + 7 * PAGE, PAGE, MADV_GUARD_INSTALL) == 0);
  ready();
  await_go();
  check(at, 2 * PAGE, "the pages before");
  CHECK(faults(at + 2 * PAGE, false) && faults(at + 3 * PAGE, true) && faults(at + 7 * PAGE, false), "the guard");
  for (int i = 4; i < 7; i++)
    for (size_t j = 0; j < PAGE / 8; j++)
      CHECK(((uint64_t *)(void *)at)[(size_t)i * PAGE / 8 + j] == pattern((size_t)i * PAGE / 8 + j), "page %d", i);
}

/* mov $N, %eax; ret */
static void
write_code(uint8_t *at, uint8_t number)
{
  const uint8_t code[6] = {0xb8, number, 0, 0, 0, 0xc3};

  memcpy(at, code, sizeof code);
}

static int
call(void *code)
{
  int (*function)(void);

  memcpy(&function, &code, sizeof function);
  return function();
}

VICTIM(jit, "code that was written by the program: writable or executable, and both")
{
  uint8_t *strict = anonymous(2 * PAGE);
  uint8_t *loose = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

  NEED(loose != MAP_FAILED);
  write_code(strict, 41);
  write_code(loose, 42);
  NEED(mprotect(strict, 2 * PAGE, PROT_READ | PROT_EXEC) == 0);
  NEED(call(strict) == 41 && call(loose) == 42);
  ready();
  await_go();
  CHECK(call(strict) == 41 && call(loose) == 42, "the code");
  CHECK(faults((volatile char *)strict, true), "the executable page can be written");
  CHECK(mprotect(strict, 2 * PAGE, PROT_READ | PROT_WRITE) == 0, "mprotect: %s", strerror(errno));
  write_code(strict, 51);
  write_code(loose, 52);
  CHECK(mprotect(strict, 2 * PAGE, PROT_READ | PROT_EXEC) == 0, "mprotect: %s", strerror(errno));
  CHECK(call(strict) == 51 && call(loose) == 52, "the new code");
}

/* ---- growing and moving --------------------------------------------------------------------------------------- */

VICTIM(mremap, "areas that are moved and grown, before and after")
{
  char *first = anonymous(MIB), *second = anonymous(MIB);

  fill(first, MIB);
  char *moved = mremap(first, MIB, 2 * MIB, MREMAP_MAYMOVE);
  NEED(moved != MAP_FAILED);
  fill(second, MIB);
  ready();
  await_go();
  check(moved, MIB, "the area that was moved before");
  check_zero(moved + MIB, MIB, "what it was grown by");
  char *later = mremap(second, MIB, 64 * MIB, MREMAP_MAYMOVE);
  CHECK(later != MAP_FAILED, "mremap: %s", strerror(errno));
  check(later, MIB, "the area that is moved now");
  check_zero(later + MIB, 63 * MIB, "what it is grown by");
}

VICTIM(dont_need, "memory given back reads as zero")
{
  char *at = anonymous(64 * PAGE);

  fill(at, 64 * PAGE);
  NEED(madvise(at + 8 * PAGE, 8 * PAGE, MADV_DONTNEED) == 0);
  ready();
  await_go();
  check_zero(at + 8 * PAGE, 8 * PAGE, "what was given back before");
  CHECK(madvise(at + 32 * PAGE, 32 * PAGE, MADV_DONTNEED) == 0, "madvise: %s", strerror(errno));
  check_zero(at + 32 * PAGE, 32 * PAGE, "what is given back now");
  check(at, 8 * PAGE, "the rest");
}

VICTIM(untouched, "memory that was only read, or never touched")
{
  char *at = anonymous(4 * MIB);

  for (size_t i = 0; i < MIB; i += PAGE)
    NEED(((volatile char *)at)[i] == 0);
  ready();
  await_go();
  check_zero(at, 4 * MIB, "untouched memory");
  fill(at, 4 * MIB);
  check(at, 4 * MIB, "what is written now");
}

VICTIM(sparse, "64 GiB of address space with few pages in it")
{
  const size_t whole = (size_t)64 << 30;
  char *at = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

  NEED(at != MAP_FAILED);
  for (size_t i = 0; i < 64; i++)
    fill(at + (i << 30) + i * PAGE, PAGE);
  ready();
  await_go();
  for (size_t i = 0; i < 64; i++)
    check(at + (i << 30) + i * PAGE, PAGE, "a page");
  check_zero(at + 2 * MIB, MIB, "a hole");
  check_zero(at + whole - MIB, MIB, "the end");
}

VICTIM(large, "500 MB of memory")
{
  const size_t whole = 500 * MIB;
  char *at = anonymous(whole);

  fill(at, whole);
  ready();
  await_go();
  check(at, whole, "the memory");
}

VICTIM(many_mappings, "20,000 mappings")
{
  const size_t count = 20000;
  char *at = anonymous(count * PAGE);

  for (size_t i = 0; i < count; i += 2) {
    fill(at + i * PAGE, PAGE);
    NEED(mprotect(at + i * PAGE, PAGE, PROT_READ) == 0);
  }
  ready();
  await_go();
  for (size_t i = 0; i < count; i += 2)
    check(at + i * PAGE, PAGE, "a mapping");
  check_zero(at + PAGE, PAGE, "a mapping that was not written");
}

/* ---- files ---------------------------------------------------------------------------------------------------- */

static int
make_file(const char *name, size_t length)
{
  int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
  static char content[64 * PAGE];

  NEED(fd >= 0 && length <= sizeof content);
  fill(content, length);
  NEED(write(fd, content, length) == (ssize_t)length);
  return fd;
}

static char *
map_file(int fd, size_t length, int protection, int kind)
{
  char *at = mmap(NULL, length, protection, kind, fd, 0);

  NEED(at != MAP_FAILED);
  return at;
}

VICTIM(private_file, "a file mapped privately, with pages of its own in it")
{
  int fd = make_file("mapped", 16 * PAGE);
  char *at = map_file(fd, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);

  close(fd);
  memset(at + 3 * PAGE, 'x', PAGE);
  ready();
  await_go();
  check(at, 3 * PAGE, "what comes from the file");
  for (size_t i = 0; i < PAGE; i++)
    CHECK(at[3 * PAGE + i] == 'x', "its own page");
  at[5 * PAGE] = 'y';
  char byte;
  fd = open("mapped", O_RDONLY);
  CHECK(fd >= 0 && pread(fd, &byte, 1, 5 * PAGE) == 1 && byte != 'y', "the file was written");
}

VICTIM(own_program, "its own program, mapped from a bind, with pages of its own in it")
{
  int fd = open("/proc/self/exe", O_RDONLY);
  char first[PAGE], target[256] = "", now[256] = "";

  NEED(fd >= 0 && pread(fd, first, PAGE, 0) == PAGE && readlink("/proc/self/exe", target, 255) > 0);
  char *at = map_file(fd, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
  close(fd);
  at[2 * PAGE] ^= 1;
  char changed = at[2 * PAGE];
  ready();
  await_go();
  CHECK(memcmp(at, first, PAGE) == 0 && at[2 * PAGE] == changed, "the mapping of the program");
  CHECK(readlink("/proc/self/exe", now, 255) > 0 && strcmp(now, target) == 0, "the program is %s", now);
}

VICTIM(deleted_file, "a file mapped privately and deleted")
{
  int fd = make_file("deleted", 16 * PAGE);
  char *at = map_file(fd, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
  char *closed = map_file(fd, 16 * PAGE, PROT_NONE, MAP_PRIVATE);

  close(fd);
  at[9 * PAGE] = 'z';
  NEED(unlink("deleted") == 0);
  ready();
  await_go();
  CHECK(at[9 * PAGE] == 'z', "its own page");
  check(at, 9 * PAGE, "what came from the file");
  CHECK(mprotect(closed, 16 * PAGE, PROT_READ) == 0, "mprotect: %s", strerror(errno));
  check(closed, 16 * PAGE, "what could not be read before");
}

VICTIM(deleted_short_file, "a file mapped beyond its end and deleted")
{
  int fd = make_file("short", PAGE + 512);
  char *at = map_file(fd, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);

  close(fd);
  NEED(unlink("short") == 0);
  ready();
  await_go();
  check(at, PAGE + 512, "the file");
}

VICTIM(replaced_file, "a file mapped privately, in whose place another was put")
{
  int fd = make_file("replaced", 4 * PAGE);
  char *at = map_file(fd, 4 * PAGE, PROT_READ, MAP_PRIVATE);

  close(fd);
  fd = open("other", O_RDWR | O_CREAT, 0644);
  NEED(fd >= 0 && ftruncate(fd, 4 * PAGE) == 0 && rename("other", "replaced") == 0);
  ready();
  await_go();
  check(at, 4 * PAGE, "the first file");
}

VICTIM(odd_names, "mapped files with odd names")
{
  static const char *const names[] = {"with blank", "with\nnewline", "a (deleted)", "b\\012c", "\xc3\xa4"};
  char *at[5];

  for (int i = 0; i < 5; i++) {
    int fd = make_file(names[i], 2 * PAGE);
    at[i] = map_file(fd, 2 * PAGE, PROT_READ, MAP_PRIVATE);
    close(fd);
  }
  ready();
  await_go();
  for (int i = 0; i < 5; i++)
    check(at[i], 2 * PAGE, names[i]);
}

VICTIM(shared_read_only_file, "a file mapped shared for reading, which shows what is written to it later")
{
  int fd = make_file("shared", 4 * PAGE);
  int reading = open("shared", O_RDONLY);
  char *at = map_file(reading, 4 * PAGE, PROT_READ, MAP_SHARED);

  close(reading);
  ready();
  await_go();
  check(at, 4 * PAGE, "the file");
  CHECK(pwrite(fd, "new", 3, PAGE) == 3, "write: %s", strerror(errno));
  CHECK(memcmp(at + PAGE, "new", 3) == 0, "the mapping does not show what was written");
}

VICTIM(shared_file, "a file mapped shared for writing")
{
  int fd = make_file("shared", 4 * PAGE);
  char *at = map_file(fd, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
  char read_back[3];

  memcpy(at + 2 * PAGE, "old", 3);
  ready();
  await_go();
  CHECK(memcmp(at + 2 * PAGE, "old", 3) == 0, "the mapping");
  memcpy(at + 3 * PAGE, "new", 3);
  CHECK(pread(fd, read_back, 3, 3 * PAGE) == 3 && memcmp(read_back, "new", 3) == 0,
        "the file has not what was written");
  CHECK(pwrite(fd, "fd!", 3, 0) == 3 && memcmp(at, "fd!", 3) == 0, "the mapping does not show what was written");
}

VICTIM(shm_file, "files of /dev/shm, mapped shared and privately")
{
  int fd = make_file("/dev/shm/one", 4 * PAGE);
  char *shared = map_file(fd, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
  char *own = map_file(fd, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);

  close(fd);
  memset(own + PAGE, 'o', PAGE);
  ready();
  await_go();
  check(shared, 4 * PAGE, "the shared mapping");
  check(own, PAGE, "the private mapping");
  CHECK(own[PAGE] == 'o', "its own page");
  memcpy(shared, "new", 3);
  char text[3];
  fd = open("/dev/shm/one", O_RDONLY);
  CHECK(fd >= 0 && read(fd, text, 3) == 3 && memcmp(text, "new", 3) == 0, "the file has not what was written");
}

/* The number behind a name of /proc/self/status, in bytes. */
static size_t
status_bytes(const char *name)
{
  char text[4096];
  int fd = open("/proc/self/status", O_RDONLY);
  ssize_t length = read(fd, text, sizeof text - 1);

  NEED(length > 0);
  close(fd);
  text[length] = 0;
  const char *at = strstr(text, name);
  NEED(at);
  return strtoul(at + strlen(name), NULL, 10) * 1024;
}

VICTIM(used_up_limits, "shared memory under limits of memory that are used up")
{
  int fd = make_file("limited", 4 * PAGE);
  char *file = map_file(fd, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED), exe[64] = "", exe_after[64] = "";
  char *anonymous_shared = mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  struct rlimit now;

  NEED(anonymous_shared != MAP_FAILED && readlink("/proc/self/exe", exe, sizeof exe) > 0);
  fill(anonymous_shared, 4 * PAGE);
  const struct rlimit space = {status_bytes("\nVmSize:"), RLIM_INFINITY}, data = {PAGE, RLIM_INFINITY};
  NEED(setrlimit(RLIMIT_AS, &space) == 0 && setrlimit(RLIMIT_DATA, &data) == 0);
  ready();
  await_go();
  check(file, 4 * PAGE, "the file");
  check(anonymous_shared, 4 * PAGE, "the shared memory");
  CHECK(getrlimit(RLIMIT_AS, &now) == 0 && now.rlim_cur == space.rlim_cur, "address space: %lu", now.rlim_cur);
  CHECK(getrlimit(RLIMIT_DATA, &now) == 0 && now.rlim_cur == data.rlim_cur, "data: %lu", now.rlim_cur);
  CHECK(mmap(NULL, 16 * MIB, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED, "it may map more");
  CHECK(readlink("/proc/self/exe", exe_after, sizeof exe_after) > 0 && strcmp(exe, exe_after) == 0, "its program");
}

VICTIM(dev_zero, "/dev/zero mapped privately")
{
  int fd = open("/dev/zero", O_RDWR);
  char *at = map_file(fd, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);

  close(fd);
  fill(at, 2 * PAGE);
  ready();
  await_go();
  check(at, 2 * PAGE, "the written pages");
  check_zero(at + 2 * PAGE, 2 * PAGE, "the others");
}

VICTIM(memfd_private, "a memory file mapped privately")
{
  int fd = memfd_create("memory", 0);
  char *at;

  NEED(fd >= 0 && ftruncate(fd, 8 * PAGE) == 0 && pwrite(fd, "file", 4, PAGE) == 4);
  at = map_file(fd, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
  memcpy(at, "own", 3);
  close(fd);
  ready();
  await_go();
  CHECK(memcmp(at, "own", 3) == 0 && memcmp(at + PAGE, "file", 4) == 0, "the mapping");
}

/* ---- advice --------------------------------------------------------------------------------------------------- */

static void
keeps_flag(int advice, const char *flag)
{
  char *at = anonymous(4 * MIB);

  fill(at, PAGE);
  if (madvise(at, 4 * MIB, advice) < 0)
    MISSING("this advice");
  NEED(has_flag(at, flag));
  ready();
  await_go();
  CHECK(has_flag(at, flag), "the flag %s is lost", flag);
  check(at, PAGE, "the memory");
}

VICTIM(huge_pages, "memory that wants huge pages")
{
  keeps_flag(MADV_HUGEPAGE, "hg");
}

VICTIM(no_huge_pages, "memory that wants none")
{
  keeps_flag(MADV_NOHUGEPAGE, "nh");
}

VICTIM(dont_dump, "memory kept from core dumps")
{
  keeps_flag(MADV_DONTDUMP, "dd");
}

VICTIM(mergeable, "memory that may be merged")
{
  keeps_flag(MADV_MERGEABLE, "mg");
}

VICTIM(two_flags, "memory with two kinds of advice")
{
  char *at = anonymous(4 * MIB);

  fill(at, PAGE);
  NEED(madvise(at, 4 * MIB, MADV_NOHUGEPAGE) == 0 && madvise(at, 4 * MIB, MADV_DONTDUMP) == 0);
  ready();
  await_go();
  CHECK(has_flag(at, "nh") && has_flag(at, "dd"), "a flag is lost");
  check(at, PAGE, "the memory");
}

VICTIM(locked, "memory that is locked")
{
  char *at = anonymous(4 * PAGE);

  fill(at, 4 * PAGE);
  NEED(mlock(at, 4 * PAGE) == 0);
  ready();
  await_go();
  CHECK(has_flag(at, "lo"), "it is locked no more");
  check(at, 4 * PAGE, "the memory");
}

/* Secrets: a fork of any kind gets none of it, so neither does a child of ours. */
VICTIM(wipe_on_fork, "memory that is zero after a fork, and keeps that")
{
  char *at = anonymous(4 * PAGE);
  pid_t before = getpid();
  volatile bool *forked = anonymous(PAGE);

  fill(at, PAGE);
  NEED(madvise(at, 4 * PAGE, MADV_WIPEONFORK) == 0);
  ready();
  await_go();
  (void)forked;
  CHECK(has_flag(at, "wf") && getpid() == before, "the flag is lost");
  if (((uint64_t *)(void *)at)[0] != pattern(0))
    check_zero(at, 4 * PAGE, "the memory");
}

#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08 /* Linux 6.11 */
#endif

VICTIM(droppable, "memory that the kernel may drop")
{
  char *at = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_DROPPABLE, -1, 0);

  if (at == MAP_FAILED)
    MISSING("MAP_DROPPABLE");
  ready();
  await_go();
  CHECK(has_flag(at, "dp"), "the flag is lost");
  memset(at, 1, PAGE);
}

/* ---- the kernel's own pages ----------------------------------------------------------------------------------- */

VICTIM(vdso, "the clock, read without a system call, goes on")
{
  uint64_t before = now_ns();

  ready();
  await_go();
  uint64_t after = now_ns();
  CHECK(after > before && after - before < 600000000000u, "from %lu to %lu", before, after);
  struct timespec by_call;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &by_call);
  uint64_t called = (uint64_t)by_call.tv_sec * 1000000000u + (uint64_t)by_call.tv_nsec;
  CHECK(called >= after && called - after < 10000000000u, "the kernel says %lu, the page says %lu", called, after);
}

VICTIM(many_areas, "twenty thousand areas, of which four thousand are shared")
{
  enum { AREAS = 20000, SHARED = 4000 };
  static uint8_t *areas[AREAS];

  for (int i = 0; i < AREAS; i++) {
    int kind = i < SHARED ? MAP_SHARED : MAP_PRIVATE;
    areas[i] = mmap(NULL, 4096, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
    NEED(areas[i] != MAP_FAILED);
    areas[i][7] = (uint8_t)(i % 251);
    NEED(i % 2 == 0 || mprotect(areas[i], 4096, PROT_READ) == 0);
  }
  ready();
  await_go();
  for (int i = 0; i < AREAS; i++)
    CHECK(areas[i][7] == i % 251, "area %d has %d", i, areas[i][7]);
}
