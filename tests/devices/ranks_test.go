package devices

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
	"sagecomm/pgbackend"
	"sagecomm/tests/devices/framework"
	"sagecomm/tests/devices/raw"
)

// Ranks of a group are processes, each with a device of its own and the libraries of its vendor. On Ascend they are C programs in
// their stream; on Cambricon a framework brings a bridge. Threads of the host have one clock for the checker, because it does not see
// the order that Go gives them.

const (
	rankVariable   = "DEVICES_RANK"
	sizeVariable   = "DEVICES_SIZE"
	storeVariable  = "DEVICES_STORE"
	bridgeVariable = "DEVICES_BRIDGE"
	opBound        = 30 * time.Second
)

var collectives = map[string]string{"ascend": "libhccl.so", "cambricon": "libcncl.so"}

var engines = map[string]string{"ascend": "hccl", "cambricon": "cncl"}

// rank is one rank.
type rank struct {
	*program
	framework.Framework // of Cambricon, and of Ascend with bridgeVariable
	bridged             bool
	rank, size          int
	stream              uintptr
	group               *pgbackend.Group
}

// outcome is what a rank wrote, and how it ended.
type outcome struct {
	output string
	err    error
}

// ranks runs a part of a test on each rank. of gives the vendor of a rank. A rank of variables has these, too.
func ranks(t *testing.T, size int, of func(rank int) vendor, variables map[int][]string, body func(r *rank)) []outcome {
	t.Helper()
	if inside := os.Getenv(insideVariable); inside == t.Name() {
		number, _ := strconv.Atoi(os.Getenv(rankVariable))
		body(newRank(t, of(number), number, size))
		fmt.Println(ran)
		return nil
	} else if inside != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	store := t.TempDir()
	list := make([]outcome, size)
	var running sync.WaitGroup
	for i := range size {
		v := of(i)
		cmd := command(ctx, t, librariesOf(t, v), append([]string{fmt.Sprint(rankVariable, "=", i), fmt.Sprint(sizeVariable, "=", size),
			storeVariable + "=" + store, fmt.Sprint("EMULATOR_DEVICES=", size), "EMULATOR_KICK_MS=2", "EMULATOR_HOST_CLOCKS=shared", "SAGECOMM_PROBE=off"}, variables[i]...))
		running.Go(func() {
			output, err := cmd.CombinedOutput()
			list[i] = outcome{string(output[:min(len(output), 6000)]), err}
		})
	}
	running.Wait()
	return list
}

// librariesOf returns a folder with the libraries of a vendor.
func librariesOf(t *testing.T, v vendor) string {
	t.Helper()
	if len(v.more) > 0 {
		return onlyIn(t, append(v.more, v.library, collectives[v.name])...)
	}
	return onlyIn(t, v.library, collectives[v.name])
}

// all is ranks where all of them end well.
func all(t *testing.T, size int, of func(rank int) vendor, variables map[int][]string, body func(r *rank)) {
	t.Helper()
	for i, o := range ranks(t, size, of, variables, body) {
		if o.err != nil || !strings.Contains(o.output, ran) {
			t.Errorf("rank %d: %v\n%s", i, o.err, o.output)
		}
	}
}

func only(v vendor) func(int) vendor { return func(int) vendor { return v } }

// everywhere gives all ranks the same variables.
func everywhere(size int, variables ...string) map[int][]string {
	list := map[int][]string{}
	for i := range size {
		list[i] = variables
	}
	return list
}

func newRank(t *testing.T, v vendor, number, size int) *rank {
	runtime.LockOSThread()
	r := &rank{program: newProgram(t, v), rank: number, size: size}
	r.use(number)
	r.stream = r.made(v.stream)
	if r.bridged = v.name == "cambricon" || os.Getenv(bridgeVariable) != ""; r.bridged {
		var ok bool
		r.Framework, ok = framework.New(v.library, namesInTorch[v.name], r.stream)
		require.True(t, ok)
	}
	r.group = r.join("first", nil)
	return r
}

