/* engine.h: what the rest of the runner asks of the progress engine and of Go. */
#ifndef SCR_ENGINE_H
#define SCR_ENGINE_H

#include "run.h"

void scr_engine_wake(void);
/* Has it look again within 20 ms: at what is unfinished, whose bell peers wake, but whose deadlines are its task. */
void scr_engine_watch(void);
void scr_push_completed(scr_run *r);

extern scr_hooks scr_go;
extern _Atomic uint64_t scr_entries;
void scr_entering_go(void); /* counts */

#endif
