package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the caller passes to group_create() ends with it; the functions go on, and the store is given back once.
func TestStoreOfCLasts(t *testing.T) {
	c, absent, prepared, released, err := lastFromC(false, false)
	require.NoError(t, err)
	require.False(t, absent)
	for _, value := range []string{"first", "second"} {
		got, err := c.Claim("cause", []byte(value))
		require.NoError(t, err)
		require.Equal(t, "first", string(got))
	}
	_, err = c.Claim("cause", []byte(strings.Repeat("x", 65)))
	require.EqualError(t, err, "store: claim cause: 65 bytes are too long")
	require.Zero(t, released())
	c.Release()
	c.Release()
	require.Equal(t, 1, prepared())
	require.Equal(t, 1, released())
}

// An empty value is one too.
func TestStoreOfCTakesNothing(t *testing.T) {
	c, _, _, _, err := lastFromC(false, false)
	require.NoError(t, err)
	defer c.Release()
	got, err := c.Claim("cause", nil)
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestStoreOfCThatDoesNotLast(t *testing.T) {
	_, _, prepared, released, err := lastFromC(true, false)
	require.EqualError(t, err, "store: it does not last")
	require.Equal(t, 1, prepared())
	require.Zero(t, released())
}

// A structure without one of its functions is refused, and not called at the first failure.
func TestStoreOfCWithoutAFunction(t *testing.T) {
	for missing := range 3 {
		err := lastWithout(missing)
		require.EqualError(t, err, "store: a function of sagecomm_lasting_store is NULL")
	}
}

// A caller that was compiled before the configuration had the field has no such store, whatever stands behind its configuration.
func TestConfigurationWithoutLastingStore(t *testing.T) {
	_, absent, prepared, _, err := lastFromC(false, true)
	require.NoError(t, err)
	require.True(t, absent)
	require.Zero(t, prepared())
}
