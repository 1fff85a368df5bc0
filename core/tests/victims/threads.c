/* SPDX-License-Identifier: Apache-2.0
 * Threads: numbers, names, local storage, and what they hold or wait for. */
#include "victim.h"

#include <linux/rseq.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/prctl.h>
#include <sys/rseq.h>

#define MANY 32

static pthread_barrier_t here, onward;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static __thread int64_t local = -1;

static void
open_barriers(unsigned threads)
{
  pthread_barrier_init(&here, NULL, threads + 1);
  pthread_barrier_init(&onward, NULL, threads + 1);
}

static void
meet(void)
{
  pthread_barrier_wait(&here);
  ready();
  await_go();
  pthread_barrier_wait(&onward);
}

static void *
remember(void *argument)
{
  intptr_t number = (intptr_t)argument;
  char name[16], now[16];
  pid_t tid = gettid();

  local = number * 1000 + 7;
  snprintf(name, sizeof name, "worker-%ld", (long)number);
  NEED(pthread_setname_np(pthread_self(), name) == 0);
  pthread_barrier_wait(&here);
  pthread_barrier_wait(&onward);
  CHECK(syscall(SYS_gettid) == tid, "thread %ld was %d and is %ld", (long)number, tid, syscall(SYS_gettid));
  CHECK(local == number * 1000 + 7, "thread %ld has %ld in its storage", (long)number, (long)local);
  prctl(PR_GET_NAME, now);
  CHECK(strcmp(now, name) == 0, "thread %ld is called %s", (long)number, now);
  return argument;
}

VICTIM(many, "32 threads, each with its number, name, storage and result")
{
  pthread_t threads[MANY];

  open_barriers(MANY);
  for (intptr_t i = 0; i < MANY; i++)
    start(&threads[i], remember, (void *)i);
  meet();
  for (intptr_t i = 0; i < MANY; i++) {
    void *result;
    pthread_join(threads[i], &result);
    CHECK(result == (void *)i, "thread %ld returned %p", (long)i, result);
  }
  /* Threads can still be made, and their numbers are nobody's. */
  pthread_barrier_init(&here, NULL, 1);
  pthread_barrier_init(&onward, NULL, 1);
  start(&threads[0], remember, (void *)99);
  pthread_join(threads[0], NULL);
}

static void *
hold(void *ignored)
{
  (void)ignored;
  pthread_mutex_lock(&mutex);
  local = 1;
  pthread_barrier_wait(&here);
  pthread_barrier_wait(&onward);
  CHECK(pthread_mutex_trylock(&mutex) == EBUSY, "the mutex that is held is free");
  pthread_mutex_unlock(&mutex);
  return NULL;
}

static void *
want(void *ignored)
{
  (void)ignored;
  pthread_mutex_lock(&mutex);
  local++;
  pthread_mutex_unlock(&mutex);
  return NULL;
}

VICTIM(mutex_held, "a mutex that one thread holds and eight wait for")
{
  pthread_t holder, wanting[8];

  open_barriers(1);
  start(&holder, hold, NULL);
  pthread_barrier_wait(&here);
  for (int i = 0; i < 8; i++)
    start(&wanting[i], want, NULL);
  ready();
  await_go();
  pthread_barrier_wait(&onward);
  for (int i = 0; i < 8; i++)
    pthread_join(wanting[i], NULL);
  pthread_join(holder, NULL);
}

static int count, woken;

static void *
wait_for_condition(void *ignored)
{
  (void)ignored;
  pthread_mutex_lock(&mutex);
  while (count == 0)
    pthread_cond_wait(&condition, &mutex);
  woken++;
  pthread_mutex_unlock(&mutex);
  return NULL;
}

static void *
wait_for_condition_an_hour(void *ignored)
{
  struct timespec until;

  (void)ignored;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 3600;
  pthread_mutex_lock(&mutex);
  while (count == 0)
    CHECK(pthread_cond_timedwait(&condition, &mutex, &until) == 0, "a wait of an hour is over");
  woken++;
  pthread_mutex_unlock(&mutex);
  return NULL;
}

VICTIM(condition, "a condition that eight threads wait for, four of them with a timeout")
{
  pthread_t threads[8];

  for (int i = 0; i < 8; i++)
    start(&threads[i], i % 2 ? wait_for_condition : wait_for_condition_an_hour, NULL);
  ready();
  await_go();
  pthread_mutex_lock(&mutex);
  count = 1;
  pthread_cond_broadcast(&condition);
  pthread_mutex_unlock(&mutex);
  for (int i = 0; i < 8; i++)
    pthread_join(threads[i], NULL);
  CHECK(woken == 8, "%d woke up", woken);
}

static pthread_mutex_t robust;

static void *
die_with_mutex(void *ignored)
{
  (void)ignored;
  pthread_mutex_lock(&robust);
  pthread_barrier_wait(&here);
  pthread_barrier_wait(&onward);
  return NULL;
}

VICTIM(robust, "a robust mutex whose owner ends after the fork")
{
  pthread_t thread;
  pthread_mutexattr_t attributes;

  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&robust, &attributes);
  open_barriers(1);
  start(&thread, die_with_mutex, NULL);
  meet();
  int result = pthread_mutex_lock(&robust);
  CHECK(result == EOWNERDEAD, "the lock says %s", strerror(result));
  pthread_join(thread, NULL);
}

static pthread_mutex_t inheriting;

