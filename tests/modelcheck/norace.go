//go:build !race

package modelcheck

// Slow says that the race detector is on; [Scenario.Big] scenarios are then left out.
const Slow = false
