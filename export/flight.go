package main

/*
#include "sagecomm.h"
*/
import "C"

import "sagecomm/pgbackend"

//export sagecommFlightRecords
func sagecommFlightRecords(to *C.char, n C.size_t) (bytes C.int64_t) {
	var status C.int32_t
	defer func() {
		if status != 0 {
			bytes = C.int64_t(status)
		}
	}()
	defer guard(&status, nil)
	text, err := pgbackend.Get().FlightRecords()
	if err != nil {
		return C.SAGECOMM_INTERNAL
	}
	return give(text, to, n)
}
