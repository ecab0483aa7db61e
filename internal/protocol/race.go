//go:build race

package protocol

// Slow says that the race detector is on; [Scenario.Big] scenarios are then left out.
const Slow = true
