/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "treecopy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "tap.h"

static int from, to;
static char top[] = "/tmp/ramet-treecopy-XXXXXX";

static void
remove_all(const char *path)
{
  char command[128];

  snprintf(command, sizeof command, "rm -rf '%s'", path);
  NEED(system(command) == 0);
}

static void
begin(void)
{
  memcpy(top + sizeof top - 7, "XXXXXX", 6);
  NEED(mkdtemp(top));
  int dir = open(top, O_RDONLY | O_DIRECTORY);
  NEED(dir >= 0 && mkdirat(dir, "from", 0755) == 0 && mkdirat(dir, "to", 0755) == 0);
  from = openat(dir, "from", O_RDONLY | O_DIRECTORY);
  to = openat(dir, "to", O_RDONLY | O_DIRECTORY);
  close(dir);
}

static void
end(void)
{
  close(from);
  close(to);
  remove_all(top);
}

static int
copy(struct treecopy_count *count)
{
  struct err err = {0};
  int result = treecopy(from, to, NULL, count, RAMET_STEP_COPY_UPPER, &err);

  if (result < 0)
    printf("# %s\n", err.text);
  return result;
}

static void
put(const char *name, const char *text)
{
  int fd = openat(from, name, O_WRONLY | O_CREAT, 0640);

  NEED(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
  close(fd);
}

static void
files_come_with_content_mode_and_times(void)
{
  const struct timespec times[2] = {{1000, 5}, {2000, 7}};
  struct treecopy_count count = {0};
  struct stat st;
  char text[8];

  begin();
  put("file", "content");
  NEED(fchmodat(from, "file", 04751, 0) == 0 && utimensat(from, "file", times, 0) == 0);
  CHECK(copy(&count) == 0 && count.files == 1 && count.bytes == 7);
  NEED(fstatat(to, "file", &st, 0) == 0);
  CHECK((st.st_mode & 07777) == 04751 && st.st_size == 7);
  CHECK(st.st_mtim.tv_sec == 2000 && st.st_mtim.tv_nsec == 7 && st.st_atim.tv_sec == 1000);
  int fd = openat(to, "file", O_RDONLY);
  CHECK(read(fd, text, 8) == 7 && memcmp(text, "content", 7) == 0);
  close(fd);
  end();
}

static void
directories_keep_their_times_although_they_were_filled(void)
{
  const struct timespec times[2] = {{1000, 0}, {2000, 0}};
  struct treecopy_count count = {0};
  struct stat st;

  begin();
  NEED(mkdirat(from, "dir", 0700) == 0);
  put("dir/inside", "x");
  NEED(fchmodat(from, "dir", 01777, 0) == 0 && utimensat(from, "dir", times, 0) == 0);
  CHECK(copy(&count) == 0);
  NEED(fstatat(to, "dir", &st, 0) == 0);
  CHECK((st.st_mode & 07777) == 01777 && st.st_mtim.tv_sec == 2000);
  end();
}

static void
names_of_one_file_stay_names_of_one_file(void)
{
  struct treecopy_count count = {0};
  struct stat one, two;

  begin();
  put("one", "x");
  NEED(mkdirat(from, "dir", 0755) == 0 && linkat(from, "one", from, "dir/two", 0) == 0);
  CHECK(copy(&count) == 0);
  NEED(fstatat(to, "one", &one, 0) == 0 && fstatat(to, "dir/two", &two, 0) == 0);
  CHECK(one.st_ino == two.st_ino && one.st_nlink == 2);
  end();
}

static void
holes_stay_holes(void)
{
  struct treecopy_count count = {0};
  struct stat st;

  begin();
  int fd = openat(from, "sparse", O_WRONLY | O_CREAT, 0600);
  NEED(fd >= 0 && ftruncate(fd, (off_t)1 << 30) == 0 && pwrite(fd, "x", 1, (off_t)1 << 29) == 1);
  close(fd);
  CHECK(copy(&count) == 0 && count.bytes < 1 << 20);
  NEED(fstatat(to, "sparse", &st, 0) == 0);
  CHECK(st.st_size == (off_t)1 << 30 && st.st_blocks < 4096);
  end();
}

static void
links_fifos_and_attributes_come_too(void)
{
  struct treecopy_count count = {0};
  char text[16] = "";
  struct stat st;

  begin();
  put("file", "x");
  int fd = openat(from, "file", O_RDONLY);
  bool attributes = fsetxattr(fd, "user.colour", "red", 3, 0) == 0;
  close(fd);
  NEED(symlinkat("nowhere", from, "link") == 0 && mkfifoat(from, "fifo", 0600) == 0);
  CHECK(copy(&count) == 0);
  CHECK(readlinkat(to, "link", text, sizeof text) == 7 && memcmp(text, "nowhere", 7) == 0);
  CHECK(fstatat(to, "fifo", &st, 0) == 0 && S_ISFIFO(st.st_mode));
  fd = openat(to, "file", O_RDONLY);
  CHECK(!attributes || (fgetxattr(fd, "user.colour", text, sizeof text) == 3 && memcmp(text, "red", 3) == 0));
  close(fd);
  end();
}

static void
nothing_stays_open(void)
{
  struct treecopy_count count = {0};
  int before = tap_open_descriptors();

  begin();
  put("one", "x");
  NEED(linkat(from, "one", from, "two", 0) == 0 && mkdirat(from, "dir", 0755) == 0);
  CHECK(copy(&count) == 0);
  end();
  CHECK(tap_open_descriptors() == before);
}

int
main(void)
{
  RUN(files_come_with_content_mode_and_times);
  RUN(directories_keep_their_times_although_they_were_filled);
  RUN(names_of_one_file_stay_names_of_one_file);
  RUN(holes_stay_holes);
  RUN(links_fifos_and_attributes_come_too);
  RUN(nothing_stays_open);
  return tap_end();
}
