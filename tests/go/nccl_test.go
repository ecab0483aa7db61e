package ranks

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/tests/quick"
)

// facadeOf builds the facade of NCCL from its sources, with the core beside it, into a folder where the dynamic linker finds it under
// NVIDIA's name.
func facadeOf(t *testing.T) (folder string) {
	t.Helper()
	return builtFacade(t, "nccl", "libnccl.so.2")
}

// sourcesOfFacade returns the sources of the frame and of what is a vendor's own, which nccl/ and hccl/ are.
func sourcesOfFacade(t *testing.T, of string) (list []string) {
	t.Helper()
	for _, folder := range []string{"facade", of} {
		sources, err := filepath.Glob(filepath.Join(root, folder, "*.c"))
		require.NoError(t, err)
		list = append(list, sources...)
	}
	return list
}

// builtFacade builds a facade from its sources, with the core beside it, as a file of the vendor's name in a folder of its own.
func builtFacade(t *testing.T, of, file string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	script, err := filepath.Abs(filepath.Join(root, of, "exports.map"))
	require.NoError(t, err)
	compile(t, words("CC", "gcc"), append([]string{"-std=c11", "-O1", "-g", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror", "-shared", "-Wl,-Bsymbolic", "-Wl,--no-undefined",
		"-I" + filepath.Join(root, of), "-Wl,--version-script=" + script, "-Wl,-soname," + file, "-Wl,-z,nodelete", "-o", filepath.Join(folder, file), "-ldl"}, sourcesOfFacade(t, of)...)...)
	core, err := filepath.EvalSymlinks(library(t))
	require.NoError(t, err)
	require.NoError(t, os.Symlink(core, filepath.Join(folder, "libsagecomm.so")))
	return folder
}

// headersOfNCCL returns flags for NVIDIA's nccl.h and the headers of CUDA that it includes, which a CUDA build of torch brings.
func headersOfNCCL(t *testing.T) []string {
	t.Helper()
	packages, err := filepath.Glob(filepath.Join(root, ".venv/lib/python3*/site-packages/nvidia"))
	require.NoError(t, err)
	flags := []string{"-isystem", filepath.Join(root, "tests/emulator/cudart/include")}
	for _, header := range []string{"cu13/include/cuda_runtime.h", "nccl/include/nccl.h"} {
		found := ""
		for _, folder := range packages {
			if _, err := os.Stat(filepath.Join(folder, header)); err == nil {
				found = filepath.Dir(filepath.Join(folder, header))
			}
		}
		if found == "" {
			t.Skipf("no nvidia/%s, which a torch for CUDA 13 brings", header)
		}
		flags = append(flags, "-isystem", found)
	}
	return flags
}

// The facade is compiled without NVIDIA's header. With it, each function and number that differs is an error of the compiler.
func TestFacadeFollowsTheHeaderOfNCCL(t *testing.T) {
	headers := headersOfNCCL(t)
	for _, source := range sourcesOfFacade(t, "nccl") {
		compile(t, words("CC", "gcc"), slices.Concat([]string{"-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-DSAGECOMM_NCCL_HEADER", "-I" + filepath.Join(root, "nccl")}, headers, []string{source})...)
	}
}

var ofVendor = regexp.MustCompile(`^(nccl|Hccl)[A-Z]\w+$`)

// functionsIn returns the functions of a vendor's library that a list names, one on a line.
func functionsIn(t *testing.T, path string) (list []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if name := strings.TrimSpace(line); ofVendor.MatchString(name) {
			list = append(list, name)
		}
	}
	return list
}

// A test of pytest compares the list of torch's functions with the installed torch.
func TestFacadeExportsWhatProgramsNeed(t *testing.T) {
	torch := functionsIn(t, "tests/emulator/symbols.txt")
	require.Len(t, torch, 51)
	want := []string{"sagecomm_nccl_facade"}
	for _, name := range append(torch, functionsIn(t, "nccl/symbols.txt")...) {
		want = append(want, name, "p"+name)
	}
	slices.Sort(want)
	require.Equal(t, slices.Compact(want), exportedBy(t, filepath.Join(facadeOf(t), "libnccl.so.2")))
}

// exportedBy returns the sorted names that a library exports.
func exportedBy(t *testing.T, file string) (list []string) {
	t.Helper()
	output, err := exec.Command("nm", "-D", "--defined-only", file).Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(output)) {
		fields := strings.Fields(line)
		list = append(list, fields[len(fields)-1])
	}
	slices.Sort(list)
	return list
}

// programOverFacade compiles a program of tests/cabi with NVIDIA's header and links it to the facade in a folder.
func programOverFacade(t *testing.T, headers []string, folder, name string) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), name)
	compile(t, words("CC", "gcc"), slices.Concat([]string{"-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"}, headers,
		[]string{filepath.Join(root, "tests/cabi", name+".c"), filepath.Join(folder, "libnccl.so.2"), "-Wl,-rpath," + folder, "-pthread", "-o", program})...)
	return program
}

