/* SPDX-License-Identifier: Apache-2.0
 * POSIX timers: /proc/PID/timers tells what they are, the process itself how much time is left. */
#define _GNU_SOURCE
#include "capture_parts.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

/* A negative clock is one of a process or thread, whose number is in its upper bits (linux/posix-timers_types.h). */
#define CLOCK_KINDS 7
#define CLOCK_OF_THREAD 4
#define CLOCK_OF_DEVICE 3

/* As core sees it, to as the guest sees it; 0: there is no such thread any more. */
static int
inside(const struct capture *capture, int tid)
{
  char name[16];

  for (int i = 0; i < capture->thread_count; i++)
    if (capture->threads[i].tid == tid)
      return capture_tid_inside(tid, name);
  return 0;
}

static int
check_clock(struct capture *capture, const struct image_timer *timer, struct err *err)
{
  if (timer->clock >= 0)
    return 0;
  if ((timer->clock & CLOCK_KINDS) == CLOCK_OF_DEVICE)
    return capture_refuse(capture, err, "timer %d is of a device's clock", timer->id);
  /* Number 0 stands for the thread that made it, and which that was is told nowhere. */
  if (timer->clock & CLOCK_OF_THREAD && ~(timer->clock >> 3) == 0 && capture->thread_count > 1)
    return capture_refuse(capture, err, "timer %d is of the processor time of one of several threads", timer->id);
  return 0;
}

/* "ID: 0\nsignal: 14/0000000000000000\nnotify: signal/tid.57\nClockID: 1\n"; the numbers are for who reads. */
static int
parse_timer(struct capture *capture, const char *text, struct image_timer *timer, struct err *err)
{
  char how[16], whom[8];
  int tid;
  unsigned long long value;

  if (sscanf(text, "ID: %d signal: %u/%llx notify: %15[a-z]/%7[a-z].%d ClockID: %d", &timer->id, &timer->signal,
             &value, how, whom, &tid, &timer->clock) != 7)
    return capture_refuse(capture, err, "has a POSIX timer that /proc does not describe");
  timer->value = value;
  timer->notify = strcmp(how, "none") == 0 ? SIGEV_NONE : strcmp(how, "thread") == 0 ? SIGEV_THREAD : SIGEV_SIGNAL;
  if (strcmp(whom, "tid") == 0) {
    timer->thread = inside(capture, tid);
    /* Whom it should wake has ended: it wakes nobody. */
    timer->notify = timer->thread ? SIGEV_THREAD_ID : SIGEV_NONE;
  }
  if (timer->notify == SIGEV_NONE)
    timer->signal = 0;
  return check_clock(capture, timer, err);
}

static int
put_timer(struct capture *capture, const char *text, struct err *err)
{
  struct image_timer timer = {0};
  struct itimerspec spec;

  if (parse_timer(capture, text, &timer, err) < 0)
    return -1;
  const uint64_t args[6] = {(uint64_t)timer.id};
  if (capture_ask(capture, &capture->threads[0], SYS_timer_gettime, args, 1, &spec, sizeof spec, err) < 0)
    return -1;
  timer.interval[0] = (uint64_t)spec.it_interval.tv_sec;
  timer.interval[1] = (uint64_t)spec.it_interval.tv_nsec;
  timer.left[0] = (uint64_t)spec.it_value.tv_sec;
  timer.left[1] = (uint64_t)spec.it_value.tv_nsec;
  put_bytes(&capture->description, IMAGE_TAG_TIMER, &timer, sizeof timer);
  return 0;
}

static int
compare_timers(const void *a, const void *b)
{
  return atoi(*(char *const *)a + strlen("ID: ")) - atoi(*(char *const *)b + strlen("ID: "));
}

/* /proc tells them in no order: the image has them in that of their numbers. */
int
capture_timers(struct capture *capture, struct err *err)
{
  char path[48], *found[IMAGE_TIMERS_MAX];
  int count = 0, result = 0;

  snprintf(path, sizeof path, "/proc/%d/timers", capture->pid);
  cleanup_free char *text = procfs_read(path, NULL);
  if (!text)
    return err_step(err, RAMET_STEP_REGISTERS, "read %s: %s", path, strerror(errno));
  for (char *at = strstr(text, "ID: "); at; at = strstr(at + 1, "\nID: ")) {
    if (count == IMAGE_TIMERS_MAX)
      return capture_refuse(capture, err, "has more than %d POSIX timers", IMAGE_TIMERS_MAX);
    found[count++] = at + (*at == '\n');
  }
  qsort(found, (size_t)count, sizeof *found, compare_timers);
  for (int i = 0; result == 0 && i < count; i++)
    result = put_timer(capture, found[i], err);
  return result;
}
