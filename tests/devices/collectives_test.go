package devices

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/tests/quick"
)

const n = 24 // elements of a block

// same compares the bytes of buffers.
func (r *rank) same(what string, got [][]byte, want ...[]byte) {
	r.t.Helper()
	if !bytes.Equal(slices.Concat(got...), slices.Concat(want...)) {
		r.t.Errorf("%s: %v instead of %v", what, slices.Concat(got...), slices.Concat(want...))
	}
}

func room(bytes int) [][]byte { return [][]byte{make([]byte, bytes)} }

// reductions reduces all types by all reductions.
func (r *rank) reductions() {
	for op := range coll.ReduceOpCount {
		for t := range coll.DataTypeCount {
			floats := t == coll.Float16 || t == coll.BFloat16 || t == coll.Float32 || t == coll.Float64
			if coll.Defined(op, t) != nil || !floats && (op == coll.Avg || op == coll.PremulSum) || t == coll.Complex64 && op == coll.Product || t == coll.Complex128 && op == coll.Product {
				continue
			}
			var inputs [][]float64
			for i := range r.size {
				inputs = append(inputs, input(t, i, n))
			}
			got := r.operate(coll.Op{Kind: coll.AllReduce, Type: t, Reduce: op, Factor: 0.5}, [][]byte{elements(t, inputs[r.rank])}, room(n*t.Size()), op == coll.Max)
			want := reduced(op, t, 0.5, inputs...)
			if op == coll.Avg && r.size != 2 && r.size != 4 {
				r.t.Fatal("the average is not exact")
			}
			r.same(fmt.Sprint(op, " of ", t), got, elements(t, want))
		}
	}
}

// block is what a rank gives to another one.
func block(t coll.DataType, from, to, n int) []byte { return elements(t, input(t, from+2*to, n)) }

// each concatenates what f returns for each rank.
func (r *rank) each(f func(i int) []byte) (all []byte) {
	for i := range r.size {
		all = append(all, f(i)...)
	}
	return all
}

// movements carries out the collectives that move data, and those that reduce and move, in the forms with one buffer, with lists and
// with blocks of different lengths.
func (r *rank) movements(t coll.DataType) {
	bytes, last, me := n*t.Size(), r.size-1, r.rank
	mine := [][]byte{block(t, me, 0, n)}
	everybody := r.each(func(i int) []byte { return block(t, i, 0, n) })
	lists := func() (list [][]byte) {
		for range r.size {
			list = append(list, make([]byte, bytes))
		}
		return list
	}
	toAll := func(from int) (list [][]byte) {
		for i := range r.size {
			list = append(list, block(t, from, i, n))
		}
		return list
	}
	forMe := r.each(func(i int) []byte { return block(t, i, me, n) })

	r.same("broadcast", r.operate(coll.Op{Kind: coll.Broadcast, Type: t, Root: last}, mine, nil, true), block(t, last, 0, n))
	r.same("all_gather", r.operate(coll.Op{Kind: coll.AllGather, Type: t}, mine, room(bytes*r.size), false), everybody)
	r.same("all_gather of a list", r.operate(coll.Op{Kind: coll.AllGather, Type: t}, mine, lists(), false), everybody)
	r.same("all_to_all", r.operate(coll.Op{Kind: coll.AllToAll, Type: t}, [][]byte{slices.Concat(toAll(me)...)}, room(bytes*r.size), false), forMe)
	r.same("all_to_all of lists", r.operate(coll.Op{Kind: coll.AllToAll, Type: t}, toAll(me), lists(), false), forMe)

	var gathered, scattered [][]byte
	if me == last {
		gathered, scattered = lists(), toAll(me)
	}
	got := r.operate(coll.Op{Kind: coll.Gather, Type: t, Root: last}, mine, gathered, false)
	if me == last {
		r.same("gather", got, everybody)
	}
	r.same("scatter", r.operate(coll.Op{Kind: coll.Scatter, Type: t, Root: last}, scattered, room(bytes), false), block(t, last, me, n))

	// Rank i has i elements for everybody, and everybody has i elements for rank i: rank 0 has none.
	var lengths, to, from []uint64
	total, sent, received := 0, []byte{}, []byte{}
	for i := range r.size {
		lengths, total = append(lengths, uint64(i*t.Size())), total+i*t.Size()
		to, from = append(to, uint64((me+i)%3*t.Size())), append(from, uint64((me+i)%3*t.Size()))
		sent, received = append(sent, block(t, me, i, (me+i)%3)...), append(received, block(t, i, me, (me+i)%3)...)
	}
	r.same("all_gather of different lengths", r.operate(coll.Op{Kind: coll.AllGather, Type: t, OutBlocks: lengths}, [][]byte{block(t, me, 0, me)}, room(total), false),
		r.each(func(i int) []byte { return block(t, i, 0, i) }))
	r.same("all_to_all of different lengths", r.operate(coll.Op{Kind: coll.AllToAll, Type: t, InBlocks: to, OutBlocks: from}, [][]byte{sent}, room(len(received)), false), received)
}

