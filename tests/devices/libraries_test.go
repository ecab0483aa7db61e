package devices

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/engine/cncl"
	"sagecomm/internal/engine/hccl"
	"sagecomm/tests/devices/framework"
	"sagecomm/tests/quick"
)

// sum begins an all_reduce, which the library carries out.
func (r *rank) sum() *coll.Failure {
	data := r.put(elements(coll.Float32, input(coll.Float32, r.rank, n)))
	in, out := [][]byte{data}, [][]byte{data}
	return r.finish(r.issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32}, in, out))
}

// fails returns the failure of the next operation.
func (r *rank) fails() *coll.Failure {
	r.t.Helper()
	f := r.sum()
	require.NotNil(r.t, f, "the operation has succeeded")
	return f
}

// ends compares the failures of an operation and of the next one, and ends the rank. A process may exit while kernels that HCCL cannot
// end stay in a stream.
func (r *rank) ends(want coll.Status, texts ...string) {
	r.t.Helper()
	for range 2 {
		began := time.Now()
		f := r.fails()
		require.Less(r.t, time.Since(began), 10*time.Second) // 2 s, and what a busy machine takes
		require.Equal(r.t, want, f.Status, f.Message)
		for _, text := range texts {
			require.Contains(r.t, f.Message, text)
		}
	}
	_ = r.group.Destroy()
}

// layouts are how many ranks each host has, in tests of peers that do not come. Of one host the ranks have no names.
var layouts = [][]int{{2}, {4}, {1, 1}, {2, 2}}

// onHosts gives ranks the variables by which they are on hosts that have that many each.
func onHosts(sizes []int) map[int][]string {
	list := map[int][]string{}
	for host, size := range sizes {
		for range size {
			list[len(list)] = []string{fmt.Sprint("SAGECOMM_HOSTID=h", host)}
		}
	}
	return list
}

// inLayouts runs a part of a test with each vendor and layout.
func inLayouts(t *testing.T, body func(t *testing.T, v vendor, size int, variables map[int][]string)) {
	t.Helper()
	eachVendor(t, func(t *testing.T, v vendor) {
		for _, hosts := range layouts {
			t.Run(strings.Trim(strings.ReplaceAll(fmt.Sprint(hosts), " ", "x"), "[]"), func(t *testing.T) {
				if len(hosts) == 1 {
					body(t, v, hosts[0], nil)
					return
				}
				size := 0
				for _, of := range hosts {
					size += of
				}
				if size > len(hosts) {
					quick.Skip(t, "two hosts with a rank each are enough")
				}
				body(t, v, size, onHosts(hosts))
			})
		}
	})
}

