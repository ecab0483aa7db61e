package nccl

import (
	"encoding/binary"
	"math"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/engine/vendor"
)

// NCCL carries out a reduction of every type as the table says, and the rest is left to another engine.
func TestReductions(t *testing.T) {
	left := map[string]bool{}
	for op := range coll.ReduceOpCount {
		for d := range coll.DataTypeCount {
			if coll.Defined(op, d) != nil {
				continue
			}
			r, ok := Library{}.Reduction(op, d)
			if !ok {
				left[op.String()+" "+d.String()] = true
				continue
			}
			require.Zero(t, uint64(d.Size())%r.Bytes, "%v of %v", op, d)
			require.Equal(t, op == coll.PremulSum, r.Factor, "%v of %v", op, d)
		}
	}
	for _, d := range []coll.DataType{coll.Int8, coll.Int16, coll.Int32, coll.Int64, coll.Uint8, coll.Uint16, coll.Uint32, coll.Uint64} {
		for op := range coll.ReduceOpCount {
			bits := op == coll.BAnd || op == coll.BOr || op == coll.BXor
			short := (d == coll.Int16 || d == coll.Uint16) && op != coll.PremulSum
			name := op.String() + " " + d.String()
			require.Equal(t, bits || short, left[name], name)
			delete(left, name)
		}
	}
	for _, name := range []string{"PRODUCT complex64", "PRODUCT complex128", "BXOR bool"} {
		require.True(t, left[name], name)
		delete(left, name)
	}
	require.Empty(t, left)
}

// half is compared with the value of its bits: no float16 is nearer.
func TestHalf(t *testing.T) {
	value := func(bits uint16) float64 {
		exponent, mantissa := int(bits>>10&31), float64(bits&0x3ff)
		if exponent == 0 {
			return math.Ldexp(mantissa, -24)
		}
		return math.Ldexp(1024+mantissa, exponent-25)
	}
	for bits := range uint16(0x7c00) {
		if got := half(value(bits)); got != bits {
			t.Fatalf("%g gives %#x instead of %#x", value(bits), got, bits)
		}
		if got := half(-value(bits)); got != bits|0x8000 {
			t.Fatalf("%g gives %#x", -value(bits), got)
		}
		if bits > 0 { // halfway to the one before goes to the even one
			want := bits - bits&1
			between, _ := new(big.Float).Quo(new(big.Float).Add(big.NewFloat(value(bits)), big.NewFloat(value(bits-1))), big.NewFloat(2)).Float64()
			if got := half(between); got != want {
				t.Fatalf("%g gives %#x instead of %#x", between, got, want)
			}
		}
	}
	for x, want := range map[float64]uint16{65519: 0x7bff, 65520: 0x7c00, math.Inf(1): 0x7c00, math.Inf(-1): 0xfc00} {
		require.Equal(t, want, half(x), "%g", x)
	}
	require.Greater(t, half(math.NaN())&0x7fff, uint16(0x7c00), "NaN becomes a number")
	b := scalar(typeBFloat16, 1.0078125)
	require.Equal(t, uint16(0x3f81), binary.NativeEndian.Uint16(b[:]))
}

// library compiles a shared library with the functions of the table, but for one, and returns its file.
func library(t *testing.T, without, more string) string {
	t.Helper()
	table, err := os.ReadFile("table.h")
	require.NoError(t, err)
	var code strings.Builder
	for _, m := range regexp.MustCompile(`X\((\w+), (?:int|const char \*),`).FindAllStringSubmatch(string(table), -1) {
		switch m[1] {
		case without:
		case "GetVersion":
			code.WriteString("int ncclGetVersion(int *v) { *v = 22703; return 0; }\n")
		default:
			code.WriteString("int nccl" + m[1] + "(void) { return 0; }\n")
		}
	}
	code.WriteString(more)
	source, file := filepath.Join(t.TempDir(), "nccl.c"), filepath.Join(t.TempDir(), "libnccl.so.2")
	require.NoError(t, os.WriteFile(source, []byte(code.String()), 0o600))
	output, err := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", source, "-o", file).CombinedOutput()
	require.NoError(t, err, string(output))
	return file
}

// A communicator tells that nothing is queued any more before the end that waits for the device, and else behind it.
func TestSettled(t *testing.T) {
	states := map[string]bool{"0": true, "3": true, "7": false} // success, an internal error, in progress
	for state, before := range states {
		require.NoError(t, load(library(t, "CommGetAsyncError", "int ncclCommGetAsyncError(void *c, int *state) { *state = "+state+"; return 0; }\n")))
		c := new(communicator)
		require.False(t, c.Settled())
		c.Settle()
		require.Equal(t, before, c.Settled(), state)
		require.True(t, c.Abort())
		require.True(t, c.Settled())
	}
	require.NoError(t, load(library(t, "", "")))
	c := new(communicator)
	c.Destroy()
	require.True(t, c.Settled())
}

func TestLoad(t *testing.T) {
	require.NoError(t, load(library(t, "", "")))
	for want, path := range map[string]string{
		"no NCCL: ": filepath.Join(t.TempDir(), fileName),
		"has no ncclRedOpCreatePreMulSum: it is older than NCCL 2.27": library(t, "RedOpCreatePreMulSum", ""),
		"is sagecomm's own":                         library(t, "", "int "+facadeMark+" = 1;\n"),
		"has the version 22605, expected NCCL 2.27": library(t, "GetVersion", "int ncclGetVersion(int *v) { *v = 22605; return 0; }\n"),
	} {
		require.ErrorContains(t, load(path), want)
	}
}

func TestCallsThatBlock(t *testing.T) {
	for _, entry := range []string{"NCCL_COMM_BLOCKING=0", "NCCL_COMM_BLOCKING=", "NCCL_COMM_BLOCKING=yes", "NCCL_DEBUG=1"} {
		require.NoError(t, Blocks([]string{"HOME=/", entry}), entry)
	}
	require.ErrorContains(t, Blocks([]string{"NCCL_COMM_BLOCKING=1"}), "NCCL_COMM_BLOCKING=1 makes calls of NCCL wait")
}

// NVIDIA's own library, where torch has brought it: it has all functions, and a unique id needs no GPU.
func TestNVIDIAsLibrary(t *testing.T) {
	found, err := filepath.Glob("../../../.venv/lib/python3*/site-packages/nvidia/nccl/lib/" + fileName)
	require.NoError(t, err)
	if len(found) == 0 {
		t.Skip("there is none in .venv")
	}
	require.NoError(t, load(found[0]))
	id, err := Library{}.NewID()
	require.NoError(t, err)
	require.Len(t, id, 128)
	_, err = Library{}.Join(id[1:], 2, 0, vendor.Group{})
	require.ErrorContains(t, err, "has 127 bytes")
}

// A call that NCCL refuses is this process's own fault. All else may come of the death of another one.
func TestResultsThatAnotherProcessMayHaveCaused(t *testing.T) {
	for _, of := range []struct {
		result  string
		refusal bool
		err     error
	}{
		{"ncclUnhandledCudaError", false, errorOf(1, "x")},
		{"ncclSystemError", false, errorOf(2, "x")},
		{"ncclInternalError", false, errorOf(3, "x")},
		{"ncclInvalidArgument", true, errorOf(4, "x")},
		{"ncclInvalidUsage", true, errorOf(5, "x")},
		{"ncclRemoteError", false, errorOf(6, "x")},
	} {
		_, refused := any(of.err).(interface{ Unwrap() error })
		require.Equal(t, of.refusal, refused, of.result)
		require.EqualError(t, of.err, "x")
	}
}
