package emulator_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/tests/quick"
)

// The emulated NVML has the declarations of NVIDIA's header, as go-nvml brings it.
func TestFunctionsOfNVML(t *testing.T) {
	quick.Skip(t, "the compiler takes seconds for the header")
	module, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	require.NoError(t, err)
	headers := filepath.Join(strings.TrimSpace(string(module)), "pkg/nvml")
	output, err := exec.CommandContext(t.Context(), "g++", "-std=c++20", "-fsyntax-only", "-isystem", headers, "nvml_test/nvml_abi.cpp").CombinedOutput()
	require.NoError(t, err, string(output))
}
