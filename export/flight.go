package main

/*
#include "sagecomm.h"
*/
import "C"

import (
	"sagecomm/internal/coll"
	"sagecomm/pgbackend"
)

// told is what an export answers that gives text away; a panic becomes a status.
func told(to *C.char, n C.size_t, text func() ([]byte, error)) (bytes C.int64_t) {
	var status C.int32_t
	defer func() {
		if status != 0 {
			bytes = C.int64_t(status)
		}
	}()
	defer guard(&status, nil)
	b, err := text()
	if err != nil {
		return C.SAGECOMM_INTERNAL
	}
	return give(b, to, n)
}

//export sagecommFlightRecords
func sagecommFlightRecords(to *C.char, n C.size_t) C.int64_t {
	return told(to, n, pgbackend.Get().Observers().FlightRecords)
}

//export sagecommMetrics
func sagecommMetrics(to *C.char, n C.size_t) C.int64_t {
	return told(to, n, func() ([]byte, error) { return pgbackend.Get().Observers().Metrics(), nil })
}

//export sagecommStatus
func sagecommStatus(to *C.char, n C.size_t) C.int64_t {
	return told(to, n, func() ([]byte, error) { return pgbackend.Get().Observers().Status(), nil })
}

//export sagecommFlightDump
func sagecommFlightDump(prefix *C.char, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	if e := pgbackend.Get().Observers().Dump(C.GoString(prefix)); e != nil {
		return answer(err, &coll.Failure{Status: coll.System, Rank: -1, Message: e.Error()})
	}
	return C.SAGECOMM_OK
}

//export sagecommGroupDescribe
func sagecommGroupDescribe(group C.sagecomm_group, text *C.char, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "group_describe")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	g.Describe(C.GoString(text))
	return C.SAGECOMM_OK
}

//export sagecommGroupStack
func sagecommGroupStack(group C.sagecomm_group, frames *C.char) (number C.uint64_t) {
	var status C.int32_t
	defer guard(&status, nil)
	g, f := find(group, "group_stack")
	switch {
	case f != nil || !g.RecordsStacks():
		return 0
	case frames == nil:
		return 1
	}
	defer guardGroup(g, &status, nil)
	return C.uint64_t(g.Stack(C.GoString(frames)))
}
