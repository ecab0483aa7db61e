//go:build cuda

package cuda

import "testing"

// The driver has 8 queues unless the variable names another number, and 32 at most.
func TestConnections(t *testing.T) {
	for text, expected := range map[string]int{"": 8, "1": 1, " 4": 4, "32": 32, "100": 32, "0": 8, "-3": 8, "many": 8} {
		if n := connections(text); n != expected {
			t.Errorf("%q: %d queues, expected %d", text, n, expected)
		}
	}
}
