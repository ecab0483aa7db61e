/* engine.h: what the rest of the runner asks of the progress engine and of Go. */
#ifndef SCR_ENGINE_H
#define SCR_ENGINE_H

#include "run.h"

void scr_engine_wake(void);
/* Makes the engine look again within 20 ms, at runs that peers' wakes reach elsewhere but whose deadlines the engine
 * watches. */
void scr_engine_watch(void);
/* Hands a run whose done function nobody has called yet to the completer threads. */
void scr_push_completed(scr_run *r);

extern scr_hooks scr_go;
extern _Atomic uint64_t scr_entries;
void scr_entering_go(void); /* adds to scr_entries */

#endif
