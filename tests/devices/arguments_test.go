package devices

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device/ascend"
)

// Arguments of calls that TestArgumentsOfEachCall and TestArgumentsOfLibraries leave out: of the start, of questions, of what follows an
// error, and of calls by which a library is asked how it is.

// The number of devices is asked for behind the start.
func TestArgumentsOfTheStart(t *testing.T) {
	calls := map[string][]string{"ascend": {"aclInit 0", "aclrtGetDeviceCount *"}, "cambricon": {"cnrtGetDeviceCount *"}}
	eachVendor(t, func(t *testing.T, v vendor) {
		isolated(t, folder(t), []string{"EMULATOR_CALLS=" + filepath.Join(t.TempDir(), "calls")}, func(t *testing.T) {
			n, err := v.devices()
			require.NoError(t, err)
			require.Equal(t, 2, n)
			r := &recording{t: t, path: os.Getenv("EMULATOR_CALLS"), vars: map[string]uintptr{}}
			made := r.calls()
			require.Len(t, made, len(calls[v.name]), "%v", made)
			for i, want := range calls[v.name] {
				require.True(t, r.fits(made[i], want), "%q instead of %q", made[i], want)
			}
		})
	})
}

// The probe of a device waits for a stream that it has made, in milliseconds; a capture is asked about by its stream, and memory by its
// address; memory that cannot be mapped is freed at the address at which it was allocated.
func TestArgumentsOfAscendBesideOperations(t *testing.T) {
	v := vendors[0]
	isolated(t, folder(t), []string{"EMULATOR_CALLS=" + filepath.Join(t.TempDir(), "calls")}, func(t *testing.T) {
		runtime.LockOSThread()
		b := newBed(t, v)
		r := &recording{t: t, path: os.Getenv("EMULATOR_CALLS"), vars: map[string]uintptr{"caller": b.caller.Handle, "data": b.data}}
		opened := r.calls()
		var streams, waits []string
		for i, call := range opened {
			if strings.HasPrefix(call, "aclrtCreateStreamWithConfig ") {
				streams = append(streams, strings.TrimPrefix(opened[i+1], "-> "))
			}
			if found := regexp.MustCompile(`^aclrtSynchronizeStreamWithTimeout (\d+) 2000$`).FindStringSubmatch(call); found != nil {
				waits = append(waits, found[1])
			}
			if strings.HasPrefix(call, "aclrtSetDevice 1") && strings.HasPrefix(opened[i+1], "aclrtGetCurrentContext ") {
				r.fits(opened[i+2], "-> context1")
			}
		}
		require.NotEmpty(t, waits, "%v", opened)
		for _, stream := range waits {
			require.True(t, slices.Contains(streams, stream), "stream %s of %v", stream, streams)
		}
		r.expect("Captured", func() error { return ascend.Captured(used, b.caller.Handle) }, inside(v, "aclmdlRICaptureGetInfo caller * *")...)
		r.expect("Locate", func() error {
			index, found, err := ascend.Locate(b.data)
			if err == nil && (index != used || !found) {
				err = errors.New("the memory is elsewhere")
			}
			return err
		}, "aclrtPointerGetAttributes data *")
		b.plan("aclrtHostRegister@1=#207001")
		r.expect("Pin", func() error {
			_, err := b.d.Pin(300)
			require.ErrorContains(t, err, "aclrtHostRegister")
			return nil
		}, inside(v, "aclrtMallocHost * 8192", "-> allocated", "aclrtHostRegister * 4096 0 *", "aclrtFreeHost allocated")...)
	})
}

// HCCL's broadcast has one buffer, so the root copies its input into the output first: bytes, where the broadcast counts elements.
func TestArgumentsOfABroadcastOfHCCL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "calls")
	all(t, 2, only(vendors[0]), map[int][]string{0: {"EMULATOR_CALLS=" + path}}, func(r *rank) {
		lengths := []int{5, 3}
		op := coll.Op{Kind: coll.AllGather, Type: coll.Int32, OutBlocks: []uint64{20, 12}}
		in := [][]byte{elements(coll.Int32, input(coll.Int32, r.rank, lengths[r.rank]))}
		r.same("all_gather", r.operate(op, in, room(32), false), slices.Concat(elements(coll.Int32, input(coll.Int32, 0, 5)), elements(coll.Int32, input(coll.Int32, 1, 3))))
		require.NoError(t, r.group.Destroy())
	})
	if os.Getenv(insideVariable) != "" || t.Failed() {
		return
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var made []string
	for _, call := range strings.Split(string(text), "\n") {
		within := strings.HasPrefix(call, "aclrtMemcpyAsync ") && strings.Fields(call)[5] == "3"
		if within || strings.HasPrefix(call, "HcclBroadcast ") {
			made = append(made, call)
		}
	}
	r := &recording{t: t, vars: map[string]uintptr{}}
	want := []string{"aclrtMemcpyAsync ?first 20 ?in 20 3 ?stream", "HcclBroadcast first 5 2 0 ?comm stream", "HcclBroadcast ?second 3 2 1 comm stream"}
	require.Len(t, made, len(want), "%v", made)
	for i := range want {
		require.True(t, r.fits(made[i], want[i]), "%q instead of %q, where %v", made[i], want[i], r.vars)
	}
	require.Equal(t, r.vars["first"]+20, r.vars["second"])
}

// A library is asked how its communicator is, and told to end it, by the handle with which it carries out operations.
func TestArgumentsOfQuestionsAndAborts(t *testing.T) {
	wants := map[string][]string{"ascend": {"HcclAllReduce * * * 4 0 ?comm *", "HcclGetCommAsyncError comm *"},
		"cambricon": {"cnclAllReduce * * * 18 0 ?comm *", "cnclGetCommAsyncError comm", "cnclAbortComm comm"}}
	eachVendor(t, func(t *testing.T, v vendor) {
		path := filepath.Join(t.TempDir(), "calls")
		all(t, 2, only(v), recordedIn(path), func(r *rank) {
			r.begin()
			r.recorded(strings.Fields(wants[v.name][1])[0], r.rank)
			r.group.Abort("for the test")
			if v.name == "cambricon" {
				r.recorded("cnclAbortComm", r.rank) // in the background
			}
			_ = r.group.Destroy()
		})
		if os.Getenv(insideVariable) != "" || t.Failed() {
			return
		}
		text, err := os.ReadFile(path + "0")
		require.NoError(t, err)
		r := &recording{t: t, vars: map[string]uintptr{}}
		for _, want := range wants[v.name] {
			name, _, _ := strings.Cut(want, " ")
			made := 0
			for _, call := range strings.Split(string(text), "\n") {
				if strings.HasPrefix(call, name+" ") {
					made++
					require.True(t, r.fits(call, want), "%q instead of %q, where %v", call, want, r.vars)
				}
			}
			require.Positive(t, made, name)
		}
	})
}
