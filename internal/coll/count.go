package coll

import "fmt"

// Count returns a number with its noun, as texts for users have it: "1 rank", "2 ranks".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
