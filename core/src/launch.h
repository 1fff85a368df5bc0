/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RAMET_LAUNCH_H
#define RAMET_LAUNCH_H

#include "err.h"

/* Writes a process's id maps from outside its user namespace. Maps are lines "inside outside count" joined by ','.
 * `newidmap`: the directory of newuidmap and newgidmap, or NULL to write directly. */
int launch_map_ids(long pid, const char *uid_map, const char *gid_map, const char *newidmap,
                   struct err *err) MUST_CHECK;

#endif
