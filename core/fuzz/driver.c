/* SPDX-License-Identifier: Apache-2.0
 *
 * Drives LLVMFuzzerTestOneInput where there is no libFuzzer: any gcc or clang with -fsanitize-coverage=trace-pc will
 * do. Keeps an input that reaches an edge, or an edge more often, than any before it, and makes the next ones from
 * those kept. The input that stops the program, by a sanitizer's word or by running too long, is written out.
 *
 *     fuzz_X SECONDS SEEDS [NUMBER]    fuzz; SEEDS is a directory, NUMBER repeats an earlier course
 *     fuzz_X FILE...                   run these inputs once each
 *
 * Must itself be compiled without trace-pc. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define INPUT_MAX 4096
#define CORPUS_MAX 8192
#define EDGES 16384u
#define HANG_SECONDS 10
#define MUTATIONS_MAX 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void __sanitizer_cov_trace_pc(void);
void __sanitizer_set_death_callback(void (*callback)(void));

struct input {
  uint8_t *data;
  size_t size;
};

static struct input corpus[CORPUS_MAX];
static size_t corpus_size;

static uint8_t hits[EDGES]; /* of the running input */
static uint8_t seen[EDGES]; /* the highest class reached by any input so far */
static size_t edges_seen;
static uintptr_t previous;

static uint8_t current[INPUT_MAX];
static size_t current_size;
static volatile sig_atomic_t quiet_seconds;
static uint64_t random_state;
static const char *program;

void
__sanitizer_cov_trace_pc(void)
{
  uintptr_t here = (uintptr_t)__builtin_return_address(0);
  uint8_t *hit = &hits[(here ^ previous) % EDGES];

  if (*hit < UINT8_MAX)
    (*hit)++;
  previous = here >> 1;
}

/* xorshift64*: the course of a run depends on its number alone. */
static uint64_t
random_below(uint64_t bound)
{
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return bound ? (random_state * 0x2545f4914f6cdd1dull >> 16) % bound : 0;
}

/* Called when the program is about to die, from a signal handler too. */
static void
save_current(void)
{
  char path[256];

  snprintf(path, sizeof path, "%s.crash", program);
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0 || write(fd, current, current_size) != (ssize_t)current_size)
    fprintf(stderr, "%s: could not write %s\n", program, path);
  else
    fprintf(stderr, "%s: the input is in %s, %zu bytes\n", program, path, current_size);
}

/* EXPECT() failed, which is no sanitizer's business. Returning lets abort() go on. */
static void
on_abort(int signal)
{
  (void)signal;
  save_current();
}

static void
on_second(int signal)
{
  (void)signal;
  if (++quiet_seconds < HANG_SECONDS)
    return;
  fprintf(stderr, "%s: one input took more than %d s\n", program, HANG_SECONDS);
  save_current();
  _exit(1);
}

/* Classes of counts, so that a loop run once more is no news and one run twice as often is. */
static uint8_t
hit_class(uint8_t count)
{
  uint8_t bits = 0;

  for (; count; count >>= 1)
    bits++;
  return bits;
}

static int
run_current(void)
{
  int news = 0;

  memset(hits, 0, sizeof hits);
  previous = 0;
  quiet_seconds = 0;
  LLVMFuzzerTestOneInput(current, current_size);
  for (size_t i = 0; i < EDGES; i++) {
    uint64_t eight;
    memcpy(&eight, hits + i / 8 * 8, 8);
    if (eight == 0) /* nearly all are */
      i |= 7;
    if (!hits[i])
      continue;
    uint8_t reached = hit_class(hits[i]);
    if (reached <= seen[i])
      continue;
    edges_seen += seen[i] == 0;
    seen[i] = reached;
    news = 1;
  }
  return news;
}

static void
keep_current(void)
{
  struct input *slot = corpus_size < CORPUS_MAX ? &corpus[corpus_size++] : &corpus[random_below(CORPUS_MAX)];

  free(slot->data);
  slot->data = malloc(current_size + 1);
  if (!slot->data)
    abort();
  memcpy(slot->data, current, current_size);
  slot->size = current_size;
}

static void
remove_bytes(size_t at, size_t count)
{
  memmove(current + at, current + at + count, current_size - at - count);
  current_size -= count;
}

static void
insert_bytes(size_t at, const uint8_t *bytes, size_t count)
{
  if (current_size + count > INPUT_MAX)
    count = INPUT_MAX - current_size;
  memmove(current + at + count, current + at, current_size - at);
  if (bytes)
    memcpy(current + at, bytes, count);
  else
    memset(current + at, (int)random_below(256), count);
  current_size += count;
}

