/* run_list.h: queues of p2p operations, linked by scr_run.next. Requires, both functions: the lock of the list's group. */
#ifndef SCR_RUN_LIST_H
#define SCR_RUN_LIST_H

#include "run.h"

static inline void scr_list_push(scr_run **head, scr_run **tail, scr_run *r) {
  r->next = NULL;
  if (*tail) {
    (*tail)->next = r;
  } else {
    *head = r;
  }
  *tail = r;
}

/* Takes out the first operation. Requires: there is one. */
static inline scr_run *scr_list_pop(scr_run **head, scr_run **tail) {
  scr_run *r = *head;
  *head = r->next;
  if (*head == NULL) *tail = NULL;
  r->next = NULL;
  return r;
}

#endif