// join makes a group.
func (r *rank) join(name string, options map[string]string) *pgbackend.Group {
	r.t.Helper()
	g, err := r.tryJoin(name, options)
	require.NoError(r.t, err)
	return g
}

func (r *rank) tryJoin(name string, options map[string]string) (*pgbackend.Group, error) {
	store, err := bootstrap.NewFileStore(os.Getenv(storeVariable))
	if err != nil {
		return nil, err
	}
	return pgbackend.Get().Create(pgbackend.Config{Rank: r.rank, Size: r.size, Name: name, Timeout: opBound, Store: store, Options: options})
}

// begin carries out an operation, and returns when all ranks have, so that no rank fails in it because another one goes on.
func (r *rank) begin() {
	r.t.Helper()
	if f := r.sum(); f != nil {
		r.t.Fatal(f.Message)
	}
	store, err := bootstrap.NewFileStore(os.Getenv(storeVariable))
	require.NoError(r.t, err)
	require.NoError(r.t, store.Set(fmt.Sprint("begun/", r.rank), nil))
	for i := range r.size {
		_, err := store.Get(fmt.Sprint("begun/", i), opBound)
		require.NoError(r.t, err)
	}
}

// has reports whether an engine has carried out operations on the device. The staged engine has algorithms of its own.
func (r *rank) has(engine string) bool {
	stats, err := r.group.Stats()
	require.NoError(r.t, err)
	for _, row := range stats.Rows {
		if row.Device != "cpu" && row.Algorithm == engine {
			return true
		}
	}
	return false
}

// put allocates memory of the device behind a copy of host memory in the caller's stream.
func (r *rank) put(data []byte) []byte {
	if len(data) == 0 {
		return nil
	}
	at, from := r.made(r.v.malloc, uintptr(len(data)), 0), r.made(r.v.mallocHost, uintptr(len(data)))
	copy(raw.Bytes(from, len(data)), data)
	r.copy(at, from, len(data), r.v.toDevice, r.stream)
	return raw.Bytes(at, len(data))
}

// get returns memory of the device behind what the caller's stream holds.
func (r *rank) get(data []byte) []byte {
	if len(data) == 0 {
		return nil
	}
	to := r.made(r.v.mallocHost, uintptr(len(data)))
	r.copy(to, uintptrOf(data), len(data), r.v.toHost, r.stream)
	r.call(r.v.synchronize, r.stream)
	return raw.Bytes(to, len(data))
}

// issue begins an operation on memory of the device.
func (r *rank) issue(op coll.Op, in, out [][]byte) (runner.Work, *coll.Failure) {
	op.Device, op.Stream, op.Async, op.Ordering = coll.Device{Type: coll.PrivateUse1, Index: r.rank}, r.stream, true, coll.InStream
	if r.bridged {
		op.Ordering = coll.Beside
		return r.group.IssueBridged(op, in, out, r.Bridge())
	}
	return r.group.Issue(op, in, out)
}

// finish waits for an operation.
func (r *rank) finish(w runner.Work, f *coll.Failure) *coll.Failure {
	for done := false; f == nil && !done; {
		done, f = w.Wait(time.Second)
	}
	if f == nil && r.bridged {
		r.Finish()
		r.Drain()
	}
	return f
}

// operate carries out an operation on copies of host memory, and returns the output. In place, the output is the input.
func (r *rank) operate(op coll.Op, in, out [][]byte, inPlace bool) [][]byte {
	r.t.Helper()
	place := func(list [][]byte) (on [][]byte) {
		for _, one := range list {
			on = append(on, r.put(one))
		}
		return on
	}
	inputs := place(in)
	outputs := inputs
	if !inPlace {
		outputs = place(out)
	}
	if f := r.finish(r.issue(op, inputs, outputs)); f != nil {
		r.t.Fatalf("%v of %v: %s", op.Kind, op.Type, f.Message)
	}
	var got [][]byte
	for _, one := range outputs {
		got = append(got, r.get(one))
	}
	return got
}
