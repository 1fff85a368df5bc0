/* SPDX-License-Identifier: Apache-2.0
 * The processor's registers, frozen in code that makes no system call: a second thread waits for the word. */
#include "victim.h"

#include <cpuid.h>
#include <immintrin.h>
#include <stdatomic.h>

#define LANES 8

static atomic_int going;

static void *
wait_for_go(void *ignored)
{
  (void)ignored;
  await_go();
  atomic_store(&going, 1);
  return NULL;
}

static void
watch(void)
{
  pthread_t thread;

  start(&thread, wait_for_go, NULL);
}

VICTIM(general, "all general registers and the flags, in a loop without system calls")
{
  /* rsp and rbp stay the compiler's; rdi points to the flag that ends the loop, r15 to the results. */
  static uint64_t out[14];

  watch();
  ready();
  __asm__ volatile("mov $0x0101010101010101, %%rax\n\t"
                   "mov $0x0202020202020202, %%rbx\n\t"
                   "mov $0x0303030303030303, %%rcx\n\t"
                   "mov $0x0404040404040404, %%rdx\n\t"
                   "mov $0x0505050505050505, %%rsi\n\t"
                   "mov $0x0808080808080808, %%r8\n\t"
                   "mov $0x0909090909090909, %%r9\n\t"
                   "mov $0x1010101010101010, %%r10\n\t"
                   "mov $0x1111111111111111, %%r11\n\t"
                   "mov $0x1212121212121212, %%r12\n\t"
                   "mov $0x1313131313131313, %%r13\n\t"
                   "mov $0x1414141414141414, %%r14\n\t"
                   "sub $128, %%rsp\n\t" /* the compiler's red zone */
                   "std\n\t"             /* direction */
                   "cmp %%eax, %%eax\n\t" /* zero, parity */
                   "stc\n"               /* carry */
                   "1:\n\t"
                   "pushfq\n\t"
                   "pause\n\t"
                   "cmpl $0, (%[going])\n\t"
                   "jne 2f\n\t"
                   "popfq\n\t"
                   "jmp 1b\n"
                   "2:\n\t"
                   "mov %%rax, 0(%[out])\n\t"
                   "mov %%rbx, 8(%[out])\n\t"
                   "mov %%rcx, 16(%[out])\n\t"
                   "mov %%rdx, 24(%[out])\n\t"
                   "mov %%rsi, 32(%[out])\n\t"
                   "mov %%r8, 40(%[out])\n\t"
                   "mov %%r9, 48(%[out])\n\t"
                   "mov %%r10, 56(%[out])\n\t"
                   "mov %%r11, 64(%[out])\n\t"
                   "mov %%r12, 72(%[out])\n\t"
                   "mov %%r13, 80(%[out])\n\t"
                   "mov %%r14, 88(%[out])\n\t"
                   "popq %%rax\n\t"
                   "mov %%rax, 96(%[out])\n\t"
                   "add $128, %%rsp\n\t"
                   "cld"
                   :
                   : [going] "D"(&going), [out] "r"(out)
                   : "rax", "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "memory",
                     "cc");
  static const uint64_t digits[12] = {1, 2, 3, 4, 5, 8, 9, 0x10, 0x11, 0x12, 0x13, 0x14};
  for (int i = 0; i < 12; i++)
    CHECK(out[i] == digits[i] * 0x0101010101010101u, "register %d is %#lx", i, out[i]);
  CHECK((out[12] & 0x445) == 0x445, "flags are %#lx", out[12]);
}

VICTIM(callee_saved, "the registers that a function keeps, across a call that blocks")
{
  uint64_t b, c, d, e;

  ready();
  __asm__ volatile("mov $0xb1, %%rbx\n\tmov $0xc1, %%r12\n\tmov $0xd1, %%r13\n\tmov $0xe1, %%r14\n"
                   "1:\n\t"
                   "mov $0, %%edi\n\tlea -256(%%rsp), %%rsi\n\tmov $1, %%edx\n\tmov %[read], %%eax\n\tsyscall\n\t"
                   "cmp $1, %%rax\n\tjne 2f\n\tcmpb $10, -256(%%rsp)\n\tjne 1b\n"
                   "2:\n\tmov %%rbx, %[b]\n\tmov %%r12, %[c]\n\tmov %%r13, %[d]\n\tmov %%r14, %[e]"
                   : [b] "=m"(b), [c] "=m"(c), [d] "=m"(d), [e] "=m"(e)
                   : [read] "i"(SYS_read)
                   : "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r11", "r12", "r13", "r14", "memory", "cc");
  CHECK(b == 0xb1 && c == 0xc1 && d == 0xd1 && e == 0xe1, "%#lx %#lx %#lx %#lx", b, c, d, e);
}

