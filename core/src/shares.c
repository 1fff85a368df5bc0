/* SPDX-License-Identifier: Apache-2.0 */
#include "shares.h"

static int
largest_of(const uint64_t *amounts, int count)
{
  int largest = 0;

  for (int i = 1; i < count; i++)
    if (amounts[i] > amounts[largest])
      largest = i;
  return largest;
}

int
shares_exceeded(uint64_t *amounts, int count, uint64_t whole, int *out, int most)
{
  uint64_t sum = 0;
  int found = 0;

  for (int i = 0; i < count; i++)
    sum += amounts[i];
  while (count > 0 && found < most && sum > SHARES_ALL(whole)) {
    int largest = largest_of(amounts, count);
    if (amounts[largest] <= SHARES_LEAST(whole))
      break;
    sum -= amounts[largest];
    amounts[largest] = 0;
    out[found++] = largest;
  }
  return found;
}

bool
shares_has_much(uint64_t amount, uint64_t largest)
{
  return amount > 0 && amount >= largest - largest / 2;
}
