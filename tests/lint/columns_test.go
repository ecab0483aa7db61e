package lint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// mostColumns is the longest line of prose in README.md and docs.
const mostColumns = 140

// Lines of prose fit into an editor's window. Rows of tables and blocks of code cannot be wrapped, and docs/python-api.md is made of
// docstrings.
func TestColumnsOfProse(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	for _, page := range append(pages, "../../README.md") {
		if filepath.Base(page) == "python-api.md" {
			continue
		}
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		code := false
		for n, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				code = !code
			}
			if columns := utf8.RuneCountInString(line); !code && !strings.HasPrefix(strings.TrimSpace(line), "|") && columns > mostColumns {
				t.Errorf("%s:%d: %d columns of prose; wrap it at %d", page, n+1, columns, mostColumns)
			}
		}
	}
}
