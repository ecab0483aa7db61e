package pgbackend

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/transport/tcp"
)

// Where not all processes have links, each pair of hosts is measured by a link that there is, and the others count as
// those that were measured.
func TestLinksOfALargeGroupAreMeasured(t *testing.T) {
	fast := tcp.Costs{RoundTrip: 5e-6, Frame: 0.1e-6, Byte: 10e-12}
	var links atomic.Int64
	probing(t, func(*tcp.Link, context.Context, time.Duration) tcp.Costs {
		links.Add(1)
		return fast
	})
	large(t)
	withLimits(t, linkProbeLimit, opTimeout)
	for hosts, measured := range map[string]int{"001122334455": 12, "000111222333": 6, "0123456789ab": 24} {
		forgetLinks()
		before := links.Load()
		w := groupOver(t, hosts, nil)
		requireAlike(t, w)
		require.EqualValues(t, measured, links.Load()-before, hosts)
		probed := w.groups[0].probed
		require.Equal(t, measured, probed.pairs, hosts)
		require.Equal(t, measured, probed.measured, hosts)
		require.Equal(t, costsOf(fast).octaves(), probed.octaves, hosts)
		require.Negative(t, probed.octaves[0], hosts)
		w.destroy()
	}
}
