/* faults.h: named moments of an operation at which the tool of tests/faults makes a process die, stop or lag. In a normal
 * build they are nothing; with the Go build tag `faults` each calls a hook that the rank has set. */
#ifndef SCR_FAULTS_H
#define SCR_FAULTS_H

typedef enum scr_fault_point {
  SCR_FAULT_STARTED,   /* the operation has its number and its record; nothing of its data is published */
  SCR_FAULT_PUBLISHED, /* a flag for peers was just stored, and nobody was woken for it yet */
  SCR_FAULT_GOODBYE,   /* the group is being destroyed and peers do not know it yet */
  SCR_FAULT_LEFT,      /* they can know it, and nobody was woken for it yet */
} scr_fault_point;

#ifdef SCR_FAULTS
#include <stdatomic.h>

/* Called on whatever thread drives, with the group's locks held. */
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
