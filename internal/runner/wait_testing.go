//go:build !release

package runner

/*
#include <stdlib.h>

#include "wait.h"

// scr_test_polls makes one round of a wait for each of n ranks, -1 for any, and ends what polling began.
static _Bool scr_test_polls(int32_t size, const uint64_t *pairs, const int32_t *ranks, int32_t n) {
  scr_group *g = calloc(1, sizeof *g);
  scr_peer *peer = calloc((size_t)size, sizeof *peer);
  _Bool made = g != NULL && peer != NULL;
  if (made) {
    g->size = size;
    g->peer = peer;
    g->pairs = 1;
    for (int32_t i = 0; i < size; i++) peer[i].pair = pairs[i];
    scr_attended attended = {0};
    for (int32_t i = 0; i < n; i++) scr_poll_or_yield(g, ranks[i], 0, &attended);
    scr_stop_polling(g, &attended);
  }
  free(peer);
  free(g);
  return made;
}
*/
import "C"

import "unsafe"

// This file serves hooks_pairs_test.go, as op_testing.go does op_test.go.

// testPolls makes one round of a wait for each of some ranks, -1 for any, in a group whose ranks have pairs of these numbers. It reports whether there
// was memory.
func testPolls(pairs []uint64, ranks []int32) bool {
	C.scr_call_go()
	return bool(C.scr_test_polls(C.int32_t(len(pairs)), (*C.uint64_t)(unsafe.SliceData(pairs)), (*C.int32_t)(unsafe.SliceData(ranks)), C.int32_t(len(ranks))))
}
