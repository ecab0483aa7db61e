/* trips.h: one operation on the device lane, with the memory on both sides of its gate. */
#ifndef TRIPS_H
#define TRIPS_H

#include <pthread.h>

#include "scenarios.h"

#define MOST_UNITS 64
#define MOST_BYTES (MOST_UNITS * 8192)

/* One operation on a device. */
typedef struct trip {
  scr_gate_words words;
  uint64_t bytes, unit;          /* of the operation, and of one unit */
  uint32_t n, window;            /* units, and for how many the buffers have room */
  unsigned char *from, *to;      /* memory of the device */
  unsigned char *input, *output; /* pinned buffers */
  sagecomm_segment in[MOST_UNITS], out[MOST_UNITS];
  uint64_t random;
  _Atomic bool held; /* the copy-in stream waits for something before the operation */
  pthread_t device;
} trip;

/* Unit u has so many bytes, and lies in this place of the buffers. */
uint64_t unit_bytes(const trip *t, uint32_t u);
uint32_t place(const trip *t, uint32_t u);

trip *new_trip(uint64_t bytes, uint64_t unit, uint32_t window, uint64_t seed);
void free_trip(trip *t);
/* Describes a call on the trip, and its gate in next_gate[]. */
sagecomm_op operation(const rank *r, trip *t, int kind);
/* Returns the chunk of the program for a sum of that length, which it compiles by a call whose gate stands open. */
uint64_t chunk_of(const rank *r, uint64_t bytes);

#endif
