package pgbackend

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
)

// Ranks to which another one tells why the group is not made raise the same kind of error, with the same culprit.
func TestCulpritCrossesInARound(t *testing.T) {
	died := &coll.Failure{Status: coll.PeerFailure, Rank: 2, PID: 7, Host: "host b", Group: "g", Message: "sagecomm: rank 2 is lost"}
	slow := &coll.Failure{Status: coll.Timeout, Rank: 1, PID: 6, Host: "host a", Message: "sagecomm: rank 1 does not answer"}
	own := errors.New("the caller's store says: Connection closed by peer")
	for name, c := range map[string]struct {
		of         [3]error // by rank
		status     coll.Status
		rank, pid  int
		host, text string
	}{
		"a death":                      {[3]error{nil, fmt.Errorf("the links: %w", died), nil}, coll.PeerFailure, 2, 7, "host b", "rank 1: the links: sagecomm: rank 2 is lost"},
		"a death behind another cause": {[3]error{slow, died, nil}, coll.PeerFailure, 2, 7, "host b", "rank 0: sagecomm: rank 1 does not answer; rank 1: sagecomm: rank 2 is lost"},
		"silence":                      {[3]error{nil, own, slow}, coll.Timeout, 1, 6, "host a", "rank 2: sagecomm: rank 1 does not answer"},
		"a text that looks like one":   {[3]error{own, nil, nil}, coll.System, -1, 0, "", "Connection closed by peer"},
		"another fault of a rank":      {[3]error{&coll.Failure{Status: coll.Internal, Rank: 0, PID: 5, Message: "a panic"}, nil, nil}, coll.System, 0, 5, "", "rank 0: a panic"},
	} {
		t.Run(name, func(t *testing.T) {
			store := bootstrap.NewMemStore()
			ranksOf(t, 3, func(rank int) error {
				err := bootstrap.Agree(store, "round", rank, 3, opTimeout, telling(c.of[rank]))
				f := CreateFailure("g", err)
				if f.Status != c.status || f.Rank != c.rank || f.PID != c.pid || f.Host != c.host || f.Group != "g" {
					return fmt.Errorf("rank %d: %+v", rank, f)
				}
				require.ErrorContains(t, f, c.text)
				// It passes that on to those that come later.
				require.NoError(t, bootstrap.Abandon(store, "next", rank, 3, telling(err)))
				told := bootstrap.Abandoned(store, "next", rank)
				passed := readTold(told.Detail)
				if (passed == nil) != (c.rank < 0) || passed != nil && passed.Rank != c.rank || told.Reason != err.Error() {
					return fmt.Errorf("rank %d: %+v", rank, told)
				}
				return nil
			})
		})
	}
	gaveUp := CreateFailure("g", fmt.Errorf("joined: %w", &bootstrap.GaveUpError{Prefix: "p", Reason: "interrupted"}))
	require.NoError(t, expect(gaveUp, coll.System, "rendezvous p: rank 0, which reads", "gave up: interrupted"))
	require.Equal(t, -1, gaveUp.Rank)
	detail := telling(died).(bootstrap.Detailed).Detail()
	lost := fmt.Errorf("joined: %w", &bootstrap.GaveUpError{Prefix: "p", Reason: died.Message, Detail: detail})
	gaveUp = CreateFailure("g", lost)
	require.NoError(t, expect(gaveUp, coll.PeerFailure, "gave up: sagecomm: rank 2 is lost"))
	require.Equal(t, []any{2, 7, "host b"}, []any{gaveUp.Rank, gaveUp.PID, gaveUp.Host})
	require.Equal(t, detail, telling(lost).(bootstrap.Detailed).Detail())
	for _, detail := range []string{"", "x", `{"status":0,"rank":1}`, `{"status":-4,"rank":-1}`, `{"status":-400,"rank":0}`} {
		require.Nil(t, readTold([]byte(detail)), detail)
	}
}

// Where two ranks have lost each other, each names the other one: no rank is the culprit of its own error.
func TestNoRankIsItsOwnCulprit(t *testing.T) {
	detail := telling(&coll.Failure{Status: coll.PeerFailure, Rank: 1, PID: 6, Message: "rank 1 is lost"}).(bootstrap.Detailed).Detail()
	for rank, want := range []int{1, -1, 1} {
		err := fmt.Errorf("the links: %w", &bootstrap.FailedError{Prefix: "round", Size: 3, Failed: []bootstrap.RankFailure{{Rank: 0, Reason: "rank 1 is lost", Detail: detail}}})
		(&Group{rank: rank}).forgetOwnCulprit(err)
		require.Equal(t, want, CreateFailure("g", err).Rank, rank)
		err = fmt.Errorf("the links: %w", &bootstrap.GaveUpError{Prefix: "round", Reason: "rank 1 is lost", Detail: detail})
		(&Group{rank: rank}).forgetOwnCulprit(err)
		require.Equal(t, want, CreateFailure("g", err).Rank, rank)
	}
}

