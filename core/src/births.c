/* SPDX-License-Identifier: Apache-2.0 */
#include "births.h"

#include <string.h>

struct planner {
  const struct kin *kin;
  int kin_count;
  struct births *births;
  int32_t *need; /* the session that each is to be born in; 0: any */
  int32_t highest;
  struct err *err;
};

static int
refuse(const struct planner *p, int i, const char *why)
{
  const struct birth *birth = &p->births->items[i];
  const char *name = i < p->kin_count ? p->kin[i].name : "?";

  return err_code(p->err, "unforkable", "pid %d %s: %s", birth->pid, name, why);
}

/* Its place, or -1. */
static int
find(const struct planner *p, int32_t pid)
{
  for (int i = 0; i < p->births->count; i++)
    if (p->births->items[i].pid == pid)
      return i;
  return -1;
}

static bool
leads(const struct birth *birth)
{
  return birth->session == birth->pid;
}

static int
add(struct planner *p, struct birth birth)
{
  p->need[p->births->count] = leads(&birth) ? 0 : birth.session;
  p->births->items[p->births->count] = birth;
  return p->births->count++;
}

static int
add_kin(struct planner *p, int processes)
{
  for (int i = 0; i < p->kin_count; i++) {
    const struct image_relations *r = &p->kin[i].relations;
    if (find(p, r->pid) >= 0)
      return err_field(p->err, "image", "two processes are number %d", r->pid);
    add(p, (struct birth){.kind = i < processes ? BIRTH_PROCESS : BIRTH_ZOMBIE,
                          .pid = r->pid,
                          .session = r->session,
                          .group = r->group,
                          .parent = -1});
  }
  return 0;
}

static int
find_parents(struct planner *p)
{
  if (p->kin[0].relations.parent != 1)
    return refuse(p, 0, "has a parent, which is not there");
  for (int i = 1; i < p->kin_count; i++) {
    int parent = p->kin[i].relations.parent;
    if (parent == 1)
      continue;
    int at = find(p, parent);
    if (at < 0 || at == i || p->births->items[at].kind != BIRTH_PROCESS)
      return refuse(p, i, "has a parent that is not there");
    p->births->items[i].parent = at;
  }
  return 0;
}

/* Who leads a session whose leader is gone opens it and dies; for the first process it is the passage. */
static int
find_sessions(struct planner *p)
{
  for (int i = 0; i < p->kin_count; i++) {
    int32_t session = p->births->items[i].session;
    int at = find(p, session);
    if (at >= 0 && !leads(&p->births->items[at]))
      return refuse(p, i, "is in a session whose number another process has");
    if (at >= 0 || (p->births->passage_leads && session == p->births->passage_pid))
      continue;
    if (i == 0) {
      p->births->passage_leads = true;
      p->births->passage_pid = session;
    } else {
      add(p,
          (struct birth){.kind = BIRTH_HELPER, .pid = session, .session = session, .group = session, .parent = 0});
    }
  }
  return 0;
}

/* Who can fork into a session: its leader, or the first process where that is the passage. */
static int
host_of(const struct planner *p, int32_t session)
{
  return p->births->passage_leads && session == p->births->passage_pid ? 0 : find(p, session);
}

static int
find_groups(struct planner *p)
{
  for (int i = 0; i < p->kin_count; i++) {
    const struct birth *birth = &p->births->items[i];
    int at = find(p, birth->group);
    if (at < 0 && p->births->passage_leads && birth->group == p->births->passage_pid)
      continue; /* the first one is born in it */
    if (at < 0) {
      add(p, (struct birth){.kind = BIRTH_HELPER,
                            .pid = birth->group,
                            .session = birth->session,
                            .group = birth->group,
                            .parent = host_of(p, birth->session)});
      continue;
    }
    if (p->births->items[at].group != birth->group || p->births->items[at].session != birth->session)
      return refuse(p, i, "is in a process group whose leader has left it");
  }
  return 0;
}