// A kernel waits for a dead peer for ever. The survivors' operations fail, whether the library can end the kernel, as CNCL, or not, as
// HCCL, and their processes end.
func TestAPeerOfALibraryDies(t *testing.T) {
	inLayouts(t, func(t *testing.T, v vendor, size int, variables map[int][]string) {
		last := size - 1
		list := ranks(t, size, only(v), variables, func(r *rank) {
			r.begin()
			require.True(t, r.has(engines[v.name]), "the library has carried out no operation")
			if r.rank == last {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			r.ends(coll.PeerFailure, fmt.Sprintf("Connection closed by peer: rank %d (", last))
		})
		for i, o := range list {
			survived := o.err == nil && strings.Contains(o.output, ran)
			require.Equal(t, i != last, survived, "rank %d: %v\n%s", i, o.err, o.output)
		}
	})
}

// A kernel waits for a peer that does not call. The operations of the others time out, and their processes end, as after a death.
func TestARankOfALibraryDoesNotCall(t *testing.T) {
	inLayouts(t, func(t *testing.T, v vendor, size int, variables map[int][]string) {
		if variables == nil {
			quick.Skip(t, "a case waits for a second, and between hosts there is more to go wrong")
		}
		last := size - 1
		all(t, size, only(v), variables, func(r *rank) {
			r.begin()
			store, err := bootstrap.NewFileStore(os.Getenv(storeVariable))
			require.NoError(t, err)
			if r.rank < last {
				require.NoError(t, r.group.SetTimeout(time.Second))
				r.ends(coll.Timeout, fmt.Sprintf("rank %d (", last))
				require.NoError(t, store.Set(fmt.Sprint("timed out/", r.rank), nil))
				return
			}
			for i := range last {
				_, err := store.Get(fmt.Sprint("timed out/", i), opBound)
				require.NoError(t, err)
			}
			_ = r.group.Destroy()
		})
	})
}

// An abort ends an operation whose peer does not come. Where the library ends its kernels, the process goes on with another group.
func TestAnAbortOfALibrary(t *testing.T) {
	eachVendor(t, func(t *testing.T, v vendor) {
		all(t, 2, only(v), nil, func(r *rank) {
			r.begin()
			store, err := bootstrap.NewFileStore(os.Getenv(storeVariable))
			require.NoError(t, err)
			if r.rank == 0 {
				data := r.put(elements(coll.Float32, input(coll.Float32, 0, n)))
				w, f := r.issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32}, [][]byte{data}, [][]byte{data})
				require.Nil(t, f)
				began := time.Now()
				r.group.Abort("for the test")
				require.NoError(t, store.Set("aborted", nil))
				for done := false; f == nil && !done; {
					done, f = w.Wait(time.Second)
				}
				require.NotNil(t, f)
				require.Equal(t, coll.Aborted, f.Status, f.Message)
				require.Less(t, time.Since(began), 5*time.Second)
				if v.name == "cambricon" { // the kernel has ended, and whoever waits for it goes on
					r.Wait()
					r.Drain()
					r.call(v.synchronize, r.stream)
				}
			} else {
				_, err := store.Get("aborted", opBound)
				require.NoError(t, err)
				r.fails()
			}
			_ = r.group.Destroy()
			if v.name == "ascend" {
				return
			}
			r.group = r.join("second", nil)
			require.Nil(t, r.sum())
			require.NoError(t, r.group.Destroy())
		})
	})
}

// Calls on a group that was aborted are refused with the reason of the abort. They make no call of the vendor's functions, nor of the
// framework's.
func TestCallsAfterAnAbort(t *testing.T) {
	eachVendor(t, func(t *testing.T, v vendor) {
		for _, engine := range []string{engines[v.name], "staged"} {
			t.Run(engine, func(t *testing.T) {
				variables := recordedIn(filepath.Join(t.TempDir(), "calls"), "SAGECOMM_ENGINE="+engine)
				variables[1] = append(variables[1], "SAGECOMM_ENGINE="+engine)
				all(t, 2, only(v), variables, func(r *rank) {
					r.begin()
					data, gathered := r.put(make([]byte, 16)), r.put(make([]byte, 32))
					if r.bridged {
						r.Drain()
					}
					r.call(v.synchronize, r.stream)
					r.group.Abort("for the test")
					if engine == "cncl" {
						r.recorded("cnclAbortComm", r.rank) // in the background
					}
					launched := 0
					if r.bridged {
						launched = r.Queued()
					}
					deadline := time.Now().Add(time.Minute)
					for made := r.callsOfRefused(t, data, gathered); made != ""; made = r.callsOfRefused(t, data, gathered) {
						// The end of the communicator in the background calls the device, too, and ends.
						require.True(t, time.Now().Before(deadline), "calls of the device: %s", made)
					}
					if r.bridged {
						require.Equal(t, launched, r.Queued())
					}
					_ = r.group.Destroy()
				})
			})
		}
	})
}

// callsOfRefused issues operations of a group that was aborted, and returns what was called of the device meanwhile.
func (r *rank) callsOfRefused(t *testing.T, data, gathered []byte) string {
	before, err := os.ReadFile(os.Getenv("EMULATOR_CALLS"))
	require.NoError(t, err)
	for _, c := range []struct {
		op      coll.Op
		in, out []byte
	}{
		{coll.Op{Kind: coll.AllReduce, Type: coll.Float32}, data, data},
		{coll.Op{Kind: coll.AllReduce, Type: coll.Float32, Reduce: coll.BXor}, data, data},
		{coll.Op{Kind: coll.AllGather, Type: coll.Float32}, data, gathered},
		{coll.Op{Kind: coll.Barrier}, nil, nil},
		{coll.Op{Kind: coll.Send, Type: coll.Float32, Root: 1 - r.rank}, data, nil},
		{coll.Op{Kind: coll.Recv, Type: coll.Float32, Root: 1 - r.rank}, nil, data},
	} {
		of := func(b []byte) (list [][]byte) {
			if b != nil {
				list = append(list, b)
			}
			return list
		}
		f := r.finish(r.issue(c.op, of(c.in), of(c.out)))
		require.NotNil(t, f, c.op.Kind)
		require.Equal(t, coll.Aborted, f.Status, c.op.Kind)
		require.Contains(t, f.Message, "for the test", c.op.Kind)
	}
	after, err := os.ReadFile(os.Getenv("EMULATOR_CALLS"))
	require.NoError(t, err)
	return string(after[len(before):])
}

