/* SPDX-License-Identifier: Apache-2.0
 * System calls of the restorer: there is no libc where it runs. Results are the kernel's: negative errno. */
#ifndef RAMET_PIE_SYS_H
#define RAMET_PIE_SYS_H

#include <stdint.h>
#include <sys/syscall.h>

#define PIE_CODE __attribute__((section("ramet_restorer")))
#define PIE_INLINE static inline __attribute__((always_inline))

PIE_INLINE long
sys6(long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
  long result;
  register uint64_t r10 __asm__("r10") = d;
  register uint64_t r8 __asm__("r8") = e;
  register uint64_t r9 __asm__("r9") = f;

  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}

#define SYS0(n) sys6(n, 0, 0, 0, 0, 0, 0)
#define SYS1(n, a) sys6(n, (uint64_t)(a), 0, 0, 0, 0, 0)
#define SYS2(n, a, b) sys6(n, (uint64_t)(a), (uint64_t)(b), 0, 0, 0, 0)
#define SYS3(n, a, b, c) sys6(n, (uint64_t)(a), (uint64_t)(b), (uint64_t)(c), 0, 0, 0)
#define SYS4(n, a, b, c, d) sys6(n, (uint64_t)(a), (uint64_t)(b), (uint64_t)(c), (uint64_t)(d), 0, 0)
#define SYS5(n, a, b, c, d, e) sys6(n, (uint64_t)(a), (uint64_t)(b), (uint64_t)(c), (uint64_t)(d), (uint64_t)(e), 0)
#define SYS6(n, a, b, c, d, e, f)                                                                                  \
  sys6(n, (uint64_t)(a), (uint64_t)(b), (uint64_t)(c), (uint64_t)(d), (uint64_t)(e), (uint64_t)(f))

#endif