VICTIM(segment_bases, "the bases of fs and gs")
{
  uint64_t fs, gs, fs_after, gs_after;
  static uint64_t place[4] = {0, 0x6773};

  NEED(syscall(SYS_arch_prctl, 0x1001 /* ARCH_SET_GS */, place) == 0);
  NEED(syscall(SYS_arch_prctl, 0x1003 /* ARCH_GET_FS */, &fs) == 0);
  NEED(syscall(SYS_arch_prctl, 0x1004 /* ARCH_GET_GS */, &gs) == 0);
  ready();
  await_go();
  syscall(SYS_arch_prctl, 0x1003, &fs_after);
  syscall(SYS_arch_prctl, 0x1004, &gs_after);
  uint64_t through;
  __asm__("mov %%gs:8, %0" : "=r"(through));
  CHECK(fs == fs_after && gs == gs_after && through == 0x6773, "fs %#lx gs %#lx", fs_after, gs_after);
}

VICTIM(x87, "the x87 stack, its control word and its rounding")
{
  uint16_t control = 0x0c7f, control_after; /* round toward zero, double extended is 0x03 */
  long double pi, e;

  watch();
  __asm__ volatile("fninit\n\tfldcw %0\n\tfldpi\n\tfldl2e" ::"m"(control));
  ready();
  while (!atomic_load_explicit(&going, memory_order_relaxed))
    __asm__ volatile("pause");
  __asm__ volatile("fstpt %0\n\tfstpt %1\n\tfnstcw %2" : "=m"(e), "=m"(pi), "=m"(control_after));
  __asm__ volatile("fninit");
  CHECK(control == control_after, "control word %#x", control_after);
  CHECK(pi > 3.14159265358979L && pi < 3.14159265358980L, "pi is %Lf", pi);
  CHECK(e > 1.4426950408889L && e < 1.4426950408890L, "log2 e is %Lf", e);
}

VICTIM(mxcsr, "the control and status register of SSE")
{
  uint32_t set = 0x1fc1 | 0x6000, after; /* flush to zero off, round to zero, an old exception flag */

  _mm_setcsr(set);
  ready();
  await_go();
  after = _mm_getcsr();
  _mm_setcsr(0x1f80);
  CHECK(after == set, "mxcsr is %#x", after);
}

