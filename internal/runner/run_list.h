/* run_list.h: lists of p2p operations, linked by scr_run.next. Requires, all functions: the lock of the list's group. */
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

static inline void scr_list_unlink(scr_run **head, scr_run **tail, scr_run *r) {
  scr_run *before = NULL;
  for (scr_run **at = head; *at; before = *at, at = &(*at)->next) {
    SCR_STEP();
    if (*at != r) continue;
    *at = r->next;
    if (*tail == r) *tail = before;
    r->next = NULL;
    return;
  }
}

/* Finds the operation with an id. It is usually the first of the list, because peers grant and send in the order of
 * announcements as long as recvs are posted in that order. */
static inline scr_run *scr_list_find(scr_run *list, uint64_t id) {
  for (; list && list->p2p.id != id; list = list->next) SCR_STEP();
  return list;
}

#endif
