/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "treesync.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "tap.h"

static char top[] = "/dev/shm/ramet-treesync-XXXXXX";
static struct treesync sync_;

static void
shell(const char *command)
{
  char line[512];

  snprintf(line, sizeof line, "cd '%s' && %s", top, command);
  NEED(system(line) == 0);
}

static void
begin(void)
{
  struct err err = {0};

  memcpy(top + sizeof top - 7, "XXXXXX", 6);
  NEED(mkdtemp(top));
  shell("mkdir from to other");
  int dir = open(top, O_RDONLY | O_DIRECTORY);
  sync_ = (struct treesync){.from = openat(dir, "from", O_RDONLY | O_DIRECTORY),
                            .to = openat(dir, "to", O_RDONLY | O_DIRECTORY)};
  close(dir);
  NEED(sync_.from >= 0 && sync_.to >= 0 && tree_index_make(&sync_.index, &err) == 0);
}

static void
end(void)
{
  tree_index_free(&sync_.index);
  close(sync_.from);
  close(sync_.to);
  char command[64];
  snprintf(command, sizeof command, "rm -rf '%s'", top);
  NEED(system(command) == 0);
}

static int
pass(bool strict)
{
  struct err err = {0};
  int result = treesync_pass(&sync_, strict, RAMET_STEP_COPY_UPPER, &err);

  if (result < 0)
    printf("# %s\n", err.text);
  return result;
}

/* Names, types, modes, sizes, times and links, and content, as find(1) and diff(1) tell them. */
static bool
same(void)
{
  char line[512];
  static const char told[] =
      "find . ! -type d -printf '%p %y %m %s %T@ %n %l\\n' -o -printf '%p %y %m %T@\\n' | sort";

  snprintf(line, sizeof line,
           "cd '%s' && (cd from && %s) > a && (cd to && %s) > b && diff a b && diff -r --no-dereference from to",
           top, told, told);
  return system(line) == 0;
}

static void
what_changes_between_two_passes_is_in_the_copy_after_the_second(void)
{
  begin();
  shell("cd from && mkdir d d/e f && echo one > a && echo two > d/b && ln d/b d/e/c && ln -s a l && echo x > f/x");
  CHECK(pass(false) == 0 && same());
  shell("cd from && echo more >> a && mv d/e g && rm l && mkdir l && rm -r f && echo file > f && ln d/b h");
  CHECK(pass(true) == 0 && same());
  shell("cd from && mv g d/e && chmod 700 d && touch -d @5 d/b && rm h");
  CHECK(pass(true) == 0 && same());
  end();
}

static void
a_file_that_may_change_without_a_sign_is_copied_each_time(void)
{
  struct inode_map unseen = {0};
  struct stat st;

  begin();
  shell("cd from && echo one > a && sleep 0.05");
  CHECK(pass(true) == 0);
  NEED(fstatat(sync_.from, "a", &st, 0) == 0 && inode_map_put(&unseen, st.st_ino, 1) == 0);
  uint64_t before = sync_.count.bytes;
  CHECK(pass(true) == 0 && sync_.count.bytes == before);
  sync_.unseen = &unseen;
  CHECK(pass(true) == 0 && sync_.count.bytes == before + 4);
  inode_map_free(&unseen);
  end();
}

static void
only_what_is_named_is_looked_at(void)
{
  struct inode_map dirty = {0};
  struct stat st;

  begin();
  shell("cd from && mkdir d e && echo one > d/a && echo two > e/b && echo three > e/c");
  CHECK(pass(false) == 0);
  shell("cd from && echo more >> e/b && echo more >> e/c && rm d/a && echo new > d/n");
  NEED(fstatat(sync_.from, "e/b", &st, 0) == 0 && inode_map_put(&dirty, st.st_ino, 1) == 0);
  NEED(fstatat(sync_.from, "d", &st, 0) == 0 && inode_map_put(&dirty, st.st_ino, 1) == 0);
  sync_.dirty = &dirty;
  CHECK(pass(true) == 0);
  CHECK(faccessat(sync_.to, "d/a", F_OK, 0) < 0 && faccessat(sync_.to, "d/n", F_OK, 0) == 0);
  CHECK(fstatat(sync_.to, "e/b", &st, 0) == 0 && st.st_size == 9);
  CHECK(fstatat(sync_.to, "e/c", &st, 0) == 0 && st.st_size == 6);
  inode_map_free(&dirty);
  end();
}

static void
on_top_of_an_earlier_copy_there_is_what_differs(void)
{
  struct err err = {0};
  struct stat st;
  char opaque = 0;

  begin();
  shell("cd from && mkdir d d/e f && echo one > a && echo two > d/b && echo three > d/c && echo x > f/x && sleep "
        "0.05");
  CHECK(pass(true) == 0 && pass(true) == 0);
  int saved = tree_index_save(&sync_.index, &err), other = openat(sync_.to, "../other", O_RDONLY | O_DIRECTORY);
  NEED(saved >= 0 && other >= 0);
  tree_index_free(&sync_.index);
  close(sync_.to);
  sync_.to = other;
  sync_.pass = 0;
  NEED(tree_index_load(&sync_.index, saved, &err) == 0);
  shell("cd from && echo more >> d/b && rm d/c && rm -r f && mkdir f && echo y > f/y");
  CHECK(pass(true) == 0);
  CHECK(faccessat(other, "a", F_OK, 0) < 0 && faccessat(other, "d/e", F_OK, 0) < 0);
  CHECK(fstatat(other, "d/b", &st, 0) == 0 && st.st_size == 9);
  CHECK(fstatat(other, "d/c", &st, 0) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == 0);
  int dir = openat(other, "f", O_RDONLY | O_DIRECTORY);
  CHECK(faccessat(dir, "y", F_OK, 0) == 0);
  CHECK(fgetxattr(dir, "user.overlay.opaque", &opaque, 1) == 1 && opaque == 'y');
  close(dir);
  close(saved);
  end();
}

static void
nothing_stays_open(void)
{
  int before = tap_open_descriptors();

  begin();
  shell("cd from && mkdir -p d/e/f && echo x > d/e/f/x && ln d/e/f/x y");
  CHECK(pass(false) == 0 && pass(true) == 0);
  end();
  CHECK(tap_open_descriptors() == before);
}

int
main(void)
{
  RUN(what_changes_between_two_passes_is_in_the_copy_after_the_second);
  RUN(a_file_that_may_change_without_a_sign_is_copied_each_time);
  RUN(only_what_is_named_is_looked_at);
  RUN(on_top_of_an_earlier_copy_there_is_what_differs);
  RUN(nothing_stays_open);
  return tap_end();
}