// An asynchronous error of the library makes the group fail on all ranks.
func TestAnAsynchronousErrorOfALibrary(t *testing.T) {
	plans := map[string]string{"ascend": "HcclGetCommAsyncError@3+=#21", "cambricon": "cnclGetCommAsyncError@3+=#22"}
	texts := map[string]string{"ascend": "error cqe (21)", "cambricon": "CNCL_RET_ASYNC_ERROR (0x16)"}
	eachVendor(t, func(t *testing.T, v vendor) {
		all(t, 2, only(v), map[int][]string{0: {"EMULATOR_FAULTS=" + plans[v.name]}}, func(r *rank) {
			var f *coll.Failure
			for end := time.Now().Add(opBound); f == nil && time.Now().Before(end); {
				f = r.sum()
			}
			require.NotNil(t, f)
			require.Contains(t, f.Message, texts[v.name])
			require.Contains(t, f.Message, "rank 0")
			_ = r.group.Destroy()
		})
	})
}

// Where a rank cannot join, all ranks go through host memory, and operations give the same results.
func TestRanksThatDoWithoutALibrary(t *testing.T) {
	plans := map[string][]string{"ascend": {"HcclGetRootInfo@1=#15", "HcclCommInitRootInfo@1=#11", "aclrtGetPhyDevIdByLogicDevId@1+=#100000"},
		"cambricon": {"cnclGetCliqueId@1=#1", "cnclInitComms@1=#51", "cnrtDeviceGetPCIBusId@1+=#100006"}}
	eachVendor(t, func(t *testing.T, v vendor) {
		for _, plan := range plans[v.name] {
			call, _, _ := strings.Cut(plan, "@")
			t.Run(call, func(t *testing.T) {
				all(t, 2, only(v), map[int][]string{0: {"EMULATOR_FAULTS=" + plan}}, func(r *rank) {
					for range 2 {
						require.Nil(t, r.sum())
					}
					require.False(t, r.has(engines[v.name]), "the library has carried out an operation")
					require.NoError(t, r.group.Destroy())
				})
			})
		}
	})
}

// joinsNot runs two ranks whose join of a library fails. They carry out an operation without it, and each ends its communicator.
func joinsNot(t *testing.T, v vendor, variables map[int][]string) {
	t.Helper()
	ends := map[string]string{"ascend": "HcclCommDestroy", "cambricon": "cnclAbortComm"}
	all(t, 2, only(v), variables, func(r *rank) {
		require.Nil(t, r.sum())
		require.False(t, r.has(engines[v.name]), "the library has carried out an operation")
		r.recorded(ends[v.name], r.rank)
		require.NoError(t, r.group.Destroy())
	})
}

// A join that fails on one rank when the library has made the communicator leaves none, on any rank.
func TestCommunicatorsOfAFailedJoin(t *testing.T) {
	plans := map[string]string{"ascend": "HcclGetCommAsyncError@1=#21", "cambricon": "cnclGetCommAsyncError@1=#22"}
	eachVendor(t, func(t *testing.T, v vendor) {
		variables := recordedIn(filepath.Join(t.TempDir(), "calls"), "EMULATOR_FAULTS="+plans[v.name])
		joinsNot(t, v, variables)
	})
}

// A call that returns a communicator when its rank has given the join up leaves none: the thread that is in the call ends it.
func TestACommunicatorThatComesLate(t *testing.T) {
	plans := map[string][2]string{"ascend": {"HcclGetCommAsyncError@1=#21", "HcclCommInitRootInfo@1=late#0@1000"},
		"cambricon": {"cnclGetCommAsyncError@1=#22", "cnclInitComms@1=late#0@1000"}}
	eachVendor(t, func(t *testing.T, v vendor) {
		variables := recordedIn(filepath.Join(t.TempDir(), "calls"), "EMULATOR_FAULTS="+plans[v.name][0])
		variables[1] = append(variables[1], "EMULATOR_FAULTS="+plans[v.name][1])
		joinsNot(t, v, variables)
	})
}

