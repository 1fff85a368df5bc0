/* SPDX-License-Identifier: Apache-2.0
 * What stands in a sandbox's /sys/fs/cgroup: its limits, as programs look for them. All sandboxes with the same limits are
 * shown the same files, read-only, which core makes once, in a directory that every pool entry has in its root. */
#ifndef RAMET_LIMIT_VIEWS_H
#define RAMET_LIMIT_VIEWS_H

#include "plan.h"

struct limit_view;

/* `directory`: writable. Takes it. */
void limit_views_setup(int directory);
/* The files for a plan's limits, until they are released; NULL on failure. */
struct limit_view *limit_view_hold(const struct plan *plan, struct err *err) MUST_CHECK;
void limit_view_release(struct limit_view *view);
/* Where they are in an entry's root. */
#define LIMIT_VIEW_PATH_MAX 80
void limit_view_path(const struct plan *plan, char path[LIMIT_VIEW_PATH_MAX]);

#endif
