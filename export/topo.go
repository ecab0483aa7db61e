// topo.go: what this host is made of. It asks the kernel alone, so it starts nothing of a group.
package main

/*
#include "sagecomm.h"
*/
import "C"

import (
	"encoding/json"

	"sagecomm/internal/topo"
)

//export sagecommTopology
func sagecommTopology(to *C.char, n C.size_t) C.int64_t {
	return told(to, n, func() ([]byte, error) { return json.Marshal(topo.Read("/")) })
}