// Ranks that call different operations find out before a kernel waits.
func TestRanksOfALibraryDiffer(t *testing.T) {
	eachVendor(t, func(t *testing.T, v vendor) {
		all(t, 2, only(v), nil, func(r *rank) {
			r.begin()
			data := r.put(make([]byte, 4*(4+r.rank)))
			f := r.finish(r.issue(coll.Op{Kind: coll.AllReduce, Type: coll.Float32}, [][]byte{data}, [][]byte{data}))
			require.NotNil(t, f)
			require.Equal(t, coll.Mismatch, f.Status, f.Message)
			_ = r.group.Destroy()
		})
	})
}

// opened opens the library of collectives of a vendor.
func opened(v vendor) (err error) {
	if v.name == "ascend" {
		_, err = hccl.Open()
	} else {
		_, err = cncl.Open()
	}
	return err
}

// linked makes a library from C code and from the emulator's, without one of its functions.
func linked(t *testing.T, v vendor, code, without string) string {
	t.Helper()
	at := onlyIn(t, v.library)
	if os.Getenv(insideVariable) != "" {
		return at
	}
	source, script := filepath.Join(at, "more.cpp"), filepath.Join(at, "exports.map")
	require.NoError(t, os.WriteFile(source, []byte(code), 0o600))
	require.NoError(t, os.WriteFile(script, []byte("{ global: *; local: "+without+"; };\n"), 0o600))
	objects, err := filepath.Glob(filepath.Join(folder(t), "objects", engines[v.name], "*.o"))
	require.NoError(t, err)
	arguments := append([]string{"-shared", "-o", filepath.Join(at, collectives[v.name]), "-Wl,--version-script=" + script, source}, objects...)
	output, err := exec.CommandContext(t.Context(), "g++", append(arguments, filepath.Join(folder(t), "libemulator.so"))...).CombinedOutput()
	require.NoError(t, err, string(output))
	return at
}

// Each reason for doing without the library is one line.
func TestWhyThereIsNoLibrary(t *testing.T) {
	lacking := map[string]string{"ascend": "HcclBatchSendRecv", "cambricon": "cnclAbortComm"}
	eachVendor(t, func(t *testing.T, v vendor) {
		name := strings.ToUpper(engines[v.name])
		for what, c := range map[string]struct {
			libraries func(t *testing.T) string
			want      string
		}{
			"the runtime is absent": {func(*testing.T) string { return "" }, "no " + called(v) + " runtime: "},
			"the library is absent": {func(t *testing.T) string { return onlyIn(t, v.library) }, "no " + name + ": " + collectives[v.name] + ": cannot open shared object file"},
			"a function is absent":  {func(t *testing.T) string { return linked(t, v, "", lacking[v.name]) }, "has no " + lacking[v.name] + ": it is too old"},
			"it is this project's": {func(t *testing.T) string {
				return linked(t, v, fmt.Sprintf("extern \"C\" int sagecomm_%s_facade; int sagecomm_%s_facade;", engines[v.name], engines[v.name]), "none")
			}, "is sagecomm's own; " + name + " is behind it"},
			"it is there": {func(t *testing.T) string { return onlyIn(t, v.library, collectives[v.name]) }, ""},
		} {
			t.Run(what, func(t *testing.T) {
				if what == "a function is absent" || what == "it is this project's" {
					quick.Skip(t, "it links a library")
				}
				isolated(t, c.libraries(t), nil, func(t *testing.T) {
					err := opened(v)
					if c.want == "" {
						require.NoError(t, err)
						return
					}
					require.ErrorContains(t, err, c.want)
					require.NotContains(t, err.Error(), "\n")
				})
			})
		}
	})
}

