/* rank.h: one rank of the fault tool, a process that has nothing but libsagecomm.so. rank.c takes orders, faults.c makes
 * faults happen, calls.c makes calls and checks what comes out. */
#ifndef RANK_H
#define RANK_H

#include <stdbool.h>
#include <stdint.h>

#include "../../../export/sagecomm.h"
#include "../../../internal/runner/faults.h"

#define MILLISECOND INT64_C(1000000)

extern const sagecomm_api *api;

/* One line of output, whole, from any thread. Fields are separated by tabs. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

int64_t now_ns(void); /* CLOCK_MONOTONIC, which the tool compares between processes */

/* ---- faults.c ---- */

/* Points of the rank's own beside those of the library: before each write of a rendezvous, and after the last one. */
enum { BEFORE_WRITE = 100, AFTER_WRITE = 200 };

void faults_start(void *library, const sagecomm_group *group);
/* The n-th time that the point is reached, the action is taken. False if the words mean nothing. */
bool faults_arm(const char *point, int nth, const char *action, int64_t ms);
/* False if the write is to fail. */
bool faults_reach(int point);
const sagecomm_store *faulty_store(const char *dir);
const sagecomm_lasting_store *lasting_store(void); /* the same store: after faulty_store() */
int store_calls_outside(void);                     /* of the store, after group_create() has returned */
int32_t create(const sagecomm_group_config *config, sagecomm_group *group, sagecomm_error *err);

/* ---- calls.c ---- */

typedef enum form { SINGLE, P2P, FUSED, FUSED_P2P } form;

/* A call that all ranks of a group make alike. */
typedef struct call {
  form form;
  sagecomm_kind kind;
  sagecomm_dtype dtype;
  sagecomm_reduce_op reduce;
  int root;
  uint64_t count; /* elements of 4 bytes: of the tensor, or of a block */
  bool async;
  int64_t timeout_ns; /* 0: the group's */
} call;

typedef struct place {
  sagecomm_group group;
  int rank, size;
  uint32_t round; /* calls of this group so far: what is in the tensors depends on it */
} place;

/* Makes the call and checks the result: a success that holds wrong data is told as SAGECOMM_INTERNAL. */
int32_t make_call(place *at, const call *c, sagecomm_error *err);

#endif
