package observe

import (
	"runtime/debug"
	"strings"
)

// recoverFrom is deferred by goroutines that only show what groups do: a panic there harms no group.
func recoverFrom(what string) {
	if r := recover(); r != nil {
		Warn("panic in %s: %v\n%s", what, r, strings.TrimSpace(string(debug.Stack())))
	}
}
