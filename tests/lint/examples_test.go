package lint

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The examples of docs/errors.md are the lines of its blocks of code that begin with "sagecomm: ". Each is the text of a
// scenario of pgbackend/testdata/failures, which a test brings about.
func TestExamplesOfErrorsAreTested(t *testing.T) {
	files, err := filepath.Glob("../../pgbackend/testdata/failures/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files of scenarios: %v", len(files), err)
	}
	var tested []string
	for _, file := range files {
		tested = append(tested, messages(t, file)...)
	}
	if len(tested) < 20 {
		t.Errorf("only %d texts are in %v", len(tested), files)
	}
	for _, example := range messages(t, "../../docs/errors.md") {
		if !slices.Contains(tested, example) {
			t.Errorf("docs/errors.md: no scenario in pgbackend/testdata/failures has this text: %s", example)
		}
	}
}

// messages returns the lines of a file that are texts of errors.
func messages(t *testing.T, file string) (list []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "sagecomm: ") {
			list = append(list, line)
		}
	}
	return list
}
