/* SPDX-License-Identifier: Apache-2.0 */
#include "shares.h"

#include "tap.h"

#define WHOLE 1024
#define MOST 8

static int found[MOST];

static void
below_half_of_it_nobody_gives(void)
{
  uint64_t one[] = {512}, two[] = {400, 112};

  CHECK(shares_exceeded(one, 1, WHOLE, found, MOST) == 0);
  CHECK(shares_exceeded(two, 2, WHOLE, found, MOST) == 0);
  CHECK(shares_exceeded(NULL, 0, WHOLE, found, MOST) == 0);
}

static void
who_has_most_gives_first_and_no_more_than_must(void)
{
  uint64_t amounts[] = {200, 4301, 300, 0};

  CHECK(shares_exceeded(amounts, 4, WHOLE, found, MOST) == 1 && found[0] == 1);
  CHECK(amounts[0] == 200 && amounts[1] == 0 && amounts[2] == 300);
}

static void
who_has_an_equal_part_keeps_it_whatever_others_do(void)
{
  uint64_t amounts[] = {128, 900, 128, 5000, 128, 4000, 128};

  CHECK(shares_exceeded(amounts, 7, WHOLE, found, MOST) == 3);
  CHECK(amounts[0] == 128 && amounts[2] == 128 && amounts[4] == 128 && amounts[6] == 128);
}

static void
of_many_who_have_little_nobody_gives(void)
{
  uint64_t amounts[1000];

  for (int i = 0; i < 1000; i++)
    amounts[i] = 64;
  CHECK(shares_exceeded(amounts, 1000, WHOLE, found, MOST) == 0);
  amounts[7] = 65;
  CHECK(shares_exceeded(amounts, 1000, WHOLE, found, MOST) == 1 && found[0] == 7);
}

static void
no_more_are_named_than_there_is_room_for(void)
{
  uint64_t amounts[20];

  for (int i = 0; i < 20; i++)
    amounts[i] = 1000;
  CHECK(shares_exceeded(amounts, 20, WHOLE, found, 3) == 3);
}

static void
processes_with_half_of_the_largest_have_much(void)
{
  CHECK(shares_has_much(100, 100) && shares_has_much(50, 100) && !shares_has_much(49, 100));
  CHECK(shares_has_much(51, 101) && !shares_has_much(50, 101));
  CHECK(shares_has_much(1, 1) && !shares_has_much(0, 1) && !shares_has_much(0, 0));
}

int
main(void)
{
  RUN(below_half_of_it_nobody_gives);
  RUN(who_has_most_gives_first_and_no_more_than_must);
  RUN(who_has_an_equal_part_keeps_it_whatever_others_do);
  RUN(of_many_who_have_little_nobody_gives);
  RUN(no_more_are_named_than_there_is_room_for);
  RUN(processes_with_half_of_the_largest_have_much);
  return tap_end();
}