// lostLink returns rank 0 of a group of four ranks in three processes, which has lost the link to ranks 1 and 2.
func lostLink() *Group {
	g := &Group{name: "g", size: 4, members: make([]member, 4), life: lifetime{gone: make([]bool, 4)}, links: &groupLinks{
		lost:      make([]atomic.Pointer[error], 4),
		processes: []linkedProcess{{ranks: []int{0}}, {ranks: []int{1, 2}}, {ranks: []int{3}}}}}
	for rank := range g.members {
		g.members[rank].PID = 10 + rank
	}
	g.news.try = "try"
	g.unlinked.Store(g.noLink(g.links.processes[1], errors.New("EOF")))
	return g
}

// Of a process that is lost, any rank may have given the reason.
func TestWhyUnlinkedIsAskedOfAllRanks(t *testing.T) {
	for _, gaveUp := range []int{1, 2} {
		g, store := lostLink(), bootstrap.NewMemStore()
		before := g.unlinked.Load()
		g.askWhyUnlinked(store)
		require.Same(t, before, g.lost())
		require.NoError(t, bootstrap.Abandon(store, "try"+joinedRound, gaveUp, 4, errors.New("sagecomm: no memory")))
		done := make(chan struct{})
		close(done)
		_, err := (&linking{g: g, done: done, failed: before}).wait(store, "mine/0")
		require.ErrorContains(t, err, "no memory")
		g.news.explained = nil
		g.askWhyUnlinked(store)
		f := CreateFailure("g", g.lost())
		require.NoError(t, expect(f, coll.System,
			fmt.Sprintf("rank %d (host , pid %d) does not make the group any more: no memory", gaveUp, 10+gaveUp)))
		require.Equal(t, gaveUp, f.Rank)

		died := &coll.Failure{Status: coll.PeerFailure, Rank: 3, PID: 13, Host: "b", Message: "rank 3 died"}
		require.NoError(t, bootstrap.Abandon(store, "try"+joinedRound, gaveUp, 4, telling(died)))
		g.news.explained = nil
		g.life.gone[1] = true // the loss of the link is a death behind that
		g.askWhyUnlinked(store)
		f = CreateFailure("g", g.lost())
		require.NoError(t, expect(f, coll.PeerFailure, "rank 3 died"))
		require.Equal(t, []any{3, 13, "b"}, []any{f.Rank, f.PID, f.Host})
		g.askWhyUnlinked(store)
		require.Same(t, f, g.lost())
	}
}

// Rank 0 of a large group, which waits no longer because it has lost a link, tells all others the reason that a rank at
// the end of the link has given, not that the link is lost.
func TestRankZeroTellsWhyALinkWasLost(t *testing.T) {
	const size = 66
	g, store := lostLink(), countedGets{MemStore: bootstrap.NewMemStore(), gets: new(atomic.Int64)}
	require.NoError(t, bootstrap.Abandon(store, "try"+joinedRound, 2, size, errors.New("sagecomm: no memory")))
	require.Error(t, g.endOfWaits(store))
	asked := store.gets.Load()
	require.Error(t, g.endOfWaits(store))
	require.Equal(t, asked, store.gets.Load())

	own := bootstrap.Watchful(store, size, func() error { return g.endOfWaits(store) }, func(int) error { return nil })
	require.Error(t, bootstrap.Agree(own, "round", 0, size, opTimeout, nil))
	err := bootstrap.Agree(store, "round", 9, size, opTimeout, nil)
	require.ErrorAs(t, err, new(*bootstrap.GaveUpError))
	require.NoError(t, expect(CreateFailure("g", err), coll.System, "rank 2 (host , pid 12) does not make the group any more: no memory"))
}

// countedGets is a store that counts what it is asked.
type countedGets struct {
	*bootstrap.MemStore
	gets *atomic.Int64
}

func (s countedGets) Get(key string, timeout time.Duration) ([]byte, error) {
	s.gets.Add(1)
	return s.MemStore.Get(key, timeout)
}

// A rank of a group whose processes do not all watch each other tells of a loss, and others hear of it.
func TestALossIsToldToWhoDoesNotSeeIt(t *testing.T) {
	died := &coll.Failure{Status: coll.PeerFailure, Rank: 3, PID: 13, Host: "b", Message: "rank 3 died"}
	for _, sparse := range []bool{false, true} {
		store := countedGets{MemStore: bootstrap.NewMemStore(), gets: new(atomic.Int64)}
		of := func(rank int) *Group {
			g := lostLink()
			g.rank, g.links.sparse = rank, sparse
			g.unlinked.Store(nil)
			return g
		}
		saw := of(1)
		saw.unlinked.Store(died)
		saw.tellOfLoss(store)
		heard := of(0)
		err := heard.endOfWaits(store)
		if !sparse {
			require.NoError(t, err)
			require.Zero(t, store.gets.Load())
			continue
		}
		require.NoError(t, expect(CreateFailure("g", err), coll.PeerFailure, "rank 3 died"))
		require.Equal(t, 3, CreateFailure("g", err).Rank)
		asked := store.gets.Load()
		heard.askWhyUnlinked(store)
		require.Error(t, heard.endOfWaits(store))
		require.Equal(t, asked, store.gets.Load())

		accused := of(3) // it is no culprit of its own error
		require.NoError(t, expect(CreateFailure("g", accused.endOfWaits(store)), coll.System, "rank 3 died"))
		require.Equal(t, -1, CreateFailure("g", accused.endOfWaits(store)).Rank)

		waiting := of(2)
		waiting.news.looked = time.Now().Add(time.Hour) // it asks seldom
		require.NoError(t, waiting.endOfWaits(store))
	}
}

