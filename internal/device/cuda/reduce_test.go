//go:build cuda

package cuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// Each reduction that is defined has a kernel, and each kernel is that of a reduction.
func TestKernelsOfAllReductions(t *testing.T) {
	known := map[string]bool{}
	for line := range strings.Lines(reducePTX) {
		if name, ok := strings.CutPrefix(line, kernelPrefix); ok {
			known[strings.TrimRight(name, "(\n")] = true
		}
	}
	used := map[string]bool{}
	for dtype := range coll.DataTypeCount {
		for op := range coll.ReduceOpCount {
			if coll.Defined(op, dtype) != nil {
				continue
			}
			name, parts := kernelOf(op, dtype)
			require.True(t, known[name], "no kernel %s for %v of %v", name, op, dtype)
			require.Equal(t, parts == 2, strings.HasPrefix(dtype.String(), "complex") && op != coll.Product)
			used[name] = true
		}
	}
	require.Equal(t, known, used)
}

func TestReductionsThatAreRefused(t *testing.T) {
	const at = 1 << 20
	for want, r := range map[string]device.Reduction{
		"AVG is not defined for bool":                 {Type: coll.Bool, Op: coll.Avg, Inputs: []uintptr{at}},
		"SUM is not defined for float8_e5m2":          {Type: coll.Float8E5M2, Inputs: []uintptr{at}},
		"SUM of int8: 0 inputs, expected 1 to 64":     {Type: coll.Int8},
		"SUM of int8: 65 inputs, expected 1 to 64":    {Type: coll.Int8, Inputs: make([]uintptr, 65)},
		"AVG of int8: divisor 0, expected a whole":    {Type: coll.Int8, Op: coll.Avg, Inputs: []uintptr{at}},
		"AVG of int8: divisor 1.5, expected a whole":  {Type: coll.Int8, Op: coll.Avg, Inputs: []uintptr{at}, Operand: 1.5},
		"address 0x100004 is not aligned to 8 bytes":  {Type: coll.Int64, Inputs: []uintptr{at, at + 4}, Output: at},
		"address 0x100002 is not aligned to 4 bytes":  {Type: coll.Int32, Inputs: []uintptr{at}, Output: at + 2},
		"the output overlaps a part of input 1":       {Type: coll.Int8, Inputs: []uintptr{at, at + 9}, Output: at, Count: 10},
		"MAX of int8: the output overlaps a part of ": {Type: coll.Int8, Op: coll.Max, Inputs: []uintptr{at}, Output: at + 9, Count: 10},
	} {
		require.ErrorContains(t, check(r), want)
	}
	require.NoError(t, check(device.Reduction{Type: coll.Int8, Inputs: []uintptr{at, at + 10}, Output: at, Count: 10}))
}

// A driver tells which line of the kernels it does not understand; the error has that in one line. A driver may also lack a function.
func TestDriversWithoutKernels(t *testing.T) {
	const inside, refused, lacking = "CUDA_TEST_KERNELS", "a text", "a function"
	if what := os.Getenv(inside); what != "" {
		if what == refused {
			reducePTX = strings.Replace(reducePTX, "add.rn.f32", "add.up.f32", 1)
		}
		d, err := Open(0)
		require.NoError(t, err)
		err = d.LoadKernels()
		const begins = "cannot load the kernels of reductions on CUDA device 0: "
		if what == refused {
			require.Regexp(t, begins+`CUDA_ERROR_INVALID_PTX: ptxas application ptx input, line \d+: unknown instruction: add.up.f32 .*$`, err)
			require.NotContains(t, err.Error(), "\n")
		} else {
			require.EqualError(t, err, begins+"the CUDA driver has no cuModuleLoadDataEx")
		}
		return
	}
	const emulator = "../../../tests/emulator"
	output, err := exec.CommandContext(t.Context(), "../../../.venv/bin/python", emulator+"/build.py", "cuda").CombinedOutput()
	if os.IsNotExist(err) || strings.Contains(string(output), "there is no library cuda here") {
		t.Skipf("the emulated driver is built with NVIDIA's headers and the Python of .venv: %v", err)
	}
	require.NoError(t, err, string(output))
	built, err := filepath.Abs(emulator + "/build")
	require.NoError(t, err)
	for _, what := range []string{refused, lacking} {
		folder := t.TempDir()
		if what == refused {
			require.NoError(t, os.Symlink(filepath.Join(built, "libcuda.so.1"), filepath.Join(folder, "libcuda.so.1")))
		} else {
			relink(t, built, folder, "cuModuleLoadDataEx")
		}
		self, err := os.Executable()
		require.NoError(t, err)
		cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.timeout=1m")
		cmd.Env = append(os.Environ(), inside+"="+what, "LD_LIBRARY_PATH="+folder, "LD_PRELOAD="+filepath.Join(built, "libemulator.so"))
		output, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", what, output)
	}
}

// relink makes an emulated driver that lacks a function.
func relink(t *testing.T, built, folder, lacking string) {
	t.Helper()
	objects, err := filepath.Glob(filepath.Join(built, "objects/cuda/*.o"))
	require.NoError(t, err)
	script := filepath.Join(folder, "exports.map")
	require.NoError(t, os.WriteFile(script, []byte("{ global: *; local: "+lacking+"; };\n"), 0o600))
	cxx := strings.Fields(os.Getenv("CXX"))
	if len(cxx) == 0 {
		cxx = []string{"g++"}
	}
	arguments := append(cxx[1:], objects...)
	arguments = append(arguments, "-shared", filepath.Join(built, "libemulator.so"), "-Wl,-rpath,"+built, "-Wl,--version-script="+script,
		"-o", filepath.Join(folder, "libcuda.so.1"))
	output, err := exec.CommandContext(t.Context(), cxx[0], arguments...).CombinedOutput()
	require.NoError(t, err, string(output))
}
