/* SPDX-License-Identifier: Apache-2.0
 * By which way the memory of each process came into the snapshot, for people: "57 frozen has_parent 126976 python". */
#define _GNU_SOURCE
#include "capture.h"

#include <stdio.h>
#include <string.h>

/* Of a large tree the first: the answer of a snapshot is one frame, and a record keeps no more. */
#define WAYS_MAX 128

static const char *
way_of(const struct capture *capture)
{
  return capture->parked ? "twin" : capture->froze ? "frozen" : "copied";
}

static const char *
reason_of(const struct capture *capture)
{
  static const char *const reasons[] = {
      [TWIN_NONE] = "no_twin",  [TWIN_REPLACED] = "exec",         [TWIN_REFUSED] = "failed",
      [TWIN_LESS] = "unforked", [TWIN_HAS_PARENT] = "has_parent",
  };

  return capture->parked ? "-" : reasons[capture->no_twin];
}

/* Its name is the process's own choice, and stands last. */
void
capture_ways(const struct capture_tree *tree, struct writer *out)
{
  cleanup_writer struct writer text = {0};

  for (int i = 0; i < tree->count && i < WAYS_MAX; i++) {
    const struct capture *capture = tree->processes[i];
    char line[128], name[sizeof capture->name];
    snprintf(name, sizeof name, "%s", capture->name);
    for (char *c = name; *c; c++)
      if ((unsigned char)*c < ' ')
        *c = '?';
    int length = snprintf(line, sizeof line, "%d %s %s %llu %s\n", capture->relations.pid, way_of(capture),
                          reason_of(capture), (unsigned long long)capture->copied, name);
    put_raw(&text, (struct span){(const uint8_t *)line, (uint32_t)length});
  }
  out->failed |= text.failed;
  put_bytes(out, RAMET_TAG_WAYS, text.data, text.length);
}
