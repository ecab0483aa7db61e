package ranks

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/tests/quick"
)

// withoutFunction links a library of the emulator from its objects, which lie in the folder `of`, without one of its functions. It uses the
// libraries of `needs`.
func withoutFunction(t *testing.T, built, of, function, file string, needs ...string) {
	t.Helper()
	objects, err := filepath.Glob(filepath.Join(built, "objects", of, "*.o"))
	require.NoError(t, err)
	require.NotEmpty(t, objects, of)
	script := filepath.Join(t.TempDir(), "exports.map")
	require.NoError(t, os.WriteFile(script, []byte("{ global: *; local: "+function+"; };\n"), 0o600))
	flags := []string{"-shared", filepath.Join(built, "libemulator.so"), "-Wl,-rpath," + built, "-Wl,--version-script=" + script, "-o", file}
	for _, name := range needs {
		flags = append(flags, filepath.Join(built, name))
	}
	compile(t, words("CXX", "g++"), append(objects, flags...)...)
}

// Ranks carry out collectives on the CPU whatever libraries of vendors they find, and whatever state these are in. The dynamic linker binds
// all functions at once. What the ranks say of their engines shows that they have found what the case has. They start no driver for it.
func TestCollectivesOnTheCPUBesideLibrariesOfVendors(t *testing.T) {
	lib, program := library(t), filepath.Join(t.TempDir(), "two_processes")
	compile(t, words("CC", "gcc"), "-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", filepath.Join(root, "tests/cabi/two_processes.c"), "-o", program, "-ldl")
	var built string
	for _, name := range []string{"nccl", "hccl", "cncl"} {
		built = builtEmulator(t, name)
	}
	files := map[string]string{"libcuda.so.1": "libcuda.so.1", "libnccl.so.2": "libfake_nccl.so", "libascendcl.so": "libascendcl.so",
		"libhccl.so": "libhccl.so", "libcnrt.so": "libcnrt.so", "libcncl.so": "libcncl.so"}
	const cuda, ascend, cambricon = "libcuda.so.1", "libascendcl.so", "libcnrt.so"
	for _, c := range []struct {
		name      string
		quick     bool
		libraries []string
		lacking   string   // a function of the last library
		of        string   // the folder of its objects
		needs     []string // libraries that it needs
		starts    string   // the function by which somebody else has started the first library
		returns   int      // which it did
		variables []string // of the emulator
		says      string   // of the engines
	}{
		{name: "none", quick: true, says: "not hccl: no rank offers it: no Ascend runtime: libascendcl.so: cannot open shared object file"},
		{name: "CUDA", quick: true, libraries: []string{cuda, "libnccl.so.2"}, says: ": nccl ("},
		{name: "Ascend", libraries: []string{ascend, "libhccl.so"}, says: ": hccl ("},
		{name: "Cambricon", libraries: []string{cambricon, "libcncl.so"}, says: ": cncl ("},
		{name: "CUDA without a function", libraries: []string{cuda}, lacking: "cuEventRecord", of: "cuda", says: ": cuda ("},
		{name: "Ascend without a function", quick: true, libraries: []string{"libhccl.so", ascend}, lacking: "aclrtValueWait", of: "acl",
			says: "not hccl: no rank offers it: the Ascend runtime has no aclrtValueWait"},
		{name: "Cambricon without a function", libraries: []string{"libcncl.so", cambricon}, lacking: "cnrtInvokeHostFunc", of: "cnrt",
			says: "not cncl: no rank offers it: the Cambricon runtime has no cnrtInvokeHostFunc"},
		{name: "NCCL without a function", libraries: []string{cuda, "libnccl.so.2"}, lacking: "ncclCommAbort", of: "nccl", needs: []string{cuda},
			says: " of this process has no ncclCommAbort: it is older than NCCL 2.27"},
		{name: "HCCL without a function", libraries: []string{ascend, "libhccl.so"}, lacking: "HcclReduceScatter", of: "hccl", needs: []string{ascend},
			says: "not hccl: no rank offers it: the libhccl.so of this process has no HcclReduceScatter: it is too old"},
		{name: "CNCL without a function", libraries: []string{cambricon, "libcncl.so"}, lacking: "cnclAllReduce", of: "cncl", needs: []string{cambricon},
			says: "not cncl: no rank offers it: the libcncl.so of this process has no cnclAllReduce: it is too old"},
		{name: "CUDA does not start", libraries: []string{cuda}, starts: "cuInit", returns: 999, variables: []string{"EMULATOR_FAULTS=cuInit@1+=#999"}, says: ": cuda ("},
		{name: "Ascend does not start", libraries: []string{ascend}, starts: "aclInit", returns: 500000, variables: []string{"EMULATOR_FAULTS=aclInit@1+=#500000"},
			says: "not hccl: no rank offers it: no HCCL: libhccl.so: cannot open shared object file"},
		{name: "CUDA with NCCL does not start", libraries: []string{cuda, "libnccl.so.2"}, starts: "cuInit", returns: 999,
			variables: []string{"EMULATOR_FAULTS=cuInit@1+=#999"}, says: ": nccl ("},
		{name: "Ascend with HCCL does not start", libraries: []string{ascend, "libhccl.so"}, starts: "aclInit", returns: 500000,
			variables: []string{"EMULATOR_FAULTS=aclInit@1+=#500000"}, says: ": hccl ("},
		{name: "Cambricon does not start", libraries: []string{cambricon}, starts: "cnrtGetDeviceCount", returns: 632000,
			variables: []string{"EMULATOR_FAULTS=cnrtGetDeviceCount@1+=#632000"},
			says:      "not cncl: no rank offers it: no CNCL: libcncl.so: cannot open shared object file"},
		{name: "Cambricon with CNCL does not start", libraries: []string{cambricon, "libcncl.so"}, starts: "cnrtGetDeviceCount", returns: 632000,
			variables: []string{"EMULATOR_FAULTS=cnrtGetDeviceCount@1+=#632000"}, says: ": cncl ("},
		{name: "CUDA without devices", libraries: []string{cuda}, starts: "cuInit", returns: 100, variables: []string{"EMULATOR_DEVICES=0"}, says: ": cuda ("},
		{name: "Ascend without devices", libraries: []string{ascend, "libhccl.so"}, variables: []string{"EMULATOR_DEVICES=0"}, says: ": hccl ("},
		{name: "Cambricon without devices", libraries: []string{cambricon, "libcncl.so"}, variables: []string{"EMULATOR_DEVICES=0"}, says: ": cncl ("},
		{name: "CUDA is started", libraries: []string{cuda, "libnccl.so.2"}, starts: "cuInit", says: ": nccl ("},
		{name: "Ascend is started", libraries: []string{ascend, "libhccl.so"}, starts: "aclInit", says: ": hccl ("},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !c.quick {
				quick.Skip(t, "each case starts two processes")
			}
			t.Parallel()
			folder := t.TempDir()
			if len(c.libraries) > 0 { // which need it, beside them
				require.NoError(t, os.Symlink(filepath.Join(built, "libemulator.so"), filepath.Join(folder, "libemulator.so")))
			}
			for i, name := range c.libraries {
				if file := filepath.Join(folder, name); i == len(c.libraries)-1 && c.lacking != "" {
					withoutFunction(t, built, c.of, c.lacking, file, c.needs...)
				} else {
					require.NoError(t, os.Symlink(filepath.Join(built, files[name]), file))
				}
			}
			arguments := []string{lib, t.TempDir()}
			if c.starts != "" {
				arguments = append(arguments, c.libraries[0], c.starts)
			}
			ctx, cancel := context.WithTimeout(t.Context(), hangAfter)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, arguments...)
			cmd.Env = append(append(os.Environ(), "LD_LIBRARY_PATH="+folder, "LD_BIND_NOW=1", "SAGECOMM_DEBUG=INFO"), c.variables...)
			output, err := cmd.CombinedOutput()
			require.NoError(t, err, string(output))
			require.Contains(t, string(output), "two processes agree")
			require.Contains(t, regexp.MustCompile("engine of operations on devices: .*").FindString(string(output)), c.says)
			if c.starts != "" {
				require.Contains(t, string(output), fmt.Sprintf("%s returns %d\n", c.starts, c.returns))
			}
		})
	}
}

// A driver that does not start for the library is refused by its own text. The program has started it before.
func TestDriverThatDoesNotStart(t *testing.T) {
	output, err := deviceProgram(t, "cuda", "collectives")(t, "EMULATOR_FAULTS=cuInit@2+=#999")
	require.Error(t, err)
	require.Contains(t, output, "the CUDA driver does not start: cuInit: error 999 of CUDA")
}
