/* SPDX-License-Identifier: Apache-2.0
 * A tree that the runner describes in one line, which each process carries out for itself:
 *   (BODY) forks a child that does BODY   s opens a session   g opens a process group   w waits for one child
 * At the end of its body a process stays, or ends when the body ends with x (exit) or k (signal). */
#include "trees.h"

#include <sys/wait.h>

static const char *
behind(const char *body)
{
  int depth = 1;

  for (; depth > 0; body++)
    depth += *body == '(' ? 1 : *body == ')' ? -1 : 0;
  return body;
}

static void
carry_out(const char *at)
{
  for (; *at && *at != ')'; at++) {
    if (*at == '(') {
      if (fork() == 0) {
        carry_out(at + 1);
        arrive();
        for (;;)
          pause();
      }
      at = behind(at + 1) - 1;
    } else if (*at == 's') {
      setsid();
    } else if (*at == 'g') {
      setpgid(0, 0);
    } else if (*at == 'w') {
      wait(NULL);
    } else if (*at == 'x') {
      _exit(7);
    } else if (*at == 'k') {
      kill(getpid(), SIGKILL);
    }
  }
}

/* Those that do not end by themselves. */
static int
count_staying(const char *line)
{
  int count = 0;

  for (const char *at = line; *at; at++)
    count += *at == ')' && at[-1] != 'x' && at[-1] != 'k';
  return count;
}

VICTIM(tree, "what it was told to be")
{
  char line[4096];
  size_t length = 0;

  while (length < sizeof line - 1 && read(0, line + length, 1) == 1 && line[length] != '\n')
    length++;
  line[length] = 0;
  meet();
  carry_out(line);
  settle(count_staying(line));
  view(before);
  ready();
  await_go();
  compare_views();
}