// Each result of the library is looked at, whether its code has a name or not, also in the middle of an operation with several calls.
func TestEachFailingCallOfALibrary(t *testing.T) {
	functions := map[string][]string{
		"ascend": {"HcclAllReduce", "HcclBroadcast", "HcclReduce", "HcclAllGather", "HcclReduceScatter", "HcclBatchSendRecv", "aclrtMemcpyAsync"},
		"cambricon": {"cnclAllReduce", "cnclBroadcast", "cnclReduce", "cnclAllGather", "cnclReduceScatter", "cnclGroupStart", "cnclSend", "cnclRecv", "cnclGroupEnd",
			"cnrtMemcpyAsync_V2"},
	}
	eachVendor(t, func(t *testing.T, v vendor) {
		list := functions[v.name]
		if quick.Only() {
			list = list[:2] // a call of each table, some of which take a second
		}
		for _, function := range list {
			t.Run(function, func(t *testing.T) {
				all(t, 2, only(v), nil, func(r *rank) {
					r.begin()
					data, more := r.put(make([]byte, 16)), r.put(make([]byte, 16))
					in, out := [][]byte{data}, [][]byte{more}
					kinds := map[string]coll.Kind{"AllReduce": coll.AllReduce, "Broadcast": coll.AllGather, "Reduce": coll.Reduce, "AllGather": coll.AllGather,
						"ReduceScatter": coll.ReduceScatter}
					op := coll.Op{Kind: coll.AllToAll, Type: coll.Float32}
					if kind, known := kinds[strings.TrimPrefix(strings.TrimPrefix(function, "Hccl"), "cncl")]; known {
						op.Kind = kind
					}
					switch {
					case op.Kind == coll.ReduceScatter:
						out = [][]byte{more[:8]}
					case strings.HasSuffix(function, "Broadcast"): // blocks of different lengths are broadcasts
						op.OutBlocks = []uint64{4, 12}
						in = [][]byte{data[:op.OutBlocks[r.rank]]}
					case op.Kind == coll.AllGather:
						in = [][]byte{data[:8]}
					}
					if r.rank == 0 {
						r.plan(function + "@1=#153") // a code that no table has, of one call among several
					}
					f := r.finish(r.issue(op, in, out))
					r.plan("")
					require.NotNil(t, f)
					require.Contains(t, f.Message, function)
					require.Contains(t, f.Message, "rank 0")
					_ = r.group.Destroy()
				})
			})
		}
	})
}

// recorded waits until the library of a rank has got a call, on any goroutine. Variables of the ranks are those of recordedIn.
func (r *rank) recorded(call string, of int) bool {
	path := os.Getenv("EMULATOR_CALLS")
	for end := time.Now().Add(opBound); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if text, err := os.ReadFile(fmt.Sprint(path[:len(path)-1], of)); err == nil && strings.Contains(string(text), call+" ") {
			return true
		}
	}
	r.t.Errorf("rank %d has not called %s", of, call)
	return false
}

// recordedIn gives two ranks files for their calls, and more variables to rank 0.
func recordedIn(path string, more ...string) map[int][]string {
	return map[int][]string{0: append(more, "EMULATOR_CALLS="+path+"0"), 1: {"EMULATOR_CALLS=" + path + "1"}}
}

// abortedIn issues an operation, which is aborted when the libraries of ranks are in the call for it. It returns how often the library had asked
// for signals by then. Late calls of a rank that has EMULATOR_LATE_UNTIL go on when the abort has begun.
func (r *rank) abortedIn(call string, op coll.Op, data []byte, ranks ...int) (asked int) {
	r.t.Helper()
	over := make(chan struct{})
	go func() {
		defer close(over)
		for _, of := range ranks {
			r.recorded(call, of)
		}
		if r.bridged {
			asked = r.Asked()
		}
		r.group.Abort("for the test")
		if file := os.Getenv("EMULATOR_LATE_UNTIL"); file != "" {
			assert.NoError(r.t, os.WriteFile(file, nil, 0o600))
		}
	}()
	f := r.finish(r.issue(op, [][]byte{data}, [][]byte{data}))
	<-over
	require.NotNil(r.t, f)
	require.Equal(r.t, coll.Aborted, f.Status, f.Message)
	return asked
}

