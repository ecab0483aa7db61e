package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// A build of the core that is given to others fails without NVIDIA's header. Without CUDA_REQUIRED, tools/go leaves CUDA out.
func TestBuildsForOthersNeedTheHeaderOfCUDA(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	builds := regexp.MustCompile(`\n\tcd .*(?:\\\n.*)*-buildmode=c-shared`).FindAllString(string(makefile), -1)
	require.Len(t, builds, 2) // for this machine and for arm64
	for _, build := range builds {
		require.Contains(t, build, " CUDA_REQUIRED=yes ")
	}

	// tools/go looks for the header in the tree that it lies in, and among the packages of PYTHON.
	tree := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(tree, "tools"), 0o700))
	for _, name := range []string{"go.mod", "tools/go"} {
		text, err := os.ReadFile(filepath.Join("../..", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(tree, name), text, 0o700))
	}
	run := func(variable string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(tree, "tools/go"), "env", "GOFLAGS")
		cmd.Dir = tree
		cmd.Env = append(os.Environ(), "PYTHON=/bin/false", "CUDA_INCLUDE=", "CUDA_REQUIRED=", "GOFLAGS=", variable)
		output, err := cmd.CombinedOutput()
		return string(output), err
	}
	output, err := run("CUDA_REQUIRED=yes")
	require.Error(t, err)
	require.Contains(t, output, "no cuda.h: install nvidia-cuda-runtime with pip, or set CUDA_INCLUDE to its folder")
	output, err = run("CUDA_REQUIRED=")
	require.NoError(t, err, output)
	require.NotContains(t, output, "cuda")
	output, err = run("CUDA_INCLUDE=/where/it/is")
	require.NoError(t, err, output)
	require.Contains(t, output, "-tags=cuda")
}
