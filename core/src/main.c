/* SPDX-License-Identifier: Apache-2.0
 * Picks the verb; each has a file of its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "cgroups.h"
#include "lend.h"
#include "probe.h"
#include "serve.h"
#include "title.h"
#include "totals.h"

static int
usage(const char *why)
{
  fprintf(
      stderr,
      "ramet-core: %s\n"
      "usage: ramet-core serve --control FD --uid-map MAP --gid-map MAP [--listen FD] [--runtime-dir FD]\n"
      "                        [--log FD] [--hold FD] [--newidmap DIR] [--grace-ms N] [--pool N] [--fault STEP]\n"
      "                        [--snapshot-memory BYTES] [--snapshot-ms MS] [--spill FD] [--attach-layers]\n"
      "                        [--memory-reserve BYTES] [--cgroups '1 NAME=FD...' or '2 dir=FD NAME...']\n"
      "                        [--disks MAJOR:MINOR,...] [--totals NAME=N,...]\n"
      "       ramet-core lend --socket FD [--idmap PID] -- PATH...\n"
      "       ramet-core probe\n"
      "       ramet-core version\n",
      why);
  return EXIT_USAGE;
}

static int
number(const char *text, long lowest, long highest, long *out)
{
  char *end;

  errno = 0;
  *out = strtol(text, &end, 10);
  return errno || end == text || *end || *out < lowest || *out > highest ? -1 : 0;
}

enum serve_flag {
  CONTROL = 256,
  LISTEN,
  RUNTIME_DIR,
  LOG,
  HOLD,
  UID_MAP,
  GID_MAP,
  NEWIDMAP,
  GRACE,
  POOL,
  FAULT,
  ATTACH_LAYERS,
  REPORT,
  SNAPSHOT_MEMORY,
  SNAPSHOT_MS,
  SPILL,
  MEMORY_RESERVE,
  CGROUPS,
  DISKS,
  TOTALS,
  BUILD,
};

static const struct option serve_long[] = {
    {"control", 1, 0, CONTROL},
    {"listen", 1, 0, LISTEN},
    {"runtime-dir", 1, 0, RUNTIME_DIR},
    {"log", 1, 0, LOG},
    {"hold", 1, 0, HOLD},
    {"uid-map", 1, 0, UID_MAP},
    {"gid-map", 1, 0, GID_MAP},
    {"newidmap", 1, 0, NEWIDMAP},
    {"grace-ms", 1, 0, GRACE},
    {"pool", 1, 0, POOL},
    {"fault", 1, 0, FAULT},
    {"attach-layers", 0, 0, ATTACH_LAYERS},
    {"report", 1, 0, REPORT},
    {"snapshot-memory", 1, 0, SNAPSHOT_MEMORY},
    {"snapshot-ms", 1, 0, SNAPSHOT_MS},
    {"spill", 1, 0, SPILL},
    {"memory-reserve", 1, 0, MEMORY_RESERVE},
    {"cgroups", 1, 0, CGROUPS},
    {"disks", 1, 0, DISKS},
    {"totals", 1, 0, TOTALS},
    {"build", 1, 0, BUILD},
    {0, 0, 0, 0},
};

static int
serve_option(int option, struct serve_options *options)
{
  long n = 0;

  switch (option) {
  case UID_MAP:
    options->uid_map = optarg;
    return 0;
  case GID_MAP:
    options->gid_map = optarg;
    return 0;
  case NEWIDMAP:
    options->newidmap = optarg;
    return 0;
  case BUILD:
    options->control.build = optarg;
    return 0;
  case GRACE:
    if (number(optarg, 0, 86400000, &n) < 0)
      return -1;
    options->control.grace_ns = (uint64_t)n * 1000000u;
    return 0;
  case POOL:
    if (number(optarg, 0, RAMET_POOL_MAX, &n) < 0)
      return -1;
    options->control.pool_size = (uint32_t)n;
    return 0;
  case FAULT:
    if (number(optarg, 0, 65535, &n) < 0)
      return -1;
    options->fault = (enum ramet_step)n;
    return 0;
  case SNAPSHOT_MEMORY:
    if (number(optarg, 1, LONG_MAX, &n) < 0)
      return -1;
    options->snapshot_memory = (uint64_t)n;
    return 0;
  case SNAPSHOT_MS:
    if (number(optarg, 1, 86400000, &n) < 0)
      return -1;
    options->snapshot_ms = (unsigned)n;
    return 0;
  case MEMORY_RESERVE:
    if (number(optarg, 1, LONG_MAX, &n) < 0)
      return -1;
    options->memory_reserve = (uint64_t)n;
    return 0;
  case CGROUPS:
    return cgroups_take(optarg);
  case DISKS:
    return cgroups_take_disks(optarg);
  case TOTALS:
    return totals_take(optarg);
  case ATTACH_LAYERS:
    options->attach_layers = true;
    return 0;
  default:
    break;
  }
  if (option < CONTROL || number(optarg, 0, 1 << 20, &n) < 0)
    return -1;
  /* Descriptors that were passed on purpose must not pass on to newuidmap. */
  if (fcntl((int)n, F_SETFD, FD_CLOEXEC) < 0)
    return -1;
  switch (option) {
  case CONTROL:
    options->control.connection = (int)n;
    return 0;
  case LISTEN:
    options->control.listener = (int)n;
    return 0;
  case RUNTIME_DIR:
    options->control.runtime_dir = (int)n;
    return 0;
  case LOG:
    options->log = (int)n;
    return 0;
  case HOLD:
    options->hold = (int)n;
    return 0;
  case SPILL:
    options->spill = (int)n;
    return 0;
  case REPORT:
    options->report = (int)n;
    return 0;
  default:
    return -1;
  }
}

/* `as_core`: the launcher's second run of the program, inside. */
static int
verb_serve(int argc, char **argv, bool as_core)
{
  struct serve_options options = {
      .control = {.connection = -1, .listener = -1, .runtime_dir = -1, .grace_ns = 10000000000u, .pool_size = 8},
      .log = -1,
      .hold = -1,
      .report = -1,
      .spill = -1,
  };
  int option;

  while ((option = getopt_long(argc - 1, argv + 1, "", serve_long, NULL)) != -1)
    if (serve_option(option, &options) < 0)
      return usage("serve: unknown option, or its value is out of range");
  if (optind != argc - 1 || options.control.connection < 0 || !options.uid_map || !options.gid_map)
    return usage("serve: --control, --uid-map and --gid-map are needed");
  if (as_core != (options.report >= 0))
    return usage("core is started by serve");
  if (as_core)
    serve(&options);
  return launch(&options, argv);
}

int
main(int argc, char **argv)
{
  const char *verb = argc > 1 ? argv[1] : "";

  title_setup(argc, argv);
  if (strcmp(verb, "serve") == 0)
    return verb_serve(argc, argv, false);
  if (strcmp(verb, "core") == 0)
    return verb_serve(argc, argv, true);
  if (strcmp(verb, "lend") == 0)
    return lend_main(argc - 1, argv + 1);
  if (strcmp(verb, "probe") == 0)
    return probe_main();
  if (strcmp(verb, "version") == 0) {
    printf("ramet-core %s protocol %d\n", RAMET_VERSION, RAMET_PROTOCOL_VERSION);
    return 0;
  }
  return usage("no such verb");
}