/* Fills registers of `bytes` bytes with known numbers, waits inside one asm block, compares. */
#define VECTORS(type, LOAD, STORE)                                                                                 \
  static type in[LANES], out[LANES];                                                                               \
  for (size_t i = 0; i < sizeof in; i++)                                                                           \
    ((uint8_t *)in)[i] = (uint8_t)(i * 37 + 11);                                                                   \
  watch();                                                                                                         \
  ready();                                                                                                         \
  __asm__ volatile(LOAD "1:\n\tpause\n\tcmpl $0, (%[going])\n\tje 1b\n\t" STORE                                    \
                   :                                                                                               \
                   : [going] "r"(&going), [in] "r"(in), [out] "r"(out)                                             \
                   : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7");              \
  for (size_t i = 0; i < sizeof in; i++)                                                                           \
  CHECK(((uint8_t *)in)[i] == ((uint8_t *)out)[i], "byte %zu of the registers", i)

VICTIM(sse, "the 128-bit registers")
{
  VECTORS(__m128i,
          "movdqa (%[in]), %%xmm0\n\tmovdqa 16(%[in]), %%xmm1\n\tmovdqa 32(%[in]), %%xmm2\n\t"
          "movdqa 48(%[in]), %%xmm3\n\tmovdqa 64(%[in]), %%xmm4\n\tmovdqa 80(%[in]), %%xmm5\n\t"
          "movdqa 96(%[in]), %%xmm6\n\tmovdqa 112(%[in]), %%xmm7\n",
          "movdqa %%xmm0, (%[out])\n\tmovdqa %%xmm1, 16(%[out])\n\tmovdqa %%xmm2, 32(%[out])\n\t"
          "movdqa %%xmm3, 48(%[out])\n\tmovdqa %%xmm4, 64(%[out])\n\tmovdqa %%xmm5, 80(%[out])\n\t"
          "movdqa %%xmm6, 96(%[out])\n\tmovdqa %%xmm7, 112(%[out])");
}

__attribute__((target("avx"))) static void
hold_avx(void)
{
  VECTORS(__m256i,
          "vmovdqa (%[in]), %%ymm0\n\tvmovdqa 32(%[in]), %%ymm1\n\tvmovdqa 64(%[in]), %%ymm2\n\t"
          "vmovdqa 96(%[in]), %%ymm3\n\tvmovdqa 128(%[in]), %%ymm4\n\tvmovdqa 160(%[in]), %%ymm5\n\t"
          "vmovdqa 192(%[in]), %%ymm6\n\tvmovdqa 224(%[in]), %%ymm7\n",
          "vmovdqa %%ymm0, (%[out])\n\tvmovdqa %%ymm1, 32(%[out])\n\tvmovdqa %%ymm2, 64(%[out])\n\t"
          "vmovdqa %%ymm3, 96(%[out])\n\tvmovdqa %%ymm4, 128(%[out])\n\tvmovdqa %%ymm5, 160(%[out])\n\t"
          "vmovdqa %%ymm6, 192(%[out])\n\tvmovdqa %%ymm7, 224(%[out])");
}

VICTIM(avx, "the 256-bit registers")
{
  if (!__builtin_cpu_supports("avx"))
    MISSING("AVX");
  hold_avx();
}

/* The upper sixteen registers and the masks are components of their own. */
__attribute__((target("avx512f,avx512bw"))) static void
hold_avx512(void)
{
  uint64_t mask_in = 0x0123456789abcdef, mask_out;

  __asm__ volatile("kmovq %0, %%k3" ::"r"(mask_in));
  VECTORS(__m512i,
          "vmovdqa64 (%[in]), %%zmm0\n\tvmovdqa64 64(%[in]), %%zmm1\n\tvmovdqa64 128(%[in]), %%zmm2\n\t"
          "vmovdqa64 192(%[in]), %%zmm3\n\tvmovdqa64 256(%[in]), %%zmm16\n\tvmovdqa64 320(%[in]), %%zmm20\n\t"
          "vmovdqa64 384(%[in]), %%zmm30\n\tvmovdqa64 448(%[in]), %%zmm31\n",
          "vmovdqa64 %%zmm0, (%[out])\n\tvmovdqa64 %%zmm1, 64(%[out])\n\tvmovdqa64 %%zmm2, 128(%[out])\n\t"
          "vmovdqa64 %%zmm3, 192(%[out])\n\tvmovdqa64 %%zmm16, 256(%[out])\n\tvmovdqa64 %%zmm20, 320(%[out])\n\t"
          "vmovdqa64 %%zmm30, 384(%[out])\n\tvmovdqa64 %%zmm31, 448(%[out])");
  __asm__ volatile("kmovq %%k3, %0" : "=r"(mask_out));
  CHECK(mask_in == mask_out, "mask register is %#lx", mask_out);
}

VICTIM(avx512, "the 512-bit registers and the masks")
{
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw"))
    MISSING("AVX-512");
  hold_avx512();
}

/* Tiles take 8 KiB, and a process must ask for them (Documentation/arch/x86/xstate.rst). */
__attribute__((target("amx-tile"))) static void
hold_tiles(void)
{
  static uint8_t config[64] __attribute__((aligned(64))) = {[0] = 1, [16] = 64, [18] = 64, [48] = 16, [49] = 16};
  static uint8_t in[2][1024], out[2][1024];

  for (size_t i = 0; i < sizeof in; i++)
    ((uint8_t *)in)[i] = (uint8_t)(i * 31 + 7);
  _tile_loadconfig(config);
  _tile_loadd(0, in[0], 64);
  _tile_loadd(1, in[1], 64);
  watch();
  ready();
  while (!atomic_load_explicit(&going, memory_order_relaxed))
    __asm__ volatile("pause");
  _tile_stored(0, out[0], 64);
  _tile_stored(1, out[1], 64);
  _tile_release();
  CHECK(memcmp(in, out, sizeof in) == 0, "tiles");
}

VICTIM(amx, "the tiles of AMX, which a process has asked for")
{
  unsigned a, b, c, d;

  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & (1u << 24)) ||
      syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18) != 0)
    MISSING("AMX");
  hold_tiles();
}

/* Sixteen threads compute in vector registers the whole time; each knows the result. */
#define WORKERS 16

static _Atomic int64_t rounds[WORKERS];
static atomic_int stop_work, wrong;

__attribute__((target("avx2,fma"))) static void *
work(void *argument)
{
  intptr_t number = (intptr_t)argument;

  while (!atomic_load(&stop_work)) {
    __m256d sum = _mm256_setzero_pd(), step = _mm256_set1_pd((double)(number + 1));
    for (int i = 0; i < 4096; i++)
      sum = _mm256_fmadd_pd(step, _mm256_set1_pd(2.0), sum);
    double parts[4];
    _mm256_storeu_pd(parts, sum);
    for (int i = 0; i < 4; i++)
      if (parts[i] != 8192.0 * (double)(number + 1))
        atomic_store(&wrong, 1);
    atomic_fetch_add(&rounds[number], 1);
  }
  return NULL;
}

VICTIM(computing_threads, "sixteen threads that compute in vector registers")
{
  pthread_t threads[WORKERS];
  int64_t before[WORKERS];

  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
    MISSING("AVX2");
  for (intptr_t i = 0; i < WORKERS; i++)
    start(&threads[i], work, (void *)i);
  ready();
  await_go();
  for (int i = 0; i < WORKERS; i++)
    before[i] = atomic_load(&rounds[i]);
  for (int i = 0; i < WORKERS; i++)
    while (atomic_load(&rounds[i]) <= before[i] + 1)
      sched_yield();
  atomic_store(&stop_work, 1);
  for (int i = 0; i < WORKERS; i++)
    pthread_join(threads[i], NULL);
  CHECK(!atomic_load(&wrong), "a sum");
}
