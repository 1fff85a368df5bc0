/* SPDX-License-Identifier: Apache-2.0 */
#include "inheritance.h"

#include <unistd.h>

#include "tap.h"

#define MIB ((uint64_t)1 << 20)
#define PAGES(bytes) ((bytes) / (uint64_t)sysconf(_SC_PAGESIZE))

static struct inheritance of;

/* A fork of one process that has 200 MiB from its snapshot, which others have too. */
static struct anonymous
born(void)
{
  struct anonymous now = {
      .resident = 200 * MIB, .proportional = 50 * MIB, .shared = 200 * MIB, .largest = 200 * MIB, .processes = 1};

  inheritance_begin(&of, 200 * MIB);
  inheritance_update(&of, &now);
  return now;
}

static uint64_t
own(const struct anonymous *now)
{
  inheritance_update(&of, now);
  return inheritance_own(&of, now);
}

static void
what_is_inherited_is_not_own(void)
{
  struct anonymous now = born();

  CHECK(own(&now) == 0);
}

static void
the_end_of_all_others_makes_nothing_own(void)
{
  struct anonymous now = born();

  now.shared = 0;
  now.proportional = 200 * MIB;
  CHECK(own(&now) == 0);
  now.faults += 100;
  CHECK(own(&now) == 0);
}

static void
the_end_of_others_in_the_midst_of_work_makes_nothing_own(void)
{
  struct anonymous now = born();

  now.faults += PAGES(4096 * MIB);
  now.shared = 0;
  now.proportional = 200 * MIB;
  CHECK(own(&now) == 0);
}

static void
new_memory_is_own_whoever_has_the_rest(void)
{
  struct anonymous now = born();

  now.resident += 60 * MIB;
  now.largest += 60 * MIB;
  now.proportional += 60 * MIB;
  now.faults += PAGES(60 * MIB);
  CHECK(own(&now) == 60 * MIB);
  now.shared = 0;
  now.proportional = 260 * MIB;
  CHECK(own(&now) == 60 * MIB);
}

static void
others_that_ended_before_it_grew_are_not_taken_for_its_own_writes(void)
{
  struct anonymous now = born();

  now.shared = 0;
  now.resident += 60 * MIB;
  now.largest += 60 * MIB;
  now.proportional = 260 * MIB;
  now.faults += PAGES(60 * MIB);
  CHECK(own(&now) == 60 * MIB);
}

static void
what_it_wrote_to_is_own(void)
{
  struct anonymous now = born();

  now.shared -= 80 * MIB;
  now.proportional += 60 * MIB;
  now.faults += PAGES(80 * MIB);
  CHECK(own(&now) == 80 * MIB);
  now.shared = 0;
  now.proportional = 200 * MIB;
  CHECK(own(&now) == 80 * MIB);
}

static void
all_of_it_is_own_that_was_written_to_at_once(void)
{
  struct anonymous now = born();

  now.shared = 1 * MIB;
  now.proportional = 200 * MIB;
  now.faults += PAGES(210 * MIB);
  CHECK(own(&now) >= 199 * MIB);
}

static void
what_it_wrote_to_before_the_first_look_is_own(void)
{
  const struct anonymous now = {.resident = 200 * MIB,
                                .proportional = 120 * MIB,
                                .shared = 120 * MIB,
                                .largest = 200 * MIB,
                                .faults = PAGES(80 * MIB),
                                .processes = 1};

  inheritance_begin(&of, 200 * MIB);
  CHECK(inheritance_lost_at_most(&of, &now) == 80 * MIB);
  CHECK(own(&now) == 80 * MIB);
}

static void
what_it_gave_up_is_no_inheritance_any_more(void)
{
  struct anonymous now = born();

  now.shared = 0;
  now.resident = now.largest = now.proportional = 1 * MIB;
  CHECK(own(&now) == 0);
  now.resident = now.largest = now.proportional = 151 * MIB;
  now.faults += PAGES(150 * MIB);
  CHECK(own(&now) >= 149 * MIB);
}

static void
its_own_fork_takes_nothing_off_and_its_end_adds_nothing(void)
{
  struct anonymous now = born();

  now.resident = now.largest = 260 * MIB;
  now.proportional = 110 * MIB;
  now.faults += PAGES(60 * MIB);
  CHECK(own(&now) == 60 * MIB);
  now.shared = 260 * MIB;
  now.proportional = 80 * MIB;
  CHECK(own(&now) == 60 * MIB);
  now.shared = 200 * MIB;
  now.proportional = 110 * MIB;
  CHECK(own(&now) == 60 * MIB);
}

static void
the_end_of_its_own_children_makes_nothing_own(void)
{
  struct anonymous now = born();

  now.processes = 4;
  now.resident = now.shared = 800 * MIB;
  now.proportional = 100 * MIB;
  CHECK(own(&now) == 0);
  now.shared = now.resident = now.proportional = 800 * MIB; /* nobody else has it any more */
  now.proportional = 200 * MIB;
  CHECK(own(&now) == 0);
  now.processes = 1;
  now.resident = now.proportional = 200 * MIB;
  now.shared = 0;
  CHECK(own(&now) == 0);
}

static void
who_inherited_nothing_has_all_of_it_by_itself(void)
{
  const struct anonymous now = {
      .resident = 300 * MIB, .proportional = 150 * MIB, .shared = 200 * MIB, .largest = 120 * MIB, .processes = 3};

  inheritance_begin(&of, 0);
  CHECK(own(&now) == 150 * MIB);
}

static void
what_may_have_been_lost_is_told_without_a_look_at_what_is_shared(void)
{
  struct anonymous now = born();

  CHECK(inheritance_lost_at_most(&of, &now) == 0);
  now.faults += PAGES(10 * MIB);
  CHECK(inheritance_lost_at_most(&of, &now) == 10 * MIB);
  now.faults += PAGES(4096 * MIB);
  CHECK(inheritance_lost_at_most(&of, &now) == 200 * MIB);
}

int
main(void)
{
  RUN(what_is_inherited_is_not_own);
  RUN(the_end_of_all_others_makes_nothing_own);
  RUN(the_end_of_others_in_the_midst_of_work_makes_nothing_own);
  RUN(new_memory_is_own_whoever_has_the_rest);
  RUN(others_that_ended_before_it_grew_are_not_taken_for_its_own_writes);
  RUN(what_it_wrote_to_is_own);
  RUN(all_of_it_is_own_that_was_written_to_at_once);
  RUN(what_it_wrote_to_before_the_first_look_is_own);
  RUN(what_it_gave_up_is_no_inheritance_any_more);
  RUN(its_own_fork_takes_nothing_off_and_its_end_adds_nothing);
  RUN(the_end_of_its_own_children_makes_nothing_own);
  RUN(who_inherited_nothing_has_all_of_it_by_itself);
  RUN(what_may_have_been_lost_is_told_without_a_look_at_what_is_shared);
  return tap_end();
}
