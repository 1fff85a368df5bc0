/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "treeindex.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#define FIRST_ROOM 256
#define MAGIC 0x31786469

struct saved_header {
  uint32_t magic, count, names_length, zero;
};

static int
no_memory(struct err *err)
{
  return err_code(err, "internal", "no memory for an index of files");
}

/* Names are a guest's, who is not to choose which of them collide. */
static uint32_t
hash_of(const struct tree_index *index, uint32_t parent, const char *name)
{
  uint32_t hash = index->seed ^ (parent * 2654435761u);

  for (const char *c = name; *c; c++) {
    hash = (hash ^ (uint8_t)*c) * 0x5bd1e995u;
    hash ^= hash >> 15;
  }
  return hash;
}

static void
put_slot(struct tree_index *index, uint32_t number)
{
  uint32_t at = index->nodes[number].hash & index->slot_mask;

  while (index->slots[at])
    at = (at + 1) & index->slot_mask;
  index->slots[at] = number;
}

/* At most half full. */
static int
make_slots(struct tree_index *index, uint32_t room)
{
  uint32_t size = FIRST_ROOM * 2;

  while (size < room * 2)
    size *= 2;
  uint32_t *slots = calloc(size, sizeof *slots);
  if (!slots)
    return -1;
  free(index->slots);
  index->slots = slots;
  index->slot_mask = size - 1;
  for (uint32_t i = 1; i < index->count; i++)
    put_slot(index, i);
  return 0;
}

static int
grow_nodes(struct tree_index *index)
{
  uint32_t room = index->room * 2;
  struct tree_node *nodes = realloc(index->nodes, room * sizeof *nodes);

  if (!nodes)
    return -1;
  index->nodes = nodes;
  index->room = room;
  return make_slots(index, room);
}

static int
add_name(struct tree_index *index, const char *name, uint32_t *offset)
{
  uint32_t length = (uint32_t)strlen(name) + 1;

  while (index->names_length + length > index->names_room) {
    uint32_t room = index->names_room * 2;
    char *names = realloc(index->names, room);
    if (!names)
      return -1;
    index->names = names;
    index->names_room = room;
  }
  *offset = index->names_length;
  memcpy(index->names + index->names_length, name, length);
  index->names_length += length;
  return 0;
}

static int
make_room(struct tree_index *index, uint32_t nodes, uint32_t names)
{
  *index = (struct tree_index){.room = FIRST_ROOM, .names_room = 65536};
  while (index->room < nodes)
    index->room *= 2;
  while (index->names_room < names)
    index->names_room *= 2;
  index->nodes = malloc(index->room * sizeof *index->nodes);
  index->names = malloc(index->names_room);
  if (getrandom(&index->seed, sizeof index->seed, GRND_NONBLOCK) != sizeof index->seed)
    index->seed = 0;
  return index->nodes && index->names ? 0 : -1;
}

int
tree_index_make(struct tree_index *index, struct err *err)
{
  if (make_room(index, 0, 0) < 0 || make_slots(index, index->room) < 0) {
    tree_index_free(index);
    return no_memory(err);
  }
  index->nodes[0] = (struct tree_node){.flags = TREE_HERE};
  index->names[0] = 0;
  index->count = index->names_length = 1;
  return 0;
}

/* What was saved was in one copy, which is the layer below now. */
static void
put_below(struct tree_node *node)
{
  uint32_t again = node->flags & TREE_AGAIN;

  node->pass = 0;
  node->stored = 0;
  node->flags = node->sign.inode ? TREE_BELOW | (S_ISDIR(node->mode) ? TREE_MERGED : 0) | again : 0;
}

int
tree_index_load(struct tree_index *index, int fd, struct err *err)
{
  struct saved_header header;

  *index = (struct tree_index){0};
  if (pread(fd, &header, sizeof header, 0) != sizeof header || header.magic != MAGIC || header.count == 0)
    return err_code(err, "internal", "an index of files is malformed");
  if (make_room(index, header.count, header.names_length) < 0)
    return no_memory(err);
  ssize_t nodes = (ssize_t)(header.count * sizeof *index->nodes);
  if (pread(fd, index->nodes, (size_t)nodes, sizeof header) != nodes ||
      pread(fd, index->names, header.names_length, (off_t)sizeof header + nodes) != (ssize_t)header.names_length)
    return err_code(err, "internal", "an index of files is malformed");
  index->count = header.count;
  index->names_length = header.names_length;
  for (uint32_t i = 0; i < index->count; i++) {
    put_below(&index->nodes[i]);
    index->nodes[i].hash = hash_of(index, index->nodes[i].parent, tree_name(index, i));
  }
  index->nodes[0].flags |= TREE_HERE;
  return make_slots(index, index->room) < 0 ? no_memory(err) : 0;
}

