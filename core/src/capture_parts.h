/* SPDX-License-Identifier: Apache-2.0
 * Inside of a capture, for the files that make it: capture.c (order), capture_process.c, capture_fds.c,
 * capture_memory.c (twin, page file, written pages), capture_kept.c (what the twin does not keep), capture_maps.c
 * (records of mappings). Nobody else includes this. */
#ifndef RAMET_CAPTURE_PARTS_H
#define RAMET_CAPTURE_PARTS_H

#include "capture.h"

#define SCAN_REGIONS 4096
/* Above the highest address of user space with four-level page tables. */
#define ADDRESS_END 0x7ffffffff000

/* struct page_region of linux/fs.h */
struct scan_region {
  uint64_t start, end, categories;
};

/* Written private pages between two addresses, in order. */
struct scan {
  int pagemap, memory;
  struct scan_region regions[SCAN_REGIONS];
  long count, at;
  uint64_t next, end;
};

/* capture_memory.c */
int capture_scan_open(struct scan *scan, int pid, uint64_t start, uint64_t end, struct err *err) MUST_CHECK;
void capture_scan_close(struct scan *scan);
/* The part of a mapping that the scan found, run by run. */
int capture_written(struct capture *capture, struct scan *scan, const struct procmap *map,
                    struct err *err) MUST_CHECK;
int capture_run(struct capture *capture, int memory, uint64_t start, uint64_t end, struct err *err) MUST_CHECK;
/* The same without a look at what the first process has. */
int capture_copy_run(struct capture *capture, int memory, uint64_t start, uint64_t end, struct err *err) MUST_CHECK;
/* One run of these bytes; NULL: they are the first process's. */
int capture_put_run(struct capture *capture, uint64_t start, size_t length, const uint8_t *bytes,
                    struct err *err) MUST_CHECK;
int capture_setup_pages(struct err *err) MUST_CHECK;
/* Whether the twin has all areas of the source. */
bool capture_twin_is_whole(const struct capture *capture);

/* capture_maps.c */
uint32_t capture_backing(const struct capture *capture, const struct procmap *map);
bool capture_is_guests(const struct capture *capture, const struct procmap *map);
/* Private pages of a file that no layer holds: all are kept. */
bool capture_wants_all(const struct capture *capture, const struct procmap *map);
int capture_all_pages(struct capture *capture, int memory, const struct procmap *map, struct err *err) MUST_CHECK;

/* VmFlags, as enum image_mapping_flag; asked in the order of addresses. */
struct flag_reader {
  const char *at; /* in a text of /proc/PID/smaps, or NULL: nothing is known */
};
uint32_t capture_flags_at(struct flag_reader *reader, uint64_t start);

/* capture_heritage.c */
int capture_heirs_run(struct capture *capture, int memory, uint64_t start, uint64_t end,
                      struct err *err) MUST_CHECK;

/* capture_tree.c: what /proc/PID/status tells; not the parent. */
void capture_read_relations(const char *status, int pid, struct image_relations *relations);

/* capture_process.c: a thread's number as the guest sees it, and its name. */
int capture_tid_inside(int tid, char name[16]);

/* capture_kept.c: the description + 1 that a shared mapping is of; 0: none. */
uint32_t capture_object(const struct capture *capture, const struct procmap *map);

#endif
