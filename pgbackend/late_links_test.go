package pgbackend

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// In these tests links at first need come late, or not at all.

// holdDials lets no process dial for a link at first need, until the test ends or the function that it returns is called.
func holdDials(t *testing.T, w *world) (release func()) {
	t.Helper()
	held := map[*network]int{}
	for _, g := range w.groups {
		n := g.links.network
		for range cap(n.dials) - held[n] {
			n.dials <- struct{}{}
			held[n]++
		}
	}
	release = sync.OnceFunc(func() {
		for n, slots := range held {
			for range slots {
				<-n.dials
			}
		}
	})
	t.Cleanup(release)
	return release
}

// A rank to which there is no link in time may have done all that it is to do, so it is not the culprit of a timeout.
func TestTimeoutWithoutLinks(t *testing.T) {
	patient(t, time.Second)
	notLate(t, func(t *testing.T) (late bool) {
		w := newLargeWorld(t, twelve)
		defer w.destroy()
		absent := farthest(t, w)
		defer holdDials(t, w)()
		var works []runner.Work
		for rank, g := range w.groups {
			if rank != absent {
				work, f := sumAsync(g, 1000)
				require.Nil(t, f)
				works = append(works, work)
			}
		}
		unmet := 0
		for _, f := range w.eachFailure(func(g *Group) *coll.Failure {
			t, found := oldest(g.run)
			if !found {
				return nil
			}
			d, until := diagnosis{g, g.run}, time.Now().Add(g.diagnosisTime())
			d.askAwaited(t.Peer)
			g.askRemotes(until)
			return d.timeout(d.evidence(until), t)
		}) {
			if f == nil {
				continue
			}
			if f.Rank != absent && f.Rank != -1 { // a rank that has called and is linked did not answer in time
				late = true
			}
			if strings.Contains(f.Message, "to which no link") {
				unmet++
			}
		}
		for _, g := range w.groups {
			g.Abort("the end of the test")
		}
		for _, work := range works {
			require.NotNil(t, finish(work))
			work.Release()
		}
		require.True(t, late || unmet > 0)
		return late
	})
}