// sums carries out reductions with a root, and those whose result is scattered.
func (r *rank) sums() {
	const t = coll.Float32
	me, last := r.rank, r.size-1
	var inputs, long [][]float64
	for i := range r.size {
		inputs, long = append(inputs, input(t, i, n)), append(long, input(t, i, n*r.size))
	}
	var out [][]byte
	if me == last {
		out = room(4 * n)
	}
	got := r.operate(coll.Op{Kind: coll.Reduce, Type: t, Root: last}, [][]byte{elements(t, inputs[me])}, out, false)
	if me == last {
		r.same("reduce", got, elements(t, reduced(coll.Sum, t, 0, inputs...)))
	}
	whole := reduced(coll.Sum, t, 0, long...)
	got = r.operate(coll.Op{Kind: coll.ReduceScatter, Type: t}, [][]byte{elements(t, long[me])}, room(4*n), false)
	r.same("reduce_scatter", got, elements(t, whole[me*n:(me+1)*n]))
	var blocks []uint64
	at, total := 0, 0
	for i := range r.size {
		if i < me {
			at += i + 1
		}
		blocks, total = append(blocks, uint64(4*(i+1))), total+i+1
	}
	got = r.operate(coll.Op{Kind: coll.ReduceScatter, Type: t, InBlocks: blocks}, [][]byte{elements(t, long[me][:total])}, room(4*(me+1)), false)
	r.same("reduce_scatter of different lengths", got, elements(t, whole[at:at+me+1]))
	r.operate(coll.Op{Kind: coll.Barrier}, nil, nil, false)
}

// Every collective, all types and reductions: what the library lacks comes from the staged engine, in the same order.
func TestCollectivesOfLibraries(t *testing.T) {
	eachVendor(t, func(t *testing.T, v vendor) {
		for _, size := range []int{2, 4} {
			for _, schedule := range []string{"lazy", "eager", "random"} {
				t.Run(fmt.Sprint(size, " ", schedule), func(t *testing.T) {
					if testing.Short() && (size == 4) != (schedule == "random") {
						t.Skip("with -short there is one schedule for 4 ranks, and two for 2")
					}
					if schedule == "eager" {
						quick.Skip(t, "the quick tests have one schedule for each size")
					}
					all(t, size, only(v), everywhere(size, "EMULATOR_SCHEDULE="+schedule), func(r *rank) {
						r.reductions()
						r.movements(coll.Float32)
						r.movements(coll.Bool)
						r.movements(coll.Complex128)
						r.sums()
						if !r.has(engines[v.name]) {
							t.Error("the library has carried out nothing")
						}
						if found := reports(r.Library); found != "" {
							t.Error(found)
						}
						require.NoError(t, r.group.Destroy())
					})
				})
			}
		}
	})
}

// The library's kernels come into streams of a framework with a launch queue, behind what that has launched.
func TestCollectivesInStreamsOfAFramework(t *testing.T) {
	for _, schedule := range []string{"lazy", "eager", "random"} {
		t.Run(schedule, func(t *testing.T) {
			if schedule != "random" {
				quick.Skip(t, "the quick tests have one schedule")
			}
			all(t, 2, only(vendors[0]), everywhere(2, "EMULATOR_SCHEDULE="+schedule, bridgeVariable+"=1"), func(r *rank) {
				r.reductions()
				r.movements(coll.Float32)
				r.sums()
				if found := reports(r.Library); found != "" || !r.has("hccl") {
					t.Error(found)
				}
				require.NoError(t, r.group.Destroy())
			})
		})
	}
}

// scaled carries out what libraries lack, with two ranks.
func (r *rank) scaled(op coll.ReduceOp) {
	const t = coll.Float32
	got := r.operate(coll.Op{Kind: coll.AllReduce, Type: t, Reduce: op, Factor: 0.5}, [][]byte{elements(t, input(t, r.rank, n))}, room(n*t.Size()), false)
	r.same(op.String(), got, elements(t, reduced(op, t, 0.5, input(t, 0, n), input(t, 1, n))))
}

