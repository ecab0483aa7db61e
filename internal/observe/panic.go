package observe

import (
	"runtime/debug"
	"strings"
)

// recoverFrom logs a panic and recovers from it. Code that only observes groups defers it, so a panic there harms no group.
func recoverFrom(what string) {
	if r := recover(); r != nil {
		Warn("panic in %s: %v\n%s", what, r, strings.TrimSpace(string(debug.Stack())))
	}
}