// A library that is in a call when the operation fails queues a kernel later. The end of the operation comes behind that: whoever uses the
// buffers next waits for it.
func TestKernelsThatComeLate(t *testing.T) {
	rules := map[string]string{"ascend": "HcclReduce@1=late#4@100", "cambricon": "cnclReduce@1=late#1@100"}
	eachVendor(t, func(t *testing.T, v vendor) {
		at := t.TempDir()
		variables := recordedIn(filepath.Join(at, "calls"), "EMULATOR_FAULTS="+rules[v.name], "EMULATOR_LATE_UNTIL="+filepath.Join(at, "aborted"))
		all(t, 2, only(v), variables, func(r *rank) {
			r.begin()
			data := r.put(elements(coll.Float32, input(coll.Float32, r.rank, n)))
			op := coll.Op{Kind: coll.Reduce, Type: coll.Float32}
			if r.rank == 1 {
				r.finish(r.issue(op, [][]byte{data}, [][]byte{data}))
				_ = r.group.Destroy()
				return
			}
			call, _, _ := strings.Cut(rules[v.name], "@")
			r.abortedIn(call, op, data, 0, 1)
			if r.bridged {
				r.Wait()
				r.Drain()
			}
			r.copy(uintptrOf(data), r.made(v.mallocHost, uintptr(len(data))), len(data), v.toDevice, r.stream)
			r.recorded("late", 0)
			require.Empty(t, reports(r.Library))
			_ = r.group.Destroy()
		})
	})
}

// HCCL has no end for a call that waits for a peer. The operation fails all the same, and its buffers are kept, because the call may still
// queue a kernel for them. Where nobody keeps them, the user is told. Signals are handled until the wait for the call is given up.
func TestBuffersOfACallThatWaits(t *testing.T) {
	v, kept := vendors[0], ". Do not free the buffers of this operation"
	for name, c := range map[string]struct {
		bridge  string
		change  func(r *rank)
		warning string
	}{
		"kept":             {bridgeVariable + "=1", func(*rank) {}, ""},
		"refused":          {bridgeVariable + "=1", func(r *rank) { r.RefusesToKeep() }, "the framework cannot keep the buffers: the framework frees what it likes" + kept},
		"an older bridge":  {bridgeVariable + "=1", func(r *rank) { r.IsOlder() }, "sagecomm_op.bridge has no function `keep`" + kept},
		"without a bridge": {bridgeVariable + "=", func(*rank) {}, "no access to the streams of the device (sagecomm_op.bridge)" + kept},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "kept" && name != "refused" {
				quick.Skip(t, "each case waits for a second")
			}
			variables := recordedIn(filepath.Join(t.TempDir(), "calls"), c.bridge)
			list := ranks(t, 2, only(v), variables, func(r *rank) {
				r.begin()
				store, err := bootstrap.NewFileStore(os.Getenv(storeVariable))
				require.NoError(t, err)
				if r.rank == 0 {
					data := r.put(elements(coll.Float32, input(coll.Float32, r.rank, n)))
					c.change(r)
					asked := r.abortedIn("HcclReduce", coll.Op{Kind: coll.Reduce, Type: coll.Float32}, data, 0)
					if r.bridged {
						require.Equal(t, name == "kept", r.Kept())
						require.Greater(t, r.Asked(), asked+4, "a second has 20 times to ask")
					}
					require.NoError(t, store.Set("kept", nil))
				} else {
					_, err := store.Get("kept", opBound)
					require.NoError(t, err)
				}
				_ = r.group.Destroy()
			})
			for i, o := range list {
				if o.err != nil || !strings.Contains(o.output, ran) || strings.Contains(o.output, kept) != (i == 0 && c.warning != "") || !strings.Contains(o.output, c.warning) && i == 0 {
					t.Errorf("rank %d: %v\n%s", i, o.err, o.output)
				}
			}
		})
	}
}

// Two threads use a communicator each, and nothing of one gets into the other's calls.
func TestTwoCommunicatorsInTwoThreads(t *testing.T) {
	eachVendor(t, func(t *testing.T, v vendor) {
		all(t, 2, only(v), nil, func(r *rank) {
			second := *r
			second.group = r.join("second", nil)
			second.stream = r.made(v.stream)
			if v.name == "cambricon" {
				var ok bool
				second.Framework, ok = framework.New(v.library, "mlu", second.stream)
				require.True(t, ok)
			}
			over := make(chan struct{})
			go func() {
				defer close(over)
				runtime.LockOSThread()
				second.use(r.rank)
				for range 8 {
					second.movements(coll.Int32)
				}
			}()
			for range 8 {
				r.movements(coll.Float32)
			}
			<-over
			require.NoError(t, r.group.Destroy())
			require.NoError(t, second.group.Destroy())
		})
	})
}
