/* SPDX-License-Identifier: Apache-2.0
 * Who gives back what the kernel counts for the user outside and bounds for nobody inside: when sandboxes have more than half
 * of it together, the one that has most, and so on until they have not. Nobody who has no more than a sixteenth: then it is many
 * who share it, and to take it from one would help nobody. So whoever has no more than an equal part of that half keeps it,
 * whatever others do. */
#ifndef RAMET_SHARES_H
#define RAMET_SHARES_H

#include <stdbool.h>
#include <stdint.h>

/* Of the whole. */
#define SHARES_ALL(whole) ((whole) / 2)
#define SHARES_LEAST(whole) ((whole) / 16)

/* Notes in `out`, `most` at most, the places of those who are to give, and returns how many. Of those it sets to 0 what they
 * have. */
int shares_exceeded(uint64_t *amounts, int count, uint64_t whole, int *out, int most);

/* Of a process in a sandbox that is to give: whether it does. As much as half of what the largest has, so that it is neither
 * one of many equal ones each time nor everybody. */
bool shares_has_much(uint64_t amount, uint64_t largest);

#endif