// The cases of tests/cabi/nccl_cases.c are one each.
func TestFacadeInCases(t *testing.T) {
	playCases(t, "nccl_cases", "texts", "finalizes", "watched", "derives", "itself", "leaves", "shrinks", "shrunk", "turbomind")
}

// A wrong call is refused where it is made and harms nobody else.
func TestFacadeRefusesMisuse(t *testing.T) {
	playCases(t, "nccl_misuse", "joins", "calls", "exchange", "mismatch", "buffers", "aligns", "reductions", "finalizes", "arguments", "threads", "destroys", "states", "prints")
}

// What a group call that fails leaves, and what a shrink that aborts has to do with other calls.
func TestFacadeInGroupCalls(t *testing.T) {
	playCases(t, "nccl_groups", "colors", "colorless", "queued", "aborted", "issues", "beside", "collected", "late", "later",
		"others", "stuck", "dropped", "crosses")
}

// Ranks that share a device go through the engine cuda, and learn of a death as on host memory.
func TestFacadeAfterADeathOnADevice(t *testing.T) {
	program, built := programOverFacade(t, headersOfNCCL(t), facadeOf(t), "nccl_death"), builtEmulator(t, "cuda")
	for _, name := range []string{"before", "inside"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			agree(t, program, name, 3, "LD_LIBRARY_PATH="+built, "SAGECOMM_ENGINE=cuda", "EMULATOR_HOST_CLOCKS=thread", "EMULATOR_STALL_S=20")
		})
	}
}

// The same programs, with ranks on several hosts.
func TestFacadeOverHosts(t *testing.T) {
	headers, folder := headersOfNCCL(t), facadeOf(t)
	for _, run := range []struct {
		file, hosts string
		cases       []string
		quick       string
	}{
		{"nccl", "0011", []string{"processes"}, "processes"},
		{"nccl", "012", []string{"leaves"}, ""},
		{"nccl_cases", "012", []string{"texts", "finalizes", "watched", "derives", "itself", "leaves", "shrinks", "shrunk", "turbomind"}, "shrunk"},
		{"nccl_groups", "012", []string{"queued", "aborted", "beside", "collected", "others", "stuck", "dropped", "crosses"}, ""},
	} {
		if run.quick == "" && quick.Only() {
			continue
		}
		program := programOverFacade(t, headers, folder, run.file)
		for _, name := range run.cases {
			t.Run(run.file+" "+name, func(t *testing.T) {
				t.Parallel()
				if name != run.quick {
					quick.Skip(t, "others of these programs suffice")
				}
				agree(t, program, name, len(run.hosts), "TEST_HOSTS="+run.hosts)
			})
		}
	}
}

// playCases runs the cases of a program of tests/cabi, each with several numbers of ranks.
func playCases(t *testing.T, file string, cases ...string) {
	t.Helper()
	program := programOverFacade(t, headersOfNCCL(t), facadeOf(t), file)
	for _, name := range cases {
		for _, size := range []int{2, 3, 4} {
			t.Run(fmt.Sprint(name, size), func(t *testing.T) {
				t.Parallel()
				if size > 3 && testing.Short() || size < 3 && quick.Only() {
					t.Skip("three ranks suffice")
				}
				agree(t, program, name, size)
			})
		}
	}
}

// tests/cabi/nccl.c calls all of them.
func TestFacadeOnHostMemory(t *testing.T) {
	headers := headersOfNCCL(t)
	text := ""
	for _, file := range []string{"nccl.c", "nccl_ranks.h", "nccl_collectives.h", "nccl_communicators.h"} {
		part, err := os.ReadFile(filepath.Join(root, "tests/cabi", file))
		require.NoError(t, err)
		text += string(part)
	}
	for _, name := range append(functionsIn(t, "tests/emulator/symbols.txt"), functionsIn(t, "nccl/symbols.txt")...) {
		require.Contains(t, text, name+"(", "tests/cabi/nccl.c does not call %s", name)
	}
	program := programOverFacade(t, headers, facadeOf(t), "nccl")
	sizes := []int{1, 2, 3, 4, 8}
	if testing.Short() {
		sizes = []int{2, 3}
	}
	if quick.Only() {
		sizes = sizes[1:]
	}
	for _, how := range []string{"processes", "threads", "leaves"} {
		for _, size := range sizes {
			if how == "leaves" && size != 3 {
				continue
			}
			t.Run(fmt.Sprint(how, size), func(t *testing.T) {
				t.Parallel()
				agree(t, program, how, size)
			})
		}
	}
}
