// Package quick leaves tests out of the quick ones, which `make test` runs with -short. The race detector and the mutants run with -short as
// well, and with TEST_THOROUGH=1: tests that are about goroutines and about the order of operations stay in them. So tests that only take
// long for `make test` ask this package instead of testing.Short.
package quick

import (
	"os"
	"testing"
)

// Only reports whether only the quick tests run.
func Only() bool { return testing.Short() && os.Getenv("TEST_THOROUGH") == "" }

// Skip ends a test that is none of the quick ones.
func Skip(t *testing.T, why string) {
	t.Helper()
	if Only() {
		t.Skip(why)
	}
}
