/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "treemerge.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "tap.h"

/* Of random trees: three layers that become one on top of two. */
#define MERGED 3
#define LAYERS 5
#define ROUNDS 60
#define TOLD_MAX 65536

static char top[] = "/dev/shm/ramet-treemerge-XXXXXX";
static int layers[LAYERS], flat[1 + LAYERS - MERGED], aside;
static uint32_t state;

static uint32_t
random_below(uint32_t end)
{
  state = state * 1664525u + 1013904223u;
  return (state >> 8) % end;
}

static int
make_dir(int dir, const char *name)
{
  NEED(mkdirat(dir, name, 0755) == 0);
  int made = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  NEED(made >= 0);
  return made;
}

static void
begin(void)
{
  char name[8];

  memcpy(top + sizeof top - 7, "XXXXXX", 6);
  NEED(mkdtemp(top));
  aside = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int i = 0; i < LAYERS; i++) {
    snprintf(name, sizeof name, "%d", i);
    layers[i] = make_dir(aside, name);
  }
  flat[0] = make_dir(aside, "flat");
  for (int i = MERGED; i < LAYERS; i++)
    flat[1 + i - MERGED] = layers[i];
}

static void
end(void)
{
  char command[64];

  for (int i = 0; i < LAYERS; i++)
    close(layers[i]);
  close(flat[0]);
  close(aside);
  snprintf(command, sizeof command, "rm -rf '%s'", top);
  NEED(system(command) == 0);
}

static int
merge(void)
{
  const struct treemerge wanted = {
      .layers = layers, .merged = MERGED, .count = LAYERS, .to = flat[0], .aside = aside};
  struct treecopy_count count = {0};
  struct err err = {0};
  int result = treemerge(&wanted, &count, RAMET_STEP_FLATTEN, &err);

  if (result < 0)
    printf("# %s\n", err.text);
  return result;
}

static void
put(int dir, const char *name, const char *text)
{
  int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600 + (random_below(2) ? 044 : 0));

  NEED(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
  close(fd);
}

static void
white_out(int dir, const char *name)
{
  NEED(mknodat(dir, name, S_IFCHR | 0600, 0) == 0);
}

/* ---- the model: overlayfs as its documentation tells it, one path at a time ----------------------------------- */

struct seen {
  struct stat st;
  int layer; /* the topmost that has it */
  bool there;
};

static bool
opaque(int layer, const char *path)
{
  char full[320], value = 0;

  snprintf(full, sizeof full, "/proc/self/fd/%d/%s", layer, path);
  return getxattr(full, "user.overlay.opaque", &value, 1) == 1 && value == 'y';
}

/* Whether one of the path's directories ends it in this layer: what is below is hidden. */
static bool
ends_in(int layer, const char *path)
{
  char part[256];
  struct stat st;

  for (const char *at = path;;) {
    const char *slash = strchr(at, '/');
    size_t length = slash ? (size_t)(slash - path) : strlen(path);
    memcpy(part, path, length);
    part[length] = 0;
    if (fstatat(layer, part, &st, AT_SYMLINK_NOFOLLOW) == 0 && (!S_ISDIR(st.st_mode) || opaque(layer, part)))
      return true;
    if (!slash)
      return false;
    at = slash + 1;
  }
}

static struct seen
model(const int *stack, int count, const char *path)
{
  struct seen seen = {.there = false};

  for (int i = 0; i < count; i++) {
    if (fstatat(stack[i], path, &seen.st, AT_SYMLINK_NOFOLLOW) == 0) {
      seen.layer = stack[i];
      seen.there = !(S_ISCHR(seen.st.st_mode) && seen.st.st_rdev == 0);
      return seen;
    }
    if (ends_in(stack[i], path))
      return seen;
  }
  return seen;
}

static const char *const names[] = {"a", "b", "c", "d"};

static size_t
tell(const int *stack, int count, const char *path, char *out)
{
  struct seen seen = model(stack, count, path);
  char target[64] = "", text[64] = "";
  size_t used;

  if (!seen.there)
    return 0;
  if (S_ISLNK(seen.st.st_mode))
    NEED(readlinkat(seen.layer, path, target, sizeof target - 1) > 0);
  if (S_ISREG(seen.st.st_mode)) {
    int fd = openat(seen.layer, path, O_RDONLY | O_CLOEXEC);
    NEED(fd >= 0 && read(fd, text, sizeof text - 1) >= 0);
    close(fd);
  }
  long size = S_ISDIR(seen.st.st_mode) ? 0 : (long)seen.st.st_size;
  used = (size_t)sprintf(out, "%s %o %ld %ld.%09ld %s %s\n", path, seen.st.st_mode, size,
                         (long)seen.st.st_mtim.tv_sec, seen.st.st_mtim.tv_nsec, target, text);
  for (size_t i = 0; S_ISDIR(seen.st.st_mode) && strlen(path) < 8 && i < 4; i++) {
    char below[32];
    snprintf(below, sizeof below, "%s/%s", path, names[i]);
    used += tell(stack, count, below, out + used);
  }
  return used;
}

static void
tell_all(const int *stack, int count, char *out)
{
  out[0] = 0;
  for (size_t i = 0; i < 4; i++)
    out += tell(stack, count, names[i], out);
}

/* ---- random layers -------------------------------------------------------------------------------------------- */

