/* faults.h: named moments of an operation at which tests/faults kills, stops or delays a process. A normal build
 * compiles them to nothing; with the Go build tag `faults` each one calls a hook that the rank has set. */
#ifndef SCR_FAULTS_H
#define SCR_FAULTS_H

typedef enum scr_fault_point {
  SCR_FAULT_STARTED,   /* the operation has its number and its record; none of its data is published */
  SCR_FAULT_PUBLISHED, /* a flag for peers was just stored; its sleepers are not woken yet */
  SCR_FAULT_GOODBYE,   /* the group is being destroyed; peers cannot see it yet */
  SCR_FAULT_LEFT,      /* peers can see it; their sleepers are not woken yet */
} scr_fault_point;

#ifdef SCR_FAULTS
#include <stdatomic.h>

/* The driving thread calls the hook.
 * Holds: the drive lock or the p2p lock of the group. */
extern void (*_Atomic sagecomm_fault_hook)(int point);

static inline void scr_fault(scr_fault_point point) {
  void (*hook)(int) = atomic_load_explicit(&sagecomm_fault_hook, memory_order_acquire);
  if (hook) hook((int)point);
}
#define SCR_FAULT(point) scr_fault(point)
#else
#define SCR_FAULT(point) ((void)0)
#endif

#endif
