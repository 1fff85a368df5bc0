/* SPDX-License-Identifier: Apache-2.0
 * AddressSanitizer keeps a shadow of each stack. A vforked child runs on a stack of ours with the parent's shadow:
 * it must be told, and what the child left marked when it called exec must be wiped. Nothing in other builds. */
#ifndef RAMET_SANITIZE_H
#define RAMET_SANITIZE_H

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZE_STACKS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZE_STACKS 1
#endif
#endif

#ifdef SANITIZE_STACKS
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

static const void *stack_parent;
static size_t stack_parent_size;
static void *stack_parent_fake;
#endif

/* The parent, before the clone. */
static inline void
stack_lend(void *stack, size_t size)
{
#ifdef SANITIZE_STACKS
  __asan_unpoison_memory_region(stack, size);
  stack_parent = NULL;
  __sanitizer_start_switch_fiber(&stack_parent_fake, stack, size);
#else
  (void)stack;
  (void)size;
#endif
}

/* The child, first of all. */
static inline void
stack_enter(void)
{
#ifdef SANITIZE_STACKS
  __sanitizer_finish_switch_fiber(NULL, &stack_parent, &stack_parent_size);
#endif
}

/* The parent, when it goes on. */
static inline void
stack_return(void)
{
#ifdef SANITIZE_STACKS
  if (stack_parent)
    __sanitizer_start_switch_fiber(NULL, stack_parent, stack_parent_size);
  __sanitizer_finish_switch_fiber(stack_parent_fake, NULL, NULL);
#endif
}

#endif
