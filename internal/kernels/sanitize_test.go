package kernels

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// The kernels run under AddressSanitizer and UndefinedBehaviorSanitizer on heap blocks that hold only the data, so a
// read of one byte too many stops the program. The guarded memory of the other tests does not detect reads.
func TestKernelsUnderSanitizers(t *testing.T) {
	if testing.Short() {
		t.Skip("compiling with sanitizers takes 10 s and more")
	}
	cc := strings.Fields(os.Getenv("CC"))
	if len(cc) == 0 {
		cc = []string{"gcc"}
	}
	dir := t.TempDir()
	sanitize := []string{"-std=c11", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined",
		"-fno-sanitize-recover=all"}
	compile := func(arguments ...string) (string, error) {
		arguments = append(append(append([]string{}, cc[1:]...), sanitize...), arguments...)
		output, err := exec.Command(cc[0], arguments...).CombinedOutput()
		return string(output), err
	}

	probe := filepath.Join(dir, "probe.c")
	require.NoError(t, os.WriteFile(probe, []byte("int main(void) { return 0; }\n"), 0o600))
	if output, err := compile(probe, "-o", filepath.Join(dir, "probe")); err != nil {
		t.Skipf("%s has no libasan and libubsan (Debian: they come with gcc): %v\n%s", cc[0], err, output)
	}

	sources := []string{"kernels.c", "portable.c", "avx2.c", "avx512.c",
		"testdata/sanitize.c"}
	objects := make([]string, len(sources))
	var group sync.WaitGroup
	for i, source := range sources {
		objects[i] = filepath.Join(dir, strings.ReplaceAll(source, "/", "_")+".o")
		group.Go(func() {
			if output, err := compile("-c", source, "-o", objects[i]); err != nil {
				t.Errorf("%s: %v\n%s", source, err, output)
			}
		})
	}
	group.Wait()
	if t.Failed() {
		return
	}
	program := filepath.Join(dir, "kernels")
	if output, err := compile(append(objects, "-o", program)...); err != nil {
		t.Fatalf("linking: %v\n%s", err, output)
	}
	run := exec.Command(program)
	run.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=0")
	output, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	t.Logf("checksum of all results %s", strings.TrimSpace(string(output)))
}
