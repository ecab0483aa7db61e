/* direct.c: what passes between buffers and connections without a copy ends before the operation does. */
#include "direct.h"

void scr_forget_buffers(const scr_group *g) {
  for (int32_t i = g->n_near; i < scr_n_visited(g); i++) scr_go.forget(g->peer[g->visited[i]].pair, g->lane);
}
