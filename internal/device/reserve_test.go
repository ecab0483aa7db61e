package device

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// Streams are given in the order in which they were made ahead, so that two that are taken one after the other do not share a queue of the
// hardware, and each of them once. What could not be made ahead is made when it is needed.
func TestStreamsThatWereMadeAhead(t *testing.T) {
	var r Reserve
	next := uint64(0)
	stream := func() (Stream, error) { next++; return Stream{Number: next}, nil }
	for range 3 {
		require.True(t, r.Add(stream))
	}
	require.False(t, r.Add(func() (Stream, error) { return Stream{}, errors.New("no more") }))
	for want := range uint64(5) {
		s, err := r.Take(stream)
		require.NoError(t, err)
		require.Equal(t, want+1, s.Number)
	}
}
