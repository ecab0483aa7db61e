package lint

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page of the protocol has the version that the code speaks.
func TestProtocolPageHasTheVersion(t *testing.T) {
	version := func(file, pattern string) string {
		text, err := os.ReadFile("../../" + file)
		require.NoError(t, err)
		found := regexp.MustCompile(pattern).FindSubmatch(text)
		require.NotNil(t, found, "%s: %s", file, pattern)
		return string(found[1])
	}
	require.Equal(t, version("pgbackend/create.go", `\nconst protocolVersion = (\d+)\n`), version("docs/protocol.md", `\nThe protocol has version (\d+)\.`))
}
