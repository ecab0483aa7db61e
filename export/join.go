// join.go: creates groups at unique ids and out of ranks of other groups, for C callers.
package main

/*
#include "sagecomm.h"
*/
import "C"

import (
	"context"
	"sync/atomic"
	"time"
	"unsafe"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/pgbackend"
)

//export sagecommUniqueID
func sagecommUniqueID(out *C.uint8_t, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	if out == nil {
		return answer(err, invalid("unique_id: no memory for the id is given"))
	}
	id, e := pgbackend.Get().UniqueID()
	if e != nil {
		return answer(err, pgbackend.CreateFailure("", e))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(out)), C.SAGECOMM_ID_BYTES), id[:])
	return C.SAGECOMM_OK
}

// Compiling fails here if the sizes of an id differ in Go and C.
const _ = -(C.SAGECOMM_ID_BYTES ^ bootstrap.IDBytes)

//export sagecommGroupJoin
func sagecommGroupJoin(joins *C.sagecomm_join, n C.uint32_t, out *C.sagecomm_group, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	if n == 0 {
		return C.SAGECOMM_OK
	}
	if joins == nil || out == nil {
		return answer(err, invalid("group_join: incomplete description"))
	}
	list := make([]pgbackend.Join, n)
	name := ""
	for i, j := range unsafe.Slice(joins, int(n)) {
		if j.struct_size < C.sizeof_sagecomm_join || j.id == nil {
			return answer(err, invalid("group_join: incomplete description"))
		}
		name = C.GoString(j.name)
		list[i] = pgbackend.Join{ID: C.GoBytes(unsafe.Pointer(j.id), C.SAGECOMM_ID_BYTES), Rank: int(j.rank), Size: int(j.size), Name: name,
			Timeout: time.Duration(j.timeout_ns), Operations: time.Duration(j.operations_ns), Options: optionsOf(j.options, j.n_options)}
		var end func()
		list[i].Context, _, end = watched(j.cancelled)
		defer end()
	}
	groups, e := pgbackend.Get().Join(list)
	if e != nil {
		return answer(err, pgbackend.CreateFailure(name, e))
	}
	handOut(groups, out)
	return C.SAGECOMM_OK
}

// cancelPeriod is how often a word is read that ends a join.
const cancelPeriod = 20 * time.Millisecond

// watched returns a context that ends when a word of the caller's is not 0, one that ends when it is SAGECOMM_CANCEL_COLORS, and a function
// that ends the watch. nil stands for no word.
func watched(word *C.int32_t) (meeting, colors context.Context, end func()) {
	if word == nil {
		return context.Background(), context.Background(), func() {}
	}
	meeting, cancel := context.WithCancel(context.Background())
	colors, cancelColors := context.WithCancel(context.Background())
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		ticker := time.NewTicker(cancelPeriod)
		defer ticker.Stop()
		for value := int32(0); value != C.SAGECOMM_CANCEL_COLORS; { // which may come after another value
			select {
			case <-stop:
				return
			case <-ticker.C:
			}
			if value = atomic.LoadInt32((*int32)(unsafe.Pointer(word))); value != 0 {
				cancel()
			}
		}
		cancelColors()
	}()
	return meeting, colors, func() {
		close(stop)
		<-over // the word is the caller's again
		cancel()
		cancelColors()
	}
}

// handOut writes the handles of groups, 0 for nil.
func handOut(groups []*pgbackend.Group, out *C.sagecomm_group) {
	list := unsafe.Slice(out, len(groups))
	for i, g := range groups {
		list[i] = 0
		if g != nil {
			list[i] = C.sagecomm_group(g.Handle())
		}
	}
}

// optionsOf translates options, nil for none.
func optionsOf(list *C.sagecomm_option, n C.uint32_t) map[string]string {
	if list == nil {
		return nil
	}
	options := map[string]string{}
	for _, o := range unsafe.Slice(list, int(n)) {
		options[C.GoString(o.name)] = C.GoString(o.value)
	}
	return options
}

//export sagecommGroupSplit
func sagecommGroupSplit(children *C.sagecomm_child, n C.uint32_t, out *C.sagecomm_group, err *C.sagecomm_error) (status C.int32_t) {
	return makeChildren("group_split", children, n, out, err, pgbackend.Get().Split)
}

