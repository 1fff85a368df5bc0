/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "lend.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "mounts.h"
#include "syscalls.h"
#include "wire.h"

/* Files of host uid n appear as uid n of the user namespace of process `pid`, so that an overlay above can copy
 * them up. File systems without support for it refuse (EINVAL): the mount is then lent as it is. */
static int
map_owners(int mount, const char *pid, struct err *err)
{
  char path[48];

  snprintf(path, sizeof path, "/proc/%s/ns/user", pid);
  cleanup_fd int user = open(path, O_RDONLY | O_CLOEXEC);
  if (user < 0)
    return err_step(err, RAMET_STEP_ROOT_LAYER, "open %s: %s", path, strerror(errno));
  struct mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)user};
  if (sys_mount_setattr(mount, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr) < 0 && errno != EINVAL)
    return err_step(err, RAMET_STEP_ROOT_LAYER, "map owners: %s", strerror(errno));
  return 0;
}

static int
lend(int socket, const char *path, const char *idmap, struct err *err)
{
  cleanup_writer struct writer writer = {0};
  cleanup_fd int mount = tree_clone(AT_FDCWD, path, RAMET_STEP_ROOT_BIND, err);

  if (mount < 0 || (idmap && map_owners(mount, idmap, err) < 0))
    return -1;
  put_text(&writer, RAMET_TAG_TEXT, path);
  if (frame_send(socket, RAMET_OK, 0, &writer, &mount, 1) < 0)
    return err_step(err, RAMET_STEP_ROOT_BIND, "hand over %s: %s", path, strerror(errno));
  return 0;
}

static int
refuse(int socket, const struct err *err)
{
  cleanup_writer struct writer writer = {0};
  struct writer *filled = &writer;

  put_err(filled, err);
  if (frame_send(socket, RAMET_ERROR, 0, filled, NULL, 0) < 0)
    fprintf(stderr, "ramet-core: lend: %s\n", err->text);
  return EXIT_SYSTEM;
}

int
lend_main(int argc, char **argv)
{
  static const struct option options[] = {{"socket", 1, 0, 's'}, {"idmap", 1, 0, 'i'}, {0, 0, 0, 0}};
  struct err err = {0};
  const char *idmap = NULL;
  int socket = -1, option;

  while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
    if (option == 's')
      socket = atoi(optarg);
    else if (option == 'i' && strspn(optarg, "0123456789") == strlen(optarg))
      idmap = optarg;
    else
      return EXIT_USAGE;
  }
  if (socket < 3 || optind == argc)
    return EXIT_USAGE;
  for (; optind < argc; optind++)
    if (lend(socket, argv[optind], idmap, &err) < 0)
      return refuse(socket, &err);
  return 0;
}
