// group.go: creates, configures, fails and destroys groups for C callers.
package main

/*
#include "sagecomm.h"
*/
import "C"

import (
	"time"
	"unsafe"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
	"sagecomm/pgbackend"
)

//export sagecommGroupCreate
func sagecommGroupCreate(config *C.sagecomm_group_config, out *C.sagecomm_group, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	if config == nil || out == nil || uintptr(config.struct_size) < unsafe.Offsetof(config.lasting) || config.store == nil {
		return answer(err, invalid("group_create: incomplete configuration"))
	}
	g, e := pgbackend.Get().Create(pgbackend.Config{
		Rank: int(config.rank), Size: int(config.size), Name: C.GoString(config.name),
		Timeout: time.Duration(config.timeout_ns), Store: newStore(config.store), Lasting: newLasting(config), Options: optionsOf(config.options, config.n_options), GlobalRanks: globalRanks(config),
	})
	if e != nil {
		return answer(err, pgbackend.CreateFailure(C.GoString(config.name), e))
	}
	*out = C.sagecomm_group(g.Handle())
	return C.SAGECOMM_OK
}

func globalRanks(config *C.sagecomm_group_config) []int {
	if config.global_ranks == nil || config.size <= 0 {
		return nil
	}
	list := make([]int, config.size)
	for i, rank := range unsafe.Slice(config.global_ranks, int(config.size)) {
		list[i] = int(rank)
	}
	return list
}

// find returns the group of a handle, or a failure if the handle is not valid.
func find(group C.sagecomm_group, call string) (*pgbackend.Group, *coll.Failure) {
	if g := pgbackend.Get().Group(uint64(group)); g != nil {
		return g, nil
	}
	return nil, invalid("%s: the group was destroyed", call)
}

//export sagecommGroupDestroy
func sagecommGroupDestroy(group C.sagecomm_group, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "group_destroy")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	if e := g.Destroy(); e != nil {
		return answer(err, invalid("%v", e))
	}
	if first := g.FirstCause(); first != nil {
		runner.FillError(unsafe.Pointer(err), first)
	} else if err != nil {
		err.status = C.SAGECOMM_OK
	}
	return C.SAGECOMM_OK
}

//export sagecommGroupSettle
func sagecommGroupSettle(group C.sagecomm_group, ns C.int64_t, how C.int32_t, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	if how < C.SAGECOMM_SETTLE_FULL || how > C.SAGECOMM_SETTLE_NOW {
		return answer(err, invalid("group_settle: how is %d; give one of SAGECOMM_SETTLE_*", int32(how)))
	}
	g, f := find(group, "group_settle")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	again, f := g.Settle(time.Duration(ns), pgbackend.Wait(how))
	if again {
		return C.SAGECOMM_PENDING
	}
	return answer(err, f)
}

//export sagecommGroupFinish
func sagecommGroupFinish(group C.sagecomm_group, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "group_finish")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	return answer(err, g.Finish())
}

//export sagecommGroupAbort
func sagecommGroupAbort(group C.sagecomm_group, reason *C.char, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "group_abort")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	g.Abort(C.GoString(reason))
	return C.SAGECOMM_OK
}

//export sagecommGroupLeave
func sagecommGroupLeave(group C.sagecomm_group, reason *C.char, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "group_leave")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	g.Leave(C.GoString(reason))
	return C.SAGECOMM_OK
}

//export sagecommGroupShrunk
func sagecommGroupShrunk(group C.sagecomm_group, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "group_shrunk")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	if g.AbortedByShrink() {
		return 1
	}
	return 0
}

//export sagecommGroupOutstanding
func sagecommGroupOutstanding(group C.sagecomm_group, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "group_outstanding")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	if g.Outstanding() {
		return 1
	}
	return 0
}

//export sagecommGroupFail
func sagecommGroupFail(group C.sagecomm_group, fault *C.sagecomm_error, deviceType C.uint8_t, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "group_fail")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	if fault == nil {
		return answer(err, invalid("group_fail: the fault is NULL"))
	}
	failure := runner.FailureOf(unsafe.Pointer(fault))
	failure.OnDevice = deviceType != C.SAGECOMM_HOST
	if e := g.Fail(failure); e != nil {
		return answer(err, invalid("group_fail: %v", e))
	}
	return C.SAGECOMM_OK
}

//export sagecommGroupSetTimeout
func sagecommGroupSetTimeout(group C.sagecomm_group, ns C.int64_t, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "group_set_timeout")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	if e := g.SetTimeout(time.Duration(ns)); e != nil {
		return answer(err, invalid("%v", e))
	}
	return C.SAGECOMM_OK
}

//export sagecommMonitoredError
func sagecommMonitoredError(group C.sagecomm_group, ns C.int64_t, all C.int32_t, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	g, f := find(group, "monitored_error")
	if f != nil {
		return answer(err, f)
	}
	defer guardGroup(g, &status, err)
	return answer(err, g.MonitoredCause(time.Duration(ns), all != 0))
}