static void *
hold_inheriting(void *ignored)
{
  (void)ignored;
  pthread_mutex_lock(&inheriting);
  pthread_barrier_wait(&here);
  pthread_barrier_wait(&onward);
  pthread_mutex_unlock(&inheriting);
  return NULL;
}

static void *
want_inheriting(void *ignored)
{
  (void)ignored;
  int result = pthread_mutex_lock(&inheriting);
  CHECK(result == 0, "the lock says %s", strerror(result));
  pthread_mutex_unlock(&inheriting);
  return NULL;
}

VICTIM(priority_inheritance, "a mutex with priority inheritance, which the kernel keeps a state of")
{
  pthread_t holder, wanting[4];
  pthread_mutexattr_t attributes;

  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
  pthread_mutex_init(&inheriting, &attributes);
  open_barriers(1);
  start(&holder, hold_inheriting, NULL);
  pthread_barrier_wait(&here);
  for (int i = 0; i < 4; i++)
    start(&wanting[i], want_inheriting, NULL);
  ready();
  await_go();
  pthread_barrier_wait(&onward);
  for (int i = 0; i < 4; i++)
    pthread_join(wanting[i], NULL);
  pthread_join(holder, NULL);
}

static sem_t semaphore;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static volatile int written;

static void *
read_shared(void *ignored)
{
  (void)ignored;
  while (sem_wait(&semaphore) != 0)
    continue;
  pthread_rwlock_rdlock(&rwlock);
  CHECK(written == 1, "read before it was written");
  pthread_rwlock_unlock(&rwlock);
  return NULL;
}

VICTIM(semaphore, "a semaphore and a lock for writing")
{
  pthread_t threads[4];

  sem_init(&semaphore, 0, 0);
  pthread_rwlock_wrlock(&rwlock);
  for (int i = 0; i < 4; i++)
    start(&threads[i], read_shared, NULL);
  ready();
  await_go();
  for (int i = 0; i < 4; i++)
    sem_post(&semaphore);
  written = 1;
  pthread_rwlock_unlock(&rwlock);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
}

/* The kernel writes the processor's number into the area at every return to the program, if it knows of it. */
static void
check_rseq(void)
{
  volatile struct rseq *area = (struct rseq *)(void *)((char *)__builtin_thread_pointer() + __rseq_offset);
  cpu_set_t all, one;

  sched_getaffinity(0, sizeof all, &all);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &all))
      continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    NEED(sched_setaffinity(0, sizeof one, &one) == 0);
    CHECK((int)area->cpu_id == cpu, "on processor %d the area says %d", cpu, (int)area->cpu_id);
  }
  sched_setaffinity(0, sizeof all, &all);
}

static void *
check_rseq_in_thread(void *ignored)
{
  (void)ignored;
  pthread_barrier_wait(&here);
  pthread_barrier_wait(&onward);
  check_rseq();
  return NULL;
}

VICTIM(rseq, "restartable sequences, registered by each thread")
{
  pthread_t thread;

  if (__rseq_size == 0)
    MISSING("rseq");
  open_barriers(1);
  start(&thread, check_rseq_in_thread, NULL);
  meet();
  check_rseq();
  pthread_join(thread, NULL);
}

/* Threads come and go the whole time, but not as fast as the processor can: what is freed behind an ended thread waits
 * for the kernel's own threads, which get less time the more sessions are busy, and ten members that make threads as
 * fast as they can stop the whole machine for seconds at a time. */
static int stop, made;

static void
breathe(void)
{
  nanosleep(&(struct timespec){0, 200000}, NULL);
}

static void *
add_one(void *ignored)
{
  (void)ignored;
  __atomic_fetch_add(&made, 1, __ATOMIC_SEQ_CST);
  return NULL;
}

static void *
make_threads(void *ignored)
{
  intptr_t own = 0;

  (void)ignored;
  for (; !__atomic_load_n(&stop, __ATOMIC_SEQ_CST); own++) {
    pthread_t thread;
    start(&thread, add_one, NULL);
    pthread_join(thread, NULL);
    breathe();
  }
  return (void *)own;
}

VICTIM(churn, "threads that come and go while it is frozen")
{
  pthread_t makers[3];
  intptr_t sum = 0;

  for (int i = 0; i < 3; i++)
    start(&makers[i], make_threads, NULL);
  ready();
  await_go();
  __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
  for (int i = 0; i < 3; i++) {
    void *own;
    pthread_join(makers[i], &own);
    sum += (intptr_t)own;
  }
  CHECK(sum == made, "%ld were started, %d ran", (long)sum, made);
}

/* Its threads never join: they end by themselves, detached, also in the middle of being frozen. */
static void *
end_at_once(void *ignored)
{
  (void)ignored;
  __atomic_fetch_add(&made, 1, __ATOMIC_SEQ_CST);
  return NULL;
}

VICTIM(detached_churn, "detached threads that end while it is frozen")
{
  pthread_t thread;
  pthread_attr_t detached;
  int started = 0;

  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  fcntl(0, F_SETFL, O_NONBLOCK);
  ready();
  for (char c = 0; read(0, &c, 1) != 1;) {
    if (pthread_create(&thread, &detached, end_at_once, NULL) == 0)
      started++;
    if (started % 4 == 0)
      breathe();
    while (started - __atomic_load_n(&made, __ATOMIC_SEQ_CST) > 8)
      sched_yield();
  }
  while (__atomic_load_n(&made, __ATOMIC_SEQ_CST) != started)
    sched_yield();
}
