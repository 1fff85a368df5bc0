/* SPDX-License-Identifier: Apache-2.0
 * Inode numbers, each with a number of the caller's above 0. */
#ifndef RAMET_INODEMAP_H
#define RAMET_INODEMAP_H

#include <stdint.h>
#include <stdlib.h>

struct inode_map {
  struct inode_entry {
    uint64_t inode;
    uint32_t value;
  } *slots;
  uint32_t size, count;
};

/* Numbers of a tmpfs are counted up, so their low bits differ. */
static inline struct inode_entry *
inode_map_slot(const struct inode_map *map, uint64_t inode)
{
  uint32_t at = (uint32_t)(inode * 0x9e3779b97f4a7c15u >> 32) & (map->size - 1);

  while (map->slots[at].value && map->slots[at].inode != inode)
    at = (at + 1) & (map->size - 1);
  return &map->slots[at];
}

/* 0: it is not there. */
static inline uint32_t
inode_map_get(const struct inode_map *map, uint64_t inode)
{
  return map->size ? inode_map_slot(map, inode)->value : 0;
}

static inline int
inode_map_put(struct inode_map *map, uint64_t inode, uint32_t value)
{
  if (map->count * 2 >= map->size) {
    struct inode_map grown = {.size = map->size ? map->size * 2 : 64, .count = map->count};
    grown.slots = calloc(grown.size, sizeof *grown.slots);
    if (!grown.slots)
      return -1;
    for (uint32_t i = 0; i < map->size; i++)
      if (map->slots[i].value)
        *inode_map_slot(&grown, map->slots[i].inode) = map->slots[i];
    free(map->slots);
    *map = grown;
  }
  struct inode_entry *slot = inode_map_slot(map, inode);
  map->count += !slot->value;
  *slot = (struct inode_entry){inode, value};
  return 0;
}

static inline void
inode_map_free(struct inode_map *map)
{
  free(map->slots);
  *map = (struct inode_map){0};
}

#endif
