/* SPDX-License-Identifier: Apache-2.0
 * What every fuzzer includes. */
#ifndef RAMET_FUZZ_H
#define RAMET_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Unlike assert() it stays in every build. */
#define EXPECT(condition)                                                                                          \
  do {                                                                                                             \
    if (!(condition)) {                                                                                            \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                               \
      abort();                                                                                                     \
    }                                                                                                              \
  } while (0)

#endif