static int
write_whole(int fd, const void *data, size_t length)
{
  const char *at = data;

  while (length) {
    ssize_t n = write(fd, at, length);
    if (n <= 0)
      return -1;
    at += n;
    length -= (size_t)n;
  }
  return 0;
}

int
tree_index_save(const struct tree_index *index, struct err *err)
{
  struct saved_header header = {.magic = MAGIC, .count = index->count, .names_length = index->names_length};
  cleanup_fd int fd = memfd_create("ramet-files", MFD_CLOEXEC);

  if (fd < 0 || write_whole(fd, &header, sizeof header) < 0 ||
      write_whole(fd, index->nodes, index->count * sizeof *index->nodes) < 0 ||
      write_whole(fd, index->names, index->names_length) < 0)
    return err_step(err, RAMET_STEP_COPY_UPPER, "keep the index of files: %s", strerror(errno));
  return steal_fd(&fd);
}

int
tree_index_distrust(const struct tree_index *index, int fd, const struct inode_map *files, struct err *err)
{
  struct saved_header header;

  if (pread(fd, &header, sizeof header, 0) != sizeof header || header.count > index->count)
    return err_code(err, "internal", "an index of files is malformed");
  for (uint32_t i = 0; i < header.count; i++) {
    off_t at = (off_t)(sizeof header + i * sizeof *index->nodes + offsetof(struct tree_node, flags));
    uint32_t flags = TREE_BELOW | TREE_AGAIN;
    if (inode_map_get(files, index->nodes[i].sign.inode) &&
        pwrite(fd, &flags, sizeof flags, at) != (ssize_t)sizeof flags)
      return err_step(err, RAMET_STEP_COPY_UPPER, "keep the index of files: %s", strerror(errno));
  }
  return 0;
}

void
tree_index_free(struct tree_index *index)
{
  free(index->nodes);
  free(index->names);
  free(index->slots);
  *index = (struct tree_index){0};
}

struct tree_node *
tree_node(const struct tree_index *index, uint32_t number)
{
  return &index->nodes[number];
}

const char *
tree_name(const struct tree_index *index, uint32_t number)
{
  return index->names + index->nodes[number].name;
}

uint32_t
tree_find(const struct tree_index *index, uint32_t parent, const char *name)
{
  uint32_t hash = hash_of(index, parent, name);

  for (uint32_t at = hash & index->slot_mask; index->slots[at]; at = (at + 1) & index->slot_mask) {
    uint32_t number = index->slots[at];
    const struct tree_node *node = &index->nodes[number];
    if (node->hash == hash && node->parent == parent && strcmp(tree_name(index, number), name) == 0)
      return number;
  }
  return 0;
}

uint32_t
tree_add(struct tree_index *index, uint32_t parent, const char *name)
{
  struct tree_node node = {.parent = parent, .next = index->nodes[parent].first};

  if ((index->count == index->room && grow_nodes(index) < 0) || add_name(index, name, &node.name) < 0)
    return 0;
  uint32_t number = index->count++;
  node.hash = hash_of(index, parent, name);
  index->nodes[number] = node;
  index->nodes[parent].first = number;
  put_slot(index, number);
  return number;
}

struct tree_sign
tree_sign_of(const struct stat *st)
{
  return (struct tree_sign){
      .inode = st->st_ino,
      .size = (uint64_t)st->st_size,
      .changed = st->st_ctim.tv_sec * 1000000000ll + st->st_ctim.tv_nsec,
      .modified = st->st_mtim.tv_sec * 1000000000ll + st->st_mtim.tv_nsec,
      .accessed = st->st_atim.tv_sec * 1000000000ll + st->st_atim.tv_nsec,
  };
}

bool
tree_sign_equal(const struct tree_sign *a, const struct tree_sign *b)
{
  return memcmp(a, b, sizeof *a) == 0;
}