// AVG and PREMUL_SUM are a SUM of the library where the frameworks of all ranks have kernels. A table that ends before those has none, whatever
// lies behind its end; then the operations go through host memory on all ranks, and the user is told.
func TestKernelsOfAFramework(t *testing.T) {
	calls := map[string]string{"ascend": "HcclAllReduce ", "cambricon": "cnclAllReduce "}
	eachVendor(t, func(t *testing.T, v vendor) {
		for name, older := range map[string]bool{"all ranks have kernels": false, "rank 1 has none": true} {
			t.Run(name, func(t *testing.T) {
				path, variables := filepath.Join(t.TempDir(), "calls"), everywhere(2, bridgeVariable+"=1", "SAGECOMM_DEBUG=INFO")
				variables[0] = append(slices.Clone(variables[0]), "EMULATOR_CALLS="+path)
				list := ranks(t, 2, only(v), variables, func(r *rank) {
					if older && r.rank == 1 {
						r.ScalesNot()
					}
					r.scaled(coll.Avg)
					r.scaled(coll.PremulSum)
					require.Equal(t, !older, r.has(engines[v.name]))
					require.Empty(t, reports(r.Library))
					require.NoError(t, r.group.Destroy())
				})
				for i, o := range list {
					require.NoError(t, o.err, "rank %d: %s", i, o.output)
					require.Contains(t, o.output, ran)
					lines := strings.Count(o.output, "all_reduce with AVG of float32 goes through host memory and not through "+engines[v.name])
					require.Equal(t, older, lines == 1, "rank %d: %s", i, o.output)
				}
				if list == nil {
					return
				}
				found := 0
				for _, call := range libraryCalls(t, path) {
					if strings.HasPrefix(call, calls[v.name]) {
						found++
					}
				}
				require.Equal(t, map[bool]int{false: 2, true: 0}[older], found)
			})
		}
	})
}

// A call without kernels is refused where the ranks have made their communicator with calls that have them.
func TestAFrameworkThatHasLostItsKernels(t *testing.T) {
	all(t, 2, only(vendors[1]), nil, func(r *rank) {
		r.scaled(coll.Avg)
		r.ScalesNot()
		data := r.put(elements(coll.Float32, input(coll.Float32, r.rank, n)))
		op := coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Reduce: coll.Avg}
		f := r.finish(r.issue(op, [][]byte{data}, [][]byte{data}))
		require.NotNil(t, f)
		require.Contains(t, f.Message, "a framework without kernels that multiply and divide (sagecomm_bridge)")
		require.Contains(t, f.Message, "SAGECOMM_ENGINE=staged")
		_ = r.group.Destroy()
	})
}

// A library is not given the devices of another vendor, though this process has both libraries.
func TestALibraryOfAnotherVendor(t *testing.T) {
	v := vendors[1]
	v.more = []string{"libascendcl.so", "libhccl.so"}
	path := filepath.Join(t.TempDir(), "calls")
	all(t, 2, only(v), everywhere(2, "EMULATOR_CALLS="+path), func(r *rank) {
		r.sums()
		require.NoError(t, r.group.Destroy())
	})
	if os.Getenv(insideVariable) == "" {
		require.Empty(t, libraryCalls(t, path))
	}
}

// Ranks whose devices are of different vendors have no library in common, and go through host memory.
func TestDevicesOfDifferentVendors(t *testing.T) {
	all(t, 2, func(rank int) vendor { return vendors[rank] }, nil, func(r *rank) {
		r.reductions()
		r.movements(coll.Float32)
		r.sums()
		if r.has("hccl") || r.has("cncl") {
			t.Error("a library has carried out an operation")
		}
		require.NoError(t, r.group.Destroy())
	})
}

// libraryCalls returns the recorded calls of a library of collectives, without questions how a communicator is, which come at any time.
func libraryCalls(t *testing.T, path string) (list []string) {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, line := range strings.Split(string(text), "\n") {
		for _, prefix := range []string{"Hccl", "cncl", "item ", "place "} {
			if strings.HasPrefix(line, prefix) && !strings.Contains(line, "AsyncError") {
				list = append(list, line)
			}
		}
	}
	return list
}

