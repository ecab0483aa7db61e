package runner

/*
#include "runner.h"
*/
import "C"

import (
	"encoding/binary"
	"unsafe"
)

// StateBytes is the length of the state of a rank, which peers on other hosts read in a diagnosis (docs/protocol.md, section 16, STATE).
const StateBytes = 8 * C.SCR_STATE_WORDS

func blocksOf(lanes [Lanes]Words) (list [Lanes]unsafe.Pointer) {
	for n, w := range lanes {
		list[n] = unsafe.Pointer(w.b)
	}
	return list
}

// CopyState returns the state of the rank that owns the shared blocks, for a rank with which it may have exchanged blocks.
func CopyState(lanes [Lanes]Words, with int) []byte {
	var words [C.SCR_STATE_WORDS]C.uint64_t
	blocks := blocksOf(lanes)
	C.scr_shared_copy_state(&blocks[0], C.int32_t(lanes[0].size), C.int32_t(with), &words[0])
	state := make([]byte, 0, StateBytes)
	for _, w := range words {
		state = binary.LittleEndian.AppendUint64(state, uint64(w))
	}
	return state
}

// PutState stores a state in the shadow of its rank that was made for another one. It reports whether a rank writes such a state;
// otherwise nothing is stored.
// Requires: one caller at a time for a shadow; StateBytes bytes.
func PutState(lanes [Lanes]Words, with int, state []byte) bool {
	var words [C.SCR_STATE_WORDS]C.uint64_t
	for i := range words {
		words[i] = C.uint64_t(binary.LittleEndian.Uint64(state[8*i:]))
	}
	blocks := blocksOf(lanes)
	return bool(C.scr_shared_put_state(&blocks[0], C.int32_t(lanes[0].size), C.int32_t(with), &words[0]))
}
