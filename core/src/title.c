/* SPDX-License-Identifier: Apache-2.0 */
#include "title.h"

#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>

static char *area;
static size_t area_length;

/* The arguments lie one behind the other; prctl(2) PR_SET_MM, which could move them, needs CAP_SYS_RESOURCE. */
void
title_setup(int argc, char **argv)
{
  char *end = argv[argc - 1] + strlen(argv[argc - 1]);

  area = argv[0];
  area_length = (size_t)(end - area);
}

void
title_set(const char *title)
{
  size_t length = strlen(title);

  prctl(PR_SET_NAME, title, 0, 0, 0);
  if (!area)
    return;
  memset(area, 0, area_length);
  memcpy(area, title, length < area_length ? length : area_length);
}
