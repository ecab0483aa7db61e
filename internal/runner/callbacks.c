/* callbacks.c: the table of calls into Go and their count. hooks.c has the functions; tests of the runner without Go
 * set their own. */
#include "engine.h"

scr_hooks scr_go;
_Atomic uint64_t scr_entries;

void scr_set_hooks(const scr_hooks *hooks) { scr_go = *hooks; }

uint64_t scr_go_entries(void) { return atomic_load_explicit(&scr_entries, memory_order_relaxed); }

void scr_entering_go(void) { atomic_fetch_add_explicit(&scr_entries, 1, memory_order_relaxed); }
