/* SPDX-License-Identifier: Apache-2.0
 * Rejected: the proportional share alone, which grows when others end; private pages alone, of which the fork's own parked
 * twin makes shared ones; a bit in each page table entry (soft-dirty, userfaultfd), which costs a fork its speed. */
#include "inheritance.h"

#include <unistd.h>

/* Of what was shared, what may be so still between threads of a tree that has it alone. */
#define ALONE_SHARE 16

static uint64_t
less(uint64_t one, uint64_t other)
{
  return one < other ? one : other;
}

/* How much more `one` is. */
static uint64_t
beyond(uint64_t one, uint64_t other)
{
  return one > other ? one - other : 0;
}

void
inheritance_begin(struct inheritance *inheritance, uint64_t bytes)
{
  *inheritance = (struct inheritance){.bytes = bytes, .shared = bytes, .resident = bytes};
}

/* A write to a shared page copies one page a fault, since a huge page is split before. Other faults are for new memory. */
static uint64_t
copied(const struct inheritance *before, const struct anonymous *now)
{
  uint64_t touched = beyond(now->faults, before->faults) * (uint64_t)sysconf(_SC_PAGESIZE);

  return beyond(touched, beyond(now->resident, before->resident));
}

/* With several processes the end of one looks the same. */
static uint64_t
unmapped(const struct inheritance *before, const struct anonymous *now)
{
  return before->processes == 1 && now->processes == 1 ? beyond(before->resident, now->resident) : 0;
}

uint64_t
inheritance_lost_at_most(const struct inheritance *inheritance, const struct anonymous *now)
{
  return less(copied(inheritance, now) + unmapped(inheritance, now), inheritance->bytes);
}

/* What is shared beyond the inheritance is the tree's own, and counts as given up first. Where next to nothing is shared any
 * more, either all of it was written to, by about as many faults, or the last of the others ended, whatever this tree did
 * meanwhile. */
void
inheritance_update(struct inheritance *inheritance, const struct anonymous *now)
{
  uint64_t fewer = beyond(less(inheritance->bytes, inheritance->shared), now->shared);
  uint64_t written = copied(inheritance, now);

  if (now->shared < inheritance->shared / ALONE_SHARE && (written < fewer - fewer / 8 || written > 2 * fewer))
    written = 0;
  inheritance->bytes -= less(fewer, written + unmapped(inheritance, now));
  inheritance->shared = now->shared;
  inheritance->resident = now->resident;
  inheritance->faults = now->faults;
  inheritance->processes = now->processes;
}

/* Three ways to count no page twice and nothing inherited: whichever finds most. Private pages are inherited only as far as
 * the inheritance is not among the shared ones. */
uint64_t
inheritance_own(const struct inheritance *inheritance, const struct anonymous *now)
{
  uint64_t inherited = inheritance->bytes, most = beyond(now->proportional, inherited);
  uint64_t private = beyond(now->resident, now->shared), alone = beyond(inherited, now->shared);

  if (most < beyond(now->largest, inherited))
    most = beyond(now->largest, inherited);
  if (most < beyond(private, alone))
    most = beyond(private, alone);
  return most;
}
