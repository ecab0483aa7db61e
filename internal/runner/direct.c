/* direct.c: what passes between buffers and connections without a copy ends before the operation does. */
#include "direct.h"

void scr_forget_buffers(const scr_group *g) {
  for (int32_t i = 0; g->pairs && i < g->size; i++) {
    if (g->peer[i].pair != 0) scr_go.forget(g->peer[i].pair, g->lane);
  }
}
