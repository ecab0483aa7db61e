package algo

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
)

// defined returns the number that a header or source of the runner defines for a name.
func defined(t *testing.T, file, name string) int {
	t.Helper()
	text, err := os.ReadFile("../internal/runner/" + file)
	require.NoError(t, err)
	m := regexp.MustCompile(`(?m)^#define ` + name + ` \(?(\d+)(?: \* (\d+))?\)?(?: /\*.*\*/)?$`).FindStringSubmatch(string(text))
	if m == nil {
		t.Fatalf("%s does not define %s as a number", file, name)
	}
	value, _ := strconv.Atoi(m[1])
	if m[2] != "" {
		factor, _ := strconv.Atoi(m[2])
		value *= factor
	}
	return value
}

// Proofs of plans hold for the slots that the runner lays out only if both have the same geometry.
func TestGeometryIsTheRunners(t *testing.T) {
	for _, c := range []struct {
		file, name string
		ours       int
	}{
		{"shared_block.h", "SCR_SMALL_SLOTS", plan.SmallSlotCount}, {"shared_block.h", "SCR_SMALL_BYTES", plan.SmallSlotBytes},
		{"shared_block.h", "SCR_LARGE_SLOTS", plan.LargeSlotCount}, {"shared_block.h", "SCR_LARGE_BYTES", plan.LargeSlotBytes},
		{"runner.h", "SCR_MAX_STAGES", plan.MaxStages}, {"runner.h", "SCR_MAX_CLASSES", MaxClasses - 1},
		{"program.c", "MAX_SOURCES", plan.MaxSize},
	} {
		if got := defined(t, c.file, c.name); got != c.ours {
			t.Errorf("%s is %d in %s, %d here", c.name, got, c.file, c.ours)
		}
	}
}

// Chunks fit the channels that the runner has only if both have the same geometry.
func TestGeometryOfChannelsIsTheRunners(t *testing.T) {
	for name, ours := range map[string]int{"SCR_CHANNEL_BYTES": plan.MessageBytes, "SCR_LONG_CHANNEL_BYTES": plan.LongMessageBytes,
		"SCR_CHANNEL_PLACES": plan.ChannelPlaces, "SCR_CHANNELS": plan.ChannelsPerPair} {
		if got := defined(t, "shared_block.h", name); got != ours {
			t.Errorf("%s is %d in shared_block.h, %d here", name, got, ours)
		}
	}
}