/* Lengths, counts and indices are little-endian words: write one that decoders tend to get wrong. */
static void
poke_word(size_t at)
{
  static const uint64_t awkward[] = {0,     1,     2,          3,          4,          8,          127,
                                     128,   255,   256,        4095,       4096,       32767,      32768,
                                     65535, 65536, 0x7fffffff, 0x80000000, 0xfffffffe, UINT32_MAX, UINT64_MAX};
  size_t width = (size_t)1 << random_below(4);
  uint64_t word = 0;

  if (at + width > current_size)
    return;
  memcpy(&word, current + at, width);
  if (random_below(2))
    word = awkward[random_below(sizeof awkward / sizeof awkward[0])];
  else
    word += random_below(33) - 16;
  memcpy(current + at, &word, width);
}

static void
mutate_once(void)
{
  const struct input *other = &corpus[random_below(corpus_size)];
  size_t at = random_below(current_size + 1);
  size_t left = current_size - at;
  size_t count;

  switch (random_below(7)) {
  case 0:
    if (left)
      current[at] ^= (uint8_t)(1u << random_below(8));
    break;
  case 1:
    if (left)
      current[at] = (uint8_t)random_below(256);
    break;
  case 2:
  case 3:
    poke_word(at);
    break;
  case 4:
    remove_bytes(at, random_below(left + 1) >> random_below(6));
    break;
  case 5:
    insert_bytes(at, NULL, 1 + random_below(16));
    break;
  default: /* a piece of another input */
    at = random_below(other->size + 1);
    count = random_below(other->size - at + 1);
    insert_bytes(random_below(current_size + 1), other->data + at, count);
  }
}

static int
read_current(int directory, const char *name)
{
  int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : read(fd, current, INPUT_MAX);

  if (fd >= 0)
    close(fd);
  if (n < 0)
    return -1;
  current_size = (size_t)n;
  return 0;
}

static void
load_seeds(const char *path)
{
  DIR *directory = opendir(path);

  while (directory) {
    const struct dirent *entry = readdir(directory);
    if (!entry)
      break;
    if (entry->d_type == DT_REG && read_current(dirfd(directory), entry->d_name) == 0 && run_current())
      keep_current();
  }
  if (directory)
    closedir(directory);
  current_size = 0;
  run_current();
  keep_current();
}

static int
fuzz(long seconds, const char *seeds, uint64_t number)
{
  time_t end = time(NULL) + seconds;
  unsigned long long runs = 0;
  struct itimerval each_second = {.it_interval = {.tv_sec = 1}, .it_value = {.tv_sec = 1}};

  printf("%s: %ld s, number %llu\n", program, seconds, (unsigned long long)number);
  fflush(stdout);
  random_state = number ? number : 1;
  signal(SIGALRM, on_second);
  setitimer(ITIMER_REAL, &each_second, NULL);
  load_seeds(seeds);
  size_t seeded = corpus_size;
  for (; (runs & 255) != 0 || time(NULL) < end; runs++) {
    const struct input *from = &corpus[random_below(corpus_size)];
    memcpy(current, from->data, from->size);
    current_size = from->size;
    for (uint64_t n = 1 + random_below(MUTATIONS_MAX); n; n--)
      mutate_once();
    if (run_current())
      keep_current();
  }
  printf("%s: %llu inputs tried, %zu kept (%zu at first), %zu edges\n", program, runs, corpus_size, seeded,
         edges_seen);
  return edges_seen == 0; /* not instrumented: then nothing was fuzzed */
}

int
main(int argc, char **argv)
{
  char *rest;
  long seconds = argc > 2 ? strtol(argv[1], &rest, 10) : 0;

  program = argv[0];
  __sanitizer_set_death_callback(save_current);
  signal(SIGABRT, on_abort);
  if (seconds > 0 && !*rest)
    return fuzz(seconds, argv[2], argc > 3 ? strtoull(argv[3], NULL, 10) : (uint64_t)time(NULL));
  for (int i = 1; i < argc; i++) {
    if (read_current(AT_FDCWD, argv[i]) < 0) {
      perror(argv[i]);
      return 100;
    }
    run_current();
  }
  if (argc < 2)
    fprintf(stderr, "usage: %s SECONDS SEEDS [NUMBER] | FILE...\n", argv[0]);
  return argc < 2 ? 100 : 0;
}