// expectedOf are the calls of rank 0 of 2. A name that begins with ? is bound where it comes first. Counts are elements; a
// reduce_scatter counts those of its output; what a rank has for itself is no call. The order and the numbers are those of the vendors'
// headers.
var expectedOf = map[string][]string{
	"ascend": {
		"HcclGetRootInfo *", "HcclCommInitRootInfo 2 * 0 *",
		"HcclAllReduce ?in0 ?out0 6 4 0 ?comm ?stream",   // fp32, SUM
		"HcclAllReduce ?in1 ?out1 6 0 2 comm stream",     // bool: MAX of int8
		"HcclAllReduce ?in2 ?out2 12 4 0 comm stream",    // complex64: two fp32
		"HcclBroadcast ?at 6 11 1 comm stream",           // bf16, root 1
		"HcclReduce ?in4 * 6 2 3 1 comm stream",          // int32, MIN, root 1
		"HcclAllGather ?in5 ?out5 6 5 comm stream",       // int64
		"HcclReduceScatter ?in6 ?out6 3 3 1 comm stream", // fp16, PRODUCT
		"HcclBatchSendRecv * 2 comm stream", "item 0 * 3 4 1", "item 1 * 3 4 1",
		"HcclCommDestroy comm",
	},
	"cambricon": {
		"cnclGetCliqueId *", "cnclInitComms * 1 * * 2 *", "place 0 0",
		"cnclAllReduce ?in0 ?out0 6 18 0 ?comm ?stream",
		"cnclAllReduce ?in1 ?out1 6 48 2 comm stream", // bool: MAX of uint8
		"cnclAllReduce ?in2 ?out2 12 18 0 comm stream",
		"cnclBroadcast ?at at 6 17 1 comm stream",
		"cnclReduce ?in4 * 6 34 3 1 comm stream",
		"cnclAllGather ?in5 ?out5 6 35 comm stream",
		"cnclReduceScatter ?in6 ?out6 3 16 1 comm stream",
		"cnclGroupStart", "cnclSend * 3 18 1 comm stream", "cnclRecv * 3 18 1 comm stream", "cnclGroupEnd",
		"cnclFreeComm comm",
	},
}

// The table above has each argument of each call.
func TestArgumentsOfLibraries(t *testing.T) {
	eachVendor(t, func(t *testing.T, v vendor) {
		path := filepath.Join(t.TempDir(), "calls")
		all(t, 2, only(v), map[int][]string{0: {"EMULATOR_CALLS=" + path}}, func(r *rank) {
			sized := func(t coll.DataType, n int) [][]byte { return [][]byte{elements(t, input(t, r.rank, n))} }
			reduce := func(t coll.DataType, op coll.ReduceOp, out int, kind coll.Kind, root int) {
				r.operate(coll.Op{Kind: kind, Type: t, Reduce: op, Root: root}, sized(t, 6), room(out*t.Size()), false)
			}
			reduce(coll.Float32, coll.Sum, 6, coll.AllReduce, 0)
			reduce(coll.Bool, coll.Sum, 6, coll.AllReduce, 0)
			reduce(coll.Complex64, coll.Sum, 6, coll.AllReduce, 0)
			r.operate(coll.Op{Kind: coll.Broadcast, Type: coll.BFloat16, Root: 1}, sized(coll.BFloat16, 6), nil, true)
			reduce(coll.Int32, coll.Min, 6, coll.Reduce, 1)
			reduce(coll.Int64, coll.Sum, 12, coll.AllGather, 0)
			reduce(coll.Float16, coll.Product, 3, coll.ReduceScatter, 0)
			reduce(coll.Float32, coll.Sum, 6, coll.AllToAll, 0)
			require.NoError(t, r.group.Destroy())
		})
		if os.Getenv(insideVariable) != "" || t.Failed() {
			return
		}
		r := &recording{t: t, vars: map[string]uintptr{}}
		calls, want := libraryCalls(t, path), expectedOf[v.name]
		for i := range max(len(calls), len(want)) {
			if i >= len(calls) || i >= len(want) || !r.fits(calls[i], want[i]) {
				t.Fatalf("call %d of\n%s\nis not that of\n%s\nwhere %v", i, strings.Join(calls, "\n"), strings.Join(want, "\n"), r.vars)
			}
		}
		for i := range 7 {
			if i != 3 && i != 4 && r.vars[fmt.Sprint("in", i)] == r.vars[fmt.Sprint("out", i)] {
				t.Errorf("the input and the output of call %d are the same", i)
			}
		}
	})
}
