package ranks

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// facadeOf builds the facade of NCCL from its sources, with the core beside it, into a folder where the dynamic linker finds it under
// NVIDIA's name.
func facadeOf(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	sources, err := filepath.Glob(filepath.Join(root, "nccl/*.c"))
	require.NoError(t, err)
	script, err := filepath.Abs(filepath.Join(root, "nccl/exports.map"))
	require.NoError(t, err)
	compile(t, words("CC", "gcc"), append([]string{"-std=c11", "-O1", "-g", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror", "-shared", "-Wl,-Bsymbolic", "-Wl,--no-undefined",
		"-Wl,--version-script=" + script, "-Wl,-soname,libnccl.so.2", "-Wl,-z,nodelete", "-o", filepath.Join(folder, "libnccl.so.2"), "-ldl"}, sources...)...)
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
	sources, err := filepath.Glob(filepath.Join(root, "nccl/*.c"))
	require.NoError(t, err)
	for _, source := range sources {
		compile(t, words("CC", "gcc"), slices.Concat([]string{"-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-DSAGECOMM_NCCL_HEADER"}, headers, []string{source})...)
	}
}

var ofNCCL = regexp.MustCompile(`^p?nccl[A-Z]\w+$`)

// functionsIn returns the functions of NCCL that a list names, one on a line.
func functionsIn(t *testing.T, path string) (list []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if name := strings.TrimSpace(line); ofNCCL.MatchString(name) {
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
	output, err := exec.Command("nm", "-D", "--defined-only", filepath.Join(facadeOf(t), "libnccl.so.2")).Output()
	require.NoError(t, err)
	var exported []string
	for line := range strings.Lines(string(output)) {
		fields := strings.Fields(line)
		exported = append(exported, fields[len(fields)-1])
	}
	slices.Sort(exported)
	require.Equal(t, slices.Compact(want), exported)
}

// tests/cabi/nccl.c calls all of them.
func TestFacadeOnHostMemory(t *testing.T) {
	headers := headersOfNCCL(t)
	source := filepath.Join(root, "tests/cabi/nccl.c")
	text, err := os.ReadFile(source)
	require.NoError(t, err)
	for _, name := range append(functionsIn(t, "tests/emulator/symbols.txt"), functionsIn(t, "nccl/symbols.txt")...) {
		require.Contains(t, string(text), name+"(", "tests/cabi/nccl.c does not call %s", name)
	}
	folder := facadeOf(t)
	program := filepath.Join(t.TempDir(), "nccl")
	compile(t, words("CC", "gcc"), slices.Concat([]string{"-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"}, headers,
		[]string{source, filepath.Join(folder, "libnccl.so.2"), "-Wl,-rpath," + folder, "-pthread", "-o", program})...)
	sizes := []int{1, 2, 3, 4, 8}
	if testing.Short() {
		sizes = []int{2, 3}
	}
	for _, how := range []string{"processes", "threads", "leaves"} {
		for _, size := range sizes {
			if how == "leaves" && size != 3 {
				continue
			}
			t.Run(fmt.Sprint(how, size), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				output, err := exec.CommandContext(ctx, program, how, fmt.Sprint(size)).CombinedOutput()
				if err != nil || !bytes.Contains(output, []byte("ranks agree")) {
					t.Errorf("%v\n%s", err, output)
				}
			})
		}
	}
}
