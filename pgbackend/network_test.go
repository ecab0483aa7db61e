package pgbackend

import (
	"strings"
	"testing"

	"sagecomm/tests/quick"
)

// The processes of a group dial those with higher identities all at the same time, and have proved nothing yet. None of
// them makes room for another one, however few strangers may be there beside them.
func TestProcessesOfAGroupAreNoStrangers(t *testing.T) {
	before := mostStrangers
	mostStrangers = 1
	defer func() { mostStrangers = before }()
	size := 24
	if quick.Only() {
		size = 8
	}
	w := newHostsWorld(t, strings.Repeat("01234567", size/8))
	w.each(func(g *Group) error { return asError(sum(g, 1000)) })
	w.destroy()
	requireNoNetworks(t)
}