/* A child of another session than its parent's was born before the parent opened its own, and the parent in that. */
static int
settle_births(struct planner *p)
{
  for (int round = 0, changed = 1; changed; round++) {
    changed = 0;
    for (int i = 1; i < p->births->count; i++) {
      struct birth *birth = &p->births->items[i];
      struct birth *parent = birth->parent >= 0 ? &p->births->items[birth->parent] : NULL;
      if (!parent || p->need[i] == 0 || parent->session == p->need[i])
        continue;
      int32_t *need = &p->need[birth->parent];
      if (!leads(parent) || birth->parent == 0 || (*need && *need != p->need[i]) || round > p->births->count)
        return refuse(p, i, "is in a session that is not its parent's");
      changed |= *need == 0;
      *need = p->need[i];
      birth->early = true;
    }
  }
  return 0;
}

static int32_t
free_number(struct planner *p)
{
  return ++p->highest;
}

/* Orphans are forked by somebody who dies: of the session that they are to be born in. */
static int
find_fosters(struct planner *p)
{
  int count = p->births->count;

  for (int i = 1; i < count; i++) {
    struct birth *birth = &p->births->items[i];
    if (birth->parent >= 0)
      continue;
    int host = p->need[i] ? host_of(p, p->need[i]) : 0;
    if (host < 0 || host == i)
      return refuse(p, i, "is in a session that nobody can open");
    int foster = p->births->items[host].kind == BIRTH_HELPER ? host : -1;
    for (int j = count; foster < 0 && j < p->births->count; j++)
      if (p->births->items[j].parent == host)
        foster = j;
    if (foster < 0)
      foster = add(p, (struct birth){.kind = BIRTH_HELPER,
                                     .pid = free_number(p),
                                     .session = p->births->items[host].session,
                                     .parent = host});
    birth->parent = foster;
  }
  return 0;
}

/* Each is to come from the first in the end: an image from elsewhere may have it otherwise. */
static int
check_descent(struct planner *p)
{
  for (int i = 1; i < p->births->count; i++) {
    int at = i;
    for (int steps = 0; at > 0 && steps < p->births->count; steps++)
      at = p->births->items[at].parent;
    if (at != 0)
      return refuse(p, i, "is its own ancestor");
  }
  return 0;
}

int
births_plan(const struct kin *kin, int processes, int count, int32_t highest, struct births *births,
            struct err *err)
{
  struct planner p = {.kin = kin, .kin_count = count, .births = births, .highest = highest, .err = err};
  size_t most = (size_t)count * BIRTHS_FOR_EACH;

  *births = (struct births){0};
  births->items = calloc(most, sizeof *births->items);
  cleanup_free int32_t *need = calloc(most, sizeof *need);
  p.need = need;
  if (!births->items || !need)
    return err_code(err, "internal", "no memory for the order of births");
  if (add_kin(&p, processes) < 0 || find_parents(&p) < 0 || find_sessions(&p) < 0 || find_groups(&p) < 0 ||
      settle_births(&p) < 0 || find_fosters(&p) < 0 || check_descent(&p) < 0)
    return -1;
  if (!births->passage_leads)
    births->passage_pid = free_number(&p);
  return 0;
}

static int32_t
higher(int32_t a, int32_t b)
{
  return a > b ? a : b;
}

static int32_t
highest_of(const struct image_relations *r, int32_t highest)
{
  return higher(higher(higher(highest, r->pid), r->group), r->session);
}

int
births_of_image(const struct image *image, struct births *births, struct err *err)
{
  uint32_t count = image->process_count + image->zombie_count;
  cleanup_free struct kin *kin = calloc(count, sizeof *kin);
  int32_t highest = 0;

  *births = (struct births){0};
  if (!kin)
    return err_code(err, "internal", "no memory for the order of births");
  for (uint32_t i = 0; i < image->process_count; i++) {
    const struct process_image *process = &image->processes[i];
    kin[i] = (struct kin){process->process.relations, process->threads[0].name};
    for (uint32_t t = 0; t < process->thread_count; t++)
      highest = higher(highest, process->threads[t].tid);
  }
  for (uint32_t i = 0; i < image->zombie_count; i++)
    kin[image->process_count + i] = (struct kin){image->zombies[i].relations, image->zombies[i].name};
  for (uint32_t i = 0; i < count; i++)
    highest = highest_of(&kin[i].relations, highest);
  return births_plan(kin, (int)image->process_count, (int)count, highest, births, err);
}

void
births_free(struct births *births)
{
  free(births->items);
  births->items = NULL;
}
