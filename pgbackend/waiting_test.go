package pgbackend

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/env"
)

// interruptedStore ends waits as the store of a caller does that a signal has interrupted.
type interruptedStore struct{ *bootstrap.MemStore }

func (interruptedStore) Get(string, time.Duration) ([]byte, error) { return nil, errDead }

// A name server that does not answer holds up neither Ctrl-C nor the news of a death on this host.
func TestNameServerIsAwaitedWithALookForSignals(t *testing.T) {
	t.Setenv("MASTER_ADDR", "host-0")
	answer := make(chan struct{})
	real, asked := towards, make(chan struct{}, 2)
	towards = func(string) (netip.Addr, error) {
		asked <- struct{}{}
		<-answer
		return real("127.0.0.1")
	}
	defer func() {
		close(answer)
		towards = real
	}()
	settings, err := env.Resolve(nil, nil)
	require.NoError(t, err)
	group := func() *Group {
		g := &Group{process: Get(), size: 2, members: make([]member, 2), settings: settings, life: lifetime{gone: make([]bool, 2)}}
		g.members[1].Network = 5 // so loopback does not lead there
		return g
	}
	g := group()
	began := time.Now()
	_, err = g.openLinks(interruptedStore{bootstrap.NewMemStore()}, "key")
	require.ErrorIs(t, err, errDead)
	<-asked
	measure(t, "the end of the wait for a name server", time.Since(began), 5*time.Second)
	g = group()
	g.life.lost(1)
	_, err = g.openLinks(bootstrap.NewMemStore(), "key")
	require.ErrorContains(t, err, "rank 1 (host , pid 0) died while the group was made")
	require.Nil(t, g.links)
	<-asked
}
