/* SPDX-License-Identifier: Apache-2.0 */
#include "births.h"

#include "tap.h"

static struct births planned;
static struct err last;

/* pid, parent, group, session */
static struct kin
kin(int pid, int parent, int group, int session)
{
  return (struct kin){{.pid = pid, .parent = parent, .group = group, .session = session}, "somebody"};
}

/* `processes` of them, the rest have ended. */
static bool
plan(const struct kin *all, int processes, int count)
{
  births_free(&planned);
  return births_plan(all, processes, count, 100, &planned, &last) == 0;
}

#define PLAN(processes, ...)                                                                                       \
  plan((const struct kin[]){__VA_ARGS__}, processes,                                                               \
       (int)(sizeof((const struct kin[]){__VA_ARGS__}) / sizeof(struct kin)))

static const struct birth *
of(int pid)
{
  for (int i = 0; i < planned.count; i++)
    if (planned.items[i].pid == pid)
      return &planned.items[i];
  static const struct birth nobody = {.parent = -1};
  return &nobody;
}

static int
parent_of(int pid)
{
  const struct birth *birth = of(pid);

  return birth->parent >= 0 ? planned.items[birth->parent].pid : -1;
}

static void
one_process_is_born_of_a_passage_alone(void)
{
  CHECK(PLAN(1, kin(2, 1, 2, 2)));
  CHECK(planned.count == 1 && planned.items[0].parent == -1);
  CHECK(planned.passage_pid > 100 && !planned.passage_leads);
}

static void
children_are_born_of_their_parents(void)
{
  CHECK(PLAN(3, kin(2, 1, 2, 2), kin(3, 2, 2, 2), kin(4, 3, 2, 2), kin(5, 3, 2, 2)));
  CHECK(planned.count == 4 && parent_of(3) == 2 && parent_of(4) == 3 && parent_of(5) == 3);
  CHECK(of(5)->kind == BIRTH_ZOMBIE && of(4)->kind == BIRTH_PROCESS && !of(4)->early);
}

static void
an_orphan_is_born_of_somebody_of_its_session_who_dies(void)
{
  CHECK(PLAN(4, kin(2, 1, 2, 2), kin(3, 2, 3, 3), kin(4, 1, 3, 3), kin(5, 1, 2, 2)));
  CHECK(of(parent_of(4))->kind == BIRTH_HELPER && parent_of(parent_of(4)) == 3);
  CHECK(of(parent_of(5))->kind == BIRTH_HELPER && parent_of(parent_of(5)) == 2);
  CHECK(parent_of(4) > 100 && parent_of(5) > 100 && parent_of(4) != parent_of(5) && planned.passage_pid > 100 &&
        of(planned.passage_pid)->pid == 0);
}

static void
a_session_without_its_leader_is_opened_by_one_who_dies(void)
{
  CHECK(PLAN(3, kin(2, 1, 2, 2), kin(4, 1, 3, 3), kin(5, 4, 3, 3)));
  CHECK(of(3)->kind == BIRTH_HELPER && of(3)->session == 3 && of(3)->group == 3 && parent_of(3) == 2);
  CHECK(parent_of(4) == 3 && parent_of(5) == 4);
}

static void
the_session_of_the_first_is_opened_by_the_passage_when_its_leader_is_gone(void)
{
  CHECK(PLAN(2, kin(5, 1, 4, 4), kin(6, 5, 4, 4)));
  CHECK(planned.passage_leads && planned.passage_pid == 4 && planned.count == 2);
}

static void
a_group_without_its_leader_is_opened_by_one_who_dies(void)
{
  CHECK(PLAN(2, kin(2, 1, 2, 2), kin(4, 2, 3, 2)));
  CHECK(of(3)->kind == BIRTH_HELPER && of(3)->group == 3 && of(3)->session == 2 && parent_of(3) == 2);
}

static void
a_child_of_a_session_that_its_parent_left_is_born_before(void)
{
  CHECK(PLAN(4, kin(2, 1, 2, 2), kin(3, 2, 3, 3), kin(4, 3, 2, 2), kin(5, 3, 3, 3)));
  CHECK(of(4)->early && parent_of(4) == 3 && !of(5)->early && !of(3)->early);
}

static void
who_leaves_two_sessions_behind_is_born_in_the_first(void)
{
  CHECK(PLAN(4, kin(2, 1, 2, 2), kin(3, 2, 3, 3), kin(4, 3, 4, 4), kin(5, 4, 2, 2)));
  CHECK(of(5)->early && of(4)->early && !of(3)->early);
}

static void
a_session_that_nobody_could_be_born_in_is_refused_by_name(void)
{
  /* It was taken in by one that gathers orphans. */
  CHECK(!PLAN(4, kin(2, 1, 2, 2), kin(3, 2, 3, 3), kin(4, 2, 3, 3)));
  CHECK_TEXT(last.code, "unforkable");
  CHECK_TEXT(last.text, "pid 4 somebody: is in a session that is not its parent's");
  CHECK(!PLAN(3, kin(2, 1, 2, 2), kin(3, 2, 2, 2), kin(4, 3, 3, 2), kin(5, 2, 5, 3)));
  CHECK(!PLAN(3, kin(2, 1, 2, 2), kin(3, 2, 4, 2), kin(4, 2, 2, 2)));
}

static void
relations_that_make_no_sense_are_refused(void)
{
  CHECK(!PLAN(1, kin(2, 7, 2, 2)));
  CHECK(!PLAN(2, kin(2, 1, 2, 2), kin(2, 1, 2, 2)));
  CHECK(!PLAN(2, kin(2, 1, 2, 2), kin(3, 9, 2, 2)));
  CHECK(!PLAN(2, kin(2, 1, 2, 2), kin(3, 3, 2, 2)));
  CHECK(!PLAN(3, kin(2, 1, 2, 2), kin(3, 4, 2, 2), kin(4, 3, 2, 2)));
  CHECK(!PLAN(2, kin(2, 1, 2, 2), kin(3, 4, 2, 2), kin(4, 2, 2, 2)));
}

int
main(void)
{
  RUN(one_process_is_born_of_a_passage_alone);
  RUN(children_are_born_of_their_parents);
  RUN(an_orphan_is_born_of_somebody_of_its_session_who_dies);
  RUN(a_session_without_its_leader_is_opened_by_one_who_dies);
  RUN(the_session_of_the_first_is_opened_by_the_passage_when_its_leader_is_gone);
  RUN(a_group_without_its_leader_is_opened_by_one_who_dies);
  RUN(a_child_of_a_session_that_its_parent_left_is_born_before);
  RUN(who_leaves_two_sessions_behind_is_born_in_the_first);
  RUN(a_session_that_nobody_could_be_born_in_is_refused_by_name);
  RUN(relations_that_make_no_sense_are_refused);
  births_free(&planned);
  return tap_end();
}
