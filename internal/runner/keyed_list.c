#include "keyed_list.h"

#include <stdlib.h>

#include "run.h"

/* The entries whose keys have the same hash, in the order of arrival. */
struct scr_bucket {
  scr_keyed *head, *tail;
};

/* Longer lists have a hash table. */
#define SHORT_LIST 16
#define FIRST_BUCKETS 64
#define GROWTH 4

static scr_bucket *bucket_of(const scr_keyed_list *l, uint64_t key) {
  return &l->bucket[scr_mix(key) & (l->buckets - 1)];
}

static void put(scr_keyed_list *l, scr_keyed *e) {
  scr_bucket *b = bucket_of(l, e->key);
  e->same = NULL;
  if (b->tail) {
    b->tail->same = e;
  } else {
    b->head = e;
  }
  b->tail = e;
}

/* Makes a hash table of `buckets` buckets. Without memory the list stays as it is: searches are slower then. */
static void rehash(scr_keyed_list *l, uint32_t buckets) {
  scr_bucket *table = calloc(buckets, sizeof *table);
  if (table == NULL) return;
  free(l->bucket);
  l->bucket = table;
  l->buckets = buckets;
  for (scr_keyed *e = l->head; e; e = e->after) put(l, e);
}

void scr_keyed_add(scr_keyed_list *l, scr_keyed *e, uint64_t key) {
  e->key = key;
  e->arrival = l->arrivals++;
  e->before = l->tail;
  e->after = NULL;
  if (l->tail) {
    l->tail->after = e;
  } else {
    l->head = e;
  }
  l->tail = e;
  l->count++;
  if (l->bucket) put(l, e);
  if (l->count > (l->bucket ? l->buckets : SHORT_LIST)) {
    if (l->buckets <= UINT32_MAX / GROWTH) rehash(l, l->bucket ? l->buckets * GROWTH : FIRST_BUCKETS);
  }
}

scr_keyed *scr_keyed_find(const scr_keyed_list *l, uint64_t key) {
  scr_keyed *e = l->bucket ? bucket_of(l, key)->head : l->head;
  for (; e && e->key != key; e = l->bucket ? e->same : e->after) SCR_STEP();
  return e;
}

static void take_out_of_bucket(scr_keyed_list *l, scr_keyed *e) {
  scr_bucket *b = bucket_of(l, e->key);
  scr_keyed *before = NULL;
  for (scr_keyed *x = b->head; x != e; x = x->same) {
    before = x;
    SCR_STEP();
  }
  if (before) {
    before->same = e->same;
  } else {
    b->head = e->same;
  }
  if (b->tail == e) b->tail = before;
}

void scr_keyed_remove(scr_keyed_list *l, scr_keyed *e) {
  if (l->bucket) take_out_of_bucket(l, e);
  if (e->before) {
    e->before->after = e->after;
  } else {
    l->head = e->after;
  }
  if (e->after) {
    e->after->before = e->before;
  } else {
    l->tail = e->before;
  }
  if (--l->count == 0) {
    free(l->bucket);
    l->bucket = NULL;
    l->buckets = 0;
  }
}
