// Package kernels copies, reduces and scales memory. The functions are C, in one variant for each instruction set
// (portable, AVX2, AVX-512) that all give the same bits; kernels.h documents each function.
//
// It owns no memory and no state except the choice of the variant, which is made at the first use or by [Force]. Its
// functions may be called from any thread. The runner calls the C table, scr_get_kernels(), without going through
// Go; ReduceInto and ScaleInto are for callers in Go. Start reading at kernels.h, then loop.inc.h and vector.inc.h,
// from which portable.c, avx2.c and avx512.c each make a table.
package kernels

/*
#cgo CFLAGS: -std=c11 -O3 -Wall -Wextra -Wno-unused-parameter -fno-strict-aliasing
#include <stdlib.h>
#include "variants.h"

// One or two sources are passed as arguments: Go keeps arguments in place during a call at no cost, whereas the
// memory behind an array of pointers must be pinned piece by piece.
static void scr_go_reduce2(void *dst, void *dst2, const void *a, const void *b, int n, size_t count, int dtype, int op,
                         double divisor) {
  const void *src[2] = {a, b};
  scr_get_kernels()->reduce[dtype][op](dst, dst2, src, n, count, divisor);
}
static void scr_go_reduce(void *dst, void *dst2, const void *const *src, int n, size_t count, int dtype, int op,
                        double divisor) {
  scr_get_kernels()->reduce[dtype][op](dst, dst2, src, n, count, divisor);
}
static void scr_go_scale(void *dst, const void *src, size_t count, int dtype, double factor) {
  scr_get_kernels()->scale[dtype](dst, src, count, factor);
}

#cgo noescape scr_go_reduce2
#cgo nocallback scr_go_reduce2
#cgo nocallback scr_go_reduce
#cgo noescape scr_go_scale
#cgo nocallback scr_go_scale
*/
import "C"

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"unsafe"

	"sagecomm/internal/coll"
)

// Names returns the variants of the kernels that this machine can run, best first.
func Names() []string {
	var list [C.SCR_MAX_KERNELS]*C.scr_kernels
	names := make([]string, C.scr_runnable_kernels(&list[0]))
	for i := range names {
		names[i] = C.GoString(list[i].name)
	}
	return names
}

// Active returns the name of the variant in use.
func Active() string { return C.GoString(C.scr_get_kernels().name) }

// Force chooses a variant by name. It is called before programs are compiled, because a program keeps its variant.
func Force(name string) error {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	if C.scr_force_kernels(s) != 0 {
		return fmt.Errorf("kernels %q cannot run on this machine: choose one of %s",
			name, strings.Join(Names(), ", "))
	}
	return nil
}

// ReduceInto reduces srcs into dst, and into dst2 unless that is nil, element by element in the order of srcs, as
// scr_reduce_fn in kernels.h says. All slices have the same length. dst and dst2 may each be identical to one of srcs;
// any other overlap gives wrong results. divisor is the number of contributions and matters to AVG only.
func ReduceInto(dst, dst2 []byte, srcs [][]byte, t coll.DataType, op coll.ReduceOp, divisor float64) error {
	if err := coll.Defined(op, t); err != nil {
		return err
	}
	if len(srcs) == 0 || len(dst)%t.Size() != 0 || (dst2 != nil && len(dst2) != len(dst)) {
		return fmt.Errorf("reduce of %d sources into %d and %d bytes of %v: at least one source, whole elements and "+
			"destinations of equal length are needed", len(srcs), len(dst), len(dst2), t)
	}
	for i, s := range srcs {
		if len(s) != len(dst) {
			return fmt.Errorf("reduce of %v: source %d has %d bytes, the destination %d", t, i, len(s), len(dst))
		}
	}
	if op == coll.Avg && !(divisor >= 1 && divisor <= math.MaxInt32 && divisor == math.Trunc(divisor)) {
		return fmt.Errorf("reduce of %v: AVG needs a whole divisor from 1 to %d, not %v", t, math.MaxInt32, divisor)
	}
	count := C.size_t(len(dst) / t.Size())
	to, to2 := address(dst), address(dst2)
	if len(srcs) <= 2 {
		C.scr_go_reduce2(to, to2, address(srcs[0]), address(srcs[len(srcs)-1]), C.int(len(srcs)), count, C.int(t), C.int(op),
			C.double(divisor))
		return nil
	}
	var pins runtime.Pinner
	defer pins.Unpin()
	from := make([]unsafe.Pointer, len(srcs))
	for i, s := range srcs {
		from[i] = address(s)
		if from[i] != nil {
			pins.Pin(from[i])
		}
	}
	C.scr_go_reduce(to, to2, &from[0], C.int(len(from)), count, C.int(t), C.int(op), C.double(divisor))
	return nil
}

// ScaleInto multiplies src by factor into dst, which may be src: PREMUL_SUM's own contribution.
func ScaleInto(dst, src []byte, t coll.DataType, factor float64) error {
	if err := coll.Defined(coll.PremulSum, t); err != nil {
		return err
	}
	if len(dst) != len(src) || len(dst)%t.Size() != 0 {
		return fmt.Errorf("scaling %d bytes of %v into %d: equal lengths and whole elements are needed",
			len(src), t, len(dst))
	}
	C.scr_go_scale(address(dst), address(src), C.size_t(len(dst)/t.Size()), C.int(t), C.double(factor))
	return nil
}

func address(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }
