/* SPDX-License-Identifier: Apache-2.0
 * What is met in the middle of something only by chance: frozen a hundred times. */
#include "victim.h"

#define MANY 64

static void *
stay(void *ignored)
{
  for (;;)
    pause();
  return ignored;
}

VICTIM(exits, "ends, with 64 threads")
{
  pthread_t thread;

  for (int i = 0; i < MANY; i++)
    start(&thread, stay, NULL);
  ready();
  await_go();
  _exit(0);
}
