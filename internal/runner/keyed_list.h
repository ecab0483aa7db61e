/* keyed_list.h: lists in the order of arrival that find the first entry with a key in constant time: posted recvs by
 * source and tag, unexpected sends by tag, announced sends and granted recvs by id. A short list is searched entry by
 * entry; a longer one has a hash table.
 * Requires, all functions: the lock of the list's owner. */
#ifndef SCR_KEYED_LIST_H
#define SCR_KEYED_LIST_H

#include <stdint.h>

/* An entry is a part of whatever the list holds. */
typedef struct scr_keyed {
  struct scr_keyed *before, *after; /* in the list */
  struct scr_keyed *same;           /* the next entry of the same bucket */
  uint64_t key;
  uint64_t arrival; /* counts the entries that the list has ever had */
} scr_keyed;

typedef struct scr_bucket scr_bucket;

typedef struct scr_keyed_list {
  scr_keyed *head, *tail;
  scr_bucket *bucket; /* owned; NULL: the list is short, or there was no memory */
  uint32_t buckets;   /* a power of two */
  uint32_t count;
  uint64_t arrivals;
} scr_keyed_list;

void scr_keyed_add(scr_keyed_list *l, scr_keyed *e, uint64_t key);
/* Returns the entry with the key that came first, or NULL. */
scr_keyed *scr_keyed_find(const scr_keyed_list *l, uint64_t key);
/* Removes an entry of the list. It takes constant time for the first entry with its key. */
void scr_keyed_remove(scr_keyed_list *l, scr_keyed *e);

#endif
