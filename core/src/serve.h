/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RAMET_SERVE_H
#define RAMET_SERVE_H

#include "control.h"

struct serve_options {
  struct control_options control;
  int log;
  int hold;              /* a descriptor that only has to stay open: the lock on an id range; or -1 */
  const char *uid_map;   /* lines separated by ',', "inside outside count" */
  const char *gid_map;
  const char *newidmap;  /* directory of newuidmap and newgidmap, or NULL: write the maps directly */
  int report;            /* core: where the launcher waits for "R" */
  unsigned snapshot_ms;     /* how long a snapshot may take; 0: core's choice */
  uint64_t snapshot_memory; /* bytes for stems and spares; 0: no limit */
  uint64_t memory_reserve;  /* bytes that are kept for the machine; 0: a part of what it has */
  int spill;                /* a directory for what exceeds them, or -1 */
  bool attach_layers;    /* tests: as on kernels before 6.15 */
  enum ramet_step fault; /* of the launcher and of core's own setup */
};

/* Makes core, pid 1 of its own pid namespace, and returns the launcher's exit code. `argv`: of the program, with the
 * verb first; core is this program again, with the verb "core". */
int launch(const struct serve_options *options, char **argv);
/* Core itself: does not return. Called in the new namespaces, with the ids taken. */
void serve(const struct serve_options *options) __attribute__((noreturn));

#endif
