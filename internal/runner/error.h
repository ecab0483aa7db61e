/* error.h: errors that the runner words itself, and the cause of a failed group. */
#ifndef SCR_ERROR_H
#define SCR_ERROR_H

#include "bell.h"
#include "runner.h"

int32_t scr_plain_error(sagecomm_error *err, int32_t status, const char *message);
int32_t scr_no_memory(sagecomm_error *err);
/* The error of a group that is down. It never changes. The group and every operation that failed with it hold a
 * reference, so a work still reports its cause after the group is closed and its memory is reused. */
typedef struct scr_cause {
  _Atomic uint32_t refs;
  struct scr_cause *next; /* in the list of the causes of a group that were replaced */
  sagecomm_error error;
} scr_cause;

scr_cause *scr_cause_new(const sagecomm_error *error); /* NULL: no memory */
scr_cause *scr_cause_ref(scr_cause *c);
void scr_cause_unref(scr_cause *c);
/* Copies the cause to *err and returns its status. A NULL cause gives the error of a destroyed group. */
int32_t scr_cause_copy(const scr_cause *c, sagecomm_error *err);

#endif