//export sagecommGroupShrink
func sagecommGroupShrink(children *C.sagecomm_child, n C.uint32_t, out *C.sagecomm_group, err *C.sagecomm_error) (status C.int32_t) {
	return makeChildren("group_shrink", children, n, out, err, pgbackend.Get().Shrink)
}

func makeChildren(call string, children *C.sagecomm_child, n C.uint32_t, out *C.sagecomm_group, err *C.sagecomm_error, do func([]pgbackend.Child) ([]*pgbackend.Group, error)) (status C.int32_t) {
	defer guard(&status, err)
	if n == 0 {
		return C.SAGECOMM_OK
	}
	if children == nil || out == nil {
		return answer(err, invalid("%s: incomplete description", call))
	}
	list := make([]pgbackend.Child, n)
	name := ""
	for i, c := range unsafe.Slice(children, int(n)) {
		if c.struct_size < C.sizeof_sagecomm_child || c.left_out == nil && c.n_left_out > 0 || c.members == nil && c.n_members > 0 {
			return answer(err, invalid("%s: incomplete description", call))
		}
		g, f := find(c.parent, call)
		if f != nil {
			return answer(err, f)
		}
		switch c.aborts {
		case C.SAGECOMM_NO_ABORT, C.SAGECOMM_ABORTS_HERE, C.SAGECOMM_ABORTS_ELSEWHERE:
		default:
			return answer(err, invalid("%s: aborts is %d, which is no value of sagecomm_aborts", call, c.aborts))
		}
		name = C.GoString(c.name)
		list[i] = pgbackend.Child{Parent: g, Color: int(c.color), Key: int(c.key), Name: name, Timeout: time.Duration(c.timeout_ns), Operations: time.Duration(c.operations_ns), Options: optionsOf(c.options, c.n_options)}
		for _, rank := range unsafe.Slice(c.left_out, int(c.n_left_out)) {
			list[i].LeftOut = append(list[i].LeftOut, int(rank))
		}
		list[i].Label, list[i].Aborts = uint64(c.label), pgbackend.Aborts(c.aborts)
		for _, rank := range unsafe.Slice(c.members, int(c.n_members)) {
			list[i].Members = append(list[i].Members, int(rank))
		}
		var end func()
		list[i].Context, list[i].Colors, end = watched(c.cancelled)
		defer end()
	}
	groups, e := do(list)
	if e != nil {
		return answer(err, pgbackend.CreateFailure(name, e))
	}
	handOut(groups, out)
	return C.SAGECOMM_OK
}

//export sagecommGroupPlace
func sagecommGroupPlace(group C.sagecomm_group, rank, size *C.int32_t, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	if rank == nil || size == nil {
		return answer(err, invalid("group_place: no memory for the result is given"))
	}
	g, f := find(group, "group_place")
	if f != nil {
		return answer(err, f)
	}
	*rank, *size = C.int32_t(g.Rank()), C.int32_t(g.Size())
	return C.SAGECOMM_OK
}

//export sagecommLocate
func sagecommLocate(pointer unsafe.Pointer, deviceType *C.uint8_t, index *C.int32_t, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	if deviceType == nil || index == nil {
		return answer(err, invalid("locate: no memory for the result is given"))
	}
	at, e := pgbackend.Locate(uintptr(pointer))
	if e != nil {
		return answer(err, invalid("locate: %v", e))
	}
	*deviceType, *index = C.uint8_t(at.Type), C.int32_t(at.Index)
	return C.SAGECOMM_OK
}

//export sagecommReadFactor
func sagecommReadFactor(pointer unsafe.Pointer, dtype C.uint8_t, stream unsafe.Pointer, factor *C.double, err *C.sagecomm_error) (status C.int32_t) {
	defer guard(&status, err)
	if factor == nil {
		return answer(err, invalid("read_factor: no memory for the result is given"))
	}
	value, e := pgbackend.Get().ReadFactor(pointer, coll.DataType(dtype), uintptr(stream))
	if e != nil {
		return answer(err, invalid("read_factor: %v", e))
	}
	*factor = C.double(value)
	return C.SAGECOMM_OK
}
