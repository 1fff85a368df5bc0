/* SPDX-License-Identifier: Apache-2.0
 * Core's own mount namespaces. The first, M_host, is a copy of the host's, kept only as a descriptor: paths of the
 * host are opened there, and what roots are made of is stored there, out of the reach of pool entries. The second is where core lives and what every pool entry copies: a read-only tmpfs with
 * /proc, /dev and the mount points that init uses, and nothing of the host. */
#ifndef RAMET_COREFS_H
#define RAMET_COREFS_H

#include "err.h"

/* Mount points that every pool entry finds in its copy. */
#define COREFS_NEW_ROOT "/n"
#define COREFS_EMPTY "/e"
/* An empty directory with mount points: the root of an entry until a plan gives it one, and under that afterwards. */
#define COREFS_ENTRY "/r"
/* In that directory, the same for all: what limit_views.h makes. */
#define COREFS_LIMIT_VIEWS "/c"

/* In M_host a tmpfs of ours covers /proc: no root is made of that, every host has it, and nothing else is hidden. */
#define COREFS_STORE "/proc"

/* `attach_layers`: behave as on a kernel that builds overlays of attached layers only. */
int corefs_setup(bool attach_layers, struct err *err) MUST_CHECK;
bool corefs_detached_layers(void);
/* Whether something can be mounted on what is attached nowhere. */
bool corefs_detached_targets(void);

/* For what must be done among the host's mounts: as short as can be, and always back. */
int corefs_visit_host(enum ramet_step step, struct err *err) MUST_CHECK;
void corefs_return_home(void);

/* A detached copy of a path of the host. */
int corefs_open_host_tree(const char *path, enum ramet_step step, struct err *err) MUST_CHECK;

/* The store: mounts that sandboxes get copies of, attached in M_host under numbers. A copy can be made only of a
 * mount in the caller's own mount namespace, or (Linux 6.15) of a detached one that came from it. */
int corefs_store(int mount, enum ramet_step step, struct err *err) MUST_CHECK;
void corefs_unstore(int slot);
/* A mount that another user namespace's process lent, as a copy that is core's own: overlayfs wants capabilities over
 * the namespace that a layer's mount belongs to. */
int corefs_adopt(int lent, enum ramet_step step, struct err *err) MUST_CHECK;
/* Detached copies of stored mounts; on failure none is left open. */
int corefs_copy(const int *slots, int count, int *fds, enum ramet_step step, struct err *err) MUST_CHECK;

#endif
