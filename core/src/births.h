/* SPDX-License-Identifier: Apache-2.0
 * The order in which the processes of an image are born again: who forks whom, and when. A process gets its session
 * from its parent as that is at the time, and an orphan its parent by the death of another; so some are forked before
 * their parent opens a session of its own, and some by helpers that die. */
#ifndef RAMET_BIRTHS_H
#define RAMET_BIRTHS_H

#include "image.h"

/* Besides itself a process may need a leader of its session and one of its group, who are gone, and one to die for it. */
#define BIRTHS_FOR_EACH 4

enum birth_kind { BIRTH_PROCESS, BIRTH_ZOMBIE, BIRTH_HELPER };

struct kin {
  struct image_relations relations;
  const char *name;
};

struct birth {
  enum birth_kind kind;
  int32_t pid, session;
  int32_t group;  /* 0: whichever it is born in */
  int32_t parent; /* place in the list; -1 of the first */
  bool early;     /* before the parent opens its session */
};

struct births {
  struct birth *items; /* processes as in the image, then zombies, then helpers */
  int count;
  /* of the process that forks the first and exits at once */
  int32_t passage_pid;
  bool passage_leads; /* it opens the first one's session, whose leader is gone */
};

/* `kin`: `processes` of them, the first a child of init's, then zombies. Code "unforkable" for what cannot be born
 * again. Whatever comes of it, it is to be freed. */
int births_plan(const struct kin *kin, int processes, int count, int32_t highest, struct births *births,
                struct err *err) MUST_CHECK;
int births_of_image(const struct image *image, struct births *births, struct err *err) MUST_CHECK;
void births_free(struct births *births);

#endif
