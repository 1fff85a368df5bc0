/* SPDX-License-Identifier: Apache-2.0
 * Run with arguments that stand for the host's secrets: none of them may be left in /proc/self/cmdline. */
#define _GNU_SOURCE
#include "title.h"

#include <sys/prctl.h>

#include "cleanup.h"
#include "tap.h"

static char line[8192];

static size_t
command_line(void)
{
  FILE *file = fopen("/proc/self/cmdline", "re");

  NEED(file != NULL);
  size_t length = fread(line, 1, sizeof line - 1, file);
  fclose(file);
  line[length] = 0;
  return length;
}

static bool
shows(const char *text, size_t length)
{
  return memmem(line, length, text, strlen(text)) != NULL;
}

static void
before_a_title_is_set_the_arguments_show(void)
{
  size_t length = command_line();

  CHECK(shows("/home/somebody/secret", length) && shows("--uid-map", length));
}

static void
a_title_replaces_every_argument(void)
{
  title_set("ramet-core");
  size_t length = command_line();
  CHECK_TEXT(line, "ramet-core");
  for (size_t i = strlen(line); i < length; i++)
    CHECK(line[i] == 0);
}

static void
a_shorter_title_leaves_nothing_of_the_longer(void)
{
  title_set("ramet-core");
  title_set("init");
  size_t length = command_line();
  CHECK_TEXT(line, "init");
  CHECK(!shows("core", length));
}

static void
a_title_longer_than_the_arguments_is_cut(void)
{
  char endless[4096];

  memset(endless, 't', sizeof endless - 1);
  endless[sizeof endless - 1] = 0;
  title_set(endless);
  size_t length = command_line();
  CHECK(length < sizeof endless && line[0] == 't');
  /* The environment begins behind the arguments and is untouched. */
  CHECK(getenv("TITLE_NEIGHBOUR") && strcmp(getenv("TITLE_NEIGHBOUR"), "whole") == 0);
}

static void
the_thread_is_named_too(void)
{
  char name[16] = "";

  title_set("ramet-init");
  NEED(prctl(PR_GET_NAME, name, 0, 0, 0) == 0);
  CHECK_TEXT(name, "ramet-init");
}

static void
without_setup_only_the_thread_is_named(void)
{
  char name[16] = "";

  title_set("early");
  NEED(prctl(PR_GET_NAME, name, 0, 0, 0) == 0);
  CHECK_TEXT(name, "early");
}

int
main(int argc, char **argv)
{
  RUN(without_setup_only_the_thread_is_named);
  RUN(before_a_title_is_set_the_arguments_show);
  title_setup(argc, argv);
  RUN(a_title_replaces_every_argument);
  RUN(a_shorter_title_leaves_nothing_of_the_longer);
  RUN(a_title_longer_than_the_arguments_is_cut);
  RUN(the_thread_is_named_too);
  return tap_end();
}