static void
fill(int dir, int depth)
{
  struct timespec times[2] = {{0}};
  char text[32];

  for (size_t i = 0; i < 4; i++) {
    switch (random_below(depth < 3 ? 9 : 6)) {
    case 0:
      snprintf(text, sizeof text, "%u", state);
      put(dir, names[i], text);
      break;
    case 1:
      white_out(dir, names[i]);
      break;
    case 2:
      snprintf(text, sizeof text, "to-%u", state);
      NEED(symlinkat(text, dir, names[i]) == 0);
      break;
    case 3:
      NEED(i == 0 || linkat(dir, names[i - 1], dir, names[i], 0) == 0 || errno == ENOENT || errno == EPERM);
      break;
    case 6:
    case 7:
    case 8: {
      int made = make_dir(dir, names[i]);
      NEED(random_below(4) || fsetxattr(made, "user.overlay.opaque", "y", 1, 0) == 0);
      NEED(fchmod(made, random_below(2) ? 0700 : 0755) == 0);
      fill(made, depth + 1);
      close(made);
      break;
    }
    default:
      break; /* nothing is said of it here */
    }
  }
  times[0].tv_sec = times[1].tv_sec = random_below(1000000);
  NEED(futimens(dir, times) == 0);
}

/* Where the kernel lists a directory of one layer alone, a whiteout would be seen. */
static bool
whiteouts_hide_something(const char *path)
{
  struct stat st;

  for (size_t i = 0; strlen(path) < 8 && i < 4; i++) {
    char below[32];
    snprintf(below, sizeof below, "%s%s%s", path, path[0] ? "/" : "", names[i]);
    if (fstatat(flat[0], below, &st, AT_SYMLINK_NOFOLLOW) < 0)
      continue;
    if (S_ISCHR(st.st_mode) && !model(flat + 1, LAYERS - MERGED, below).there)
      return false;
    if (S_ISDIR(st.st_mode) && !whiteouts_hide_something(below))
      return false;
  }
  return true;
}

static void
one_layer_shows_what_many_did(void)
{
  static char before[TOLD_MAX], after[TOLD_MAX];
  int wrong = 0;

  for (uint32_t round = 0; round < ROUNDS && !wrong; round++) {
    begin();
    state = round * 2654435761u + 1;
    for (int i = 0; i < LAYERS; i++)
      fill(layers[i], 0);
    tell_all(layers, LAYERS, before);
    if (merge() < 0)
      wrong = 1;
    tell_all(flat, 1 + LAYERS - MERGED, after);
    if (strcmp(before, after) != 0 || !whiteouts_hide_something(""))
      wrong = 1;
    if (wrong)
      printf("# seed %u\n%s---\n%s", round, before, after);
    end();
  }
  CHECK(!wrong);
}

/* ---- what the model does not tell ----------------------------------------------------------------------------- */

static void
names_of_one_file_stay_names_of_one_file_and_others_do_not_become_such(void)
{
  struct stat one, other;

  begin();
  put(layers[0], "a", "x");
  NEED(linkat(layers[0], "a", layers[0], "b", 0) == 0);
  int dir = make_dir(layers[1], "d");
  put(layers[1], "c", "y");
  NEED(linkat(layers[1], "c", dir, "c", 0) == 0 && linkat(layers[1], "c", layers[1], "a", 0) == 0);
  close(dir);
  CHECK(merge() == 0);
  CHECK(fstatat(flat[0], "a", &one, 0) == 0 && fstatat(flat[0], "b", &other, 0) == 0);
  CHECK(one.st_ino == other.st_ino && one.st_nlink == 2);
  CHECK(fstatat(flat[0], "c", &one, 0) == 0 && fstatat(flat[0], "d/c", &other, 0) == 0);
  CHECK(one.st_ino == other.st_ino && one.st_nlink == 2);
  CHECK(faccessat(aside, ".linked", F_OK, 0) < 0);
  end();
}

static void
holes_attributes_and_kinds_stay(void)
{
  struct stat st;
  char value[8];

  begin();
  int fd = openat(layers[2], "sparse", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  NEED(fd >= 0 && pwrite(fd, "end", 3, 64 << 20) == 3 && fsetxattr(fd, "user.mark", "seen", 4, 0) == 0);
  close(fd);
  NEED(mkfifoat(layers[1], "fifo", 0640) == 0 && mknodat(layers[1], "socket", S_IFSOCK | 0600, 0) == 0);
  CHECK(merge() == 0);
  CHECK(fstatat(flat[0], "sparse", &st, 0) == 0 && st.st_size == (64 << 20) + 3 && st.st_blocks < 64);
  fd = openat(flat[0], "sparse", O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0 && fgetxattr(fd, "user.mark", value, sizeof value) == 4 && memcmp(value, "seen", 4) == 0);
  close(fd);
  CHECK(fstatat(flat[0], "fifo", &st, 0) == 0 && S_ISFIFO(st.st_mode) && (st.st_mode & 0777) == 0640);
  CHECK(fstatat(flat[0], "socket", &st, 0) == 0 && S_ISSOCK(st.st_mode));
  end();
}

static void
nothing_stays_open(void)
{
  int before = tap_open_descriptors();

  begin();
  put(layers[0], "a", "x");
  NEED(linkat(layers[0], "a", layers[0], "b", 0) == 0);
  close(make_dir(layers[1], "d"));
  CHECK(merge() == 0);
  end();
  begin();
  put(layers[0], "a", "x");
  put(flat[0], "a", "in the way");
  CHECK(merge() < 0);
  end();
  CHECK(tap_open_descriptors() == before);
}

int
main(void)
{
  RUN(one_layer_shows_what_many_did);
  RUN(names_of_one_file_stay_names_of_one_file_and_others_do_not_become_such);
  RUN(holes_attributes_and_kinds_stay);
  RUN(nothing_stays_open);
  return tap_end();
}