// A rank that has heard of a loss gives up, and its process ends. Who watches that rank only names the loss that was
// told, and does not tell another one, whether it has seen that a link is lost or a death.
func TestTheFirstLossThatIsToldStays(t *testing.T) {
	died := &coll.Failure{Status: coll.PeerFailure, Rank: 3, PID: 13, Host: "b", Message: "rank 3 died"}
	for _, dead := range []bool{false, true} {
		store := bootstrap.NewMemStore()
		saw, follows := lostLink(), lostLink()
		for _, g := range []*Group{saw, follows} {
			g.links.sparse = true
			if dead {
				g.unlinked.Store(nil)
				g.life.gone[1] = true
			}
		}
		if !dead {
			saw.unlinked.Store(died)
		} else {
			saw.life.gone[1], saw.life.gone[3] = false, true
		}
		saw.tellOfLoss(store)
		follows.askWhyUnlinked(store)
		require.True(t, dead || CreateFailure("g", follows.lost()).Rank == 3)
		follows.tellOfLoss(store)
		require.Equal(t, 3, CreateFailure("g", follows.lost()).Rank, dead)
		require.Equal(t, 3, readTold(bootstrap.Abandoned(store, "try"+lossKey, 0).Detail).Rank, dead)

		accused := lostLink() // the others have lost it, and it has lost rank 1
		accused.rank, accused.links.sparse = 3, true
		before := accused.lost()
		accused.askWhyUnlinked(store)
		accused.tellOfLoss(store)
		require.Same(t, before, accused.lost())
		require.Equal(t, 3, readTold(bootstrap.Abandoned(store, "try"+lossKey, 0).Detail).Rank, dead)
	}
}

// A loss takes the place of ranks that have not come, but not that of an interruption.
func TestALossIsNotTheReasonOfAnInterruption(t *testing.T) {
	g := lostLink()
	failed := &bootstrap.FailedError{Prefix: "p", Size: 4, Unknown: 1,
		Failed: []bootstrap.RankFailure{{Rank: 2, Reason: "no memory"}}}
	require.Same(t, g.unlinked.Load(), g.bereaved(failed))
	stopped := &bootstrap.StoppedError{Cause: errors.New("interrupted"), Stored: failed}
	require.Same(t, stopped, g.bereaved(stopped))
	require.ErrorContains(t, stopped, "interrupted; before that, sagecomm: rendezvous p: 1 of 4 ranks failed; ")
	require.ErrorAs(t, stopped, new(*bootstrap.FailedError))
}

// A rank that waits for a slow link waits no longer when another one tells of a loss.
func TestALossThatIsToldEndsTheWaitForLinks(t *testing.T) {
	g, store := lostLink(), bootstrap.NewMemStore()
	g.unlinked.Store(nil)
	g.links.sparse = true
	died := &coll.Failure{Status: coll.PeerFailure, Rank: 3, PID: 13, Host: "b", Message: "rank 3 died"}
	require.NoError(t, bootstrap.Abandon(store, "try"+lossKey, 0, 1, telling(died)))
	own := bootstrap.Watchful(store, g.size, func() error { return g.endOfWaits(store) }, func(int) error { return nil })
	ended := make(chan error, 1)
	go func() { ended <- g.await(make(chan struct{}), own, "mine/0") }()
	select {
	case err := <-ended:
		require.Equal(t, 3, CreateFailure("g", err).Rank)
	case <-time.After(opTimeout):
		require.Fail(t, "the wait for links goes on")
	}
}

// The process that serves the store loses a link, and takes the store with it: its peers tell of the link first.
func TestALossIsToldInFrontOfTheLossOfTheStore(t *testing.T) {
	g := lostLink()
	gone := &bootstrap.StoreError{Rank: 0, Action: "write to", Keys: "key k", Cause: errors.New("Broken pipe")}
	f := CreateFailure("g", g.bereaved(gone))
	require.Equal(t, g.unlinked.Load().Status, f.Status)
	require.Equal(t, 1, f.Rank)
	require.Equal(t, g.unlinked.Load().Message+"; the store cannot be used either: Broken pipe", f.Message)
	interrupted := &bootstrap.StoreError{Rank: 0, Action: "read from", Keys: "key k", Cause: &coll.Failure{Status: coll.Aborted}}
	require.Same(t, interrupted, g.bereaved(interrupted))
	g.unlinked.Store(nil)
	require.Same(t, gone, g.bereaved(gone))
}
