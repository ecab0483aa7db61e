// simulate.go: what collectives would take on a cluster that is only described. It needs no group and starts nothing.
package main

/*
#include "sagecomm.h"
*/
import "C"

import "sagecomm/algo/cluster"

//export sagecommSimulate
func sagecommSimulate(question *C.char, to *C.char, n C.size_t) C.int64_t {
	if question == nil {
		return C.SAGECOMM_INVALID
	}
	return told(to, n, func() ([]byte, error) { return cluster.Answer([]byte(C.GoString(question))) })
}
