package pgbackend

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
)

// In a group of more than 64 ranks rank 0 reads for all what each has written. All name the rank that cannot take part, or is set up differently, also
// where that is rank 0.
func TestRanksOfALargeGroupNameWhoFails(t *testing.T) {
	const size = 66
	for _, culprit := range []int{0, 40} {
		of := func(o options) func(rank int) options {
			return func(rank int) options {
				if rank == culprit {
					return o
				}
				return nil
			}
		}
		_, errs := tryWorld(t, size, opTimeout, of(options{"tune": "all_reduce:nonsense"}))
		for rank, err := range errs {
			require.ErrorContains(t, err, "nonsense", rank)
			if rank != culprit {
				require.ErrorContains(t, err, fmt.Sprintf("1 of %d ranks failed; rank %d: ", size, culprit))
			}
		}
		_, errs = tryWorld(t, size, opTimeout, of(options{"tune": "all_reduce:ring"}))
		for _, err := range errs {
			require.ErrorContains(t, err, fmt.Sprintf("ranks 0 and %d are set up differently: SAGECOMM_TUNE", max(culprit, 1)))
		}
	}
	w, errs := tryWorld(t, size, opTimeout, nil)
	for _, err := range errs {
		require.NoError(t, err)
	}
	w.each(func(g *Group) error { return asError(sum(g, 100)) })
}

// deadAt is the store of a rank whose process dies before it writes a key.
type deadAt struct {
	*bootstrap.MemStore
	key  string
	die  func()
	dead *atomic.Bool
}

func (s deadAt) Set(key string, value []byte) error {
	if strings.HasSuffix(key, s.key) && !s.dead.Swap(true) {
		s.die()
	}
	if s.dead.Load() {
		return errDead
	}
	return s.MemStore.Set(key, value)
}

func (s deadAt) Get(key string, timeout time.Duration) ([]byte, error) {
	if s.dead.Load() {
		return nil, errDead
	}
	return s.MemStore.Get(key, timeout)
}

// dieInTheAddressRound makes a group of 66 ranks of which one dies before it tells its address. Ranks 0, 1 and 5 are on one host, and one rank of that
// host sees the death. It returns what each rank got.
func dieInTheAddressRound(t *testing.T, dying, witness int) []error {
	t.Helper()
	const size = 66
	real := networkName
	defer func() { networkName = real }()
	seen := make(chan *Group, 1)
	networkName = func(g *Group) string {
		if g.rank == witness {
			select {
			case seen <- g:
			default:
			}
		}
		return real(g)
	}
	mem, errs := bootstrap.NewMemStore(), make([]error, size)
	began := time.Now()
	ranksOf(t, size, func(rank int) error {
		c := Config{Rank: rank, Size: size, Name: t.Name(), Timeout: opTimeout, Store: mem, Lasting: mem, Options: options{"hostid": "b"}}
		if rank == 0 || rank == 1 || rank == 5 {
			c.Options = options{"hostid": "a"}
		}
		if rank == dying {
			c.Store = deadAt{mem, fmt.Sprint(addressRound, "/", dying), func() { (<-seen).peerDied(dying) }, new(atomic.Bool)}
		}
		_, errs[rank] = Get().Create(c)
		return nil
	})
	measure(t, "the end of the rendezvous", time.Since(began), opTimeout/2)
	require.ErrorContains(t, errs[dying], errDead.Error())
	requireNoNetworks(t)
	return errs
}

// A rank dies while ranks of a large group tell their addresses. Only a rank of its host can see that. All name it, whether that rank is rank 0, which
// reads for all, or not.
func TestADeathInTheAddressRoundOfALargeGroup(t *testing.T) {
	for _, witness := range []int{0, 1} {
		for rank, err := range dieInTheAddressRound(t, 5, witness) {
			if rank == 5 {
				continue
			}
			f := CreateFailure("g", err)
			require.NoError(t, expect(f, coll.PeerFailure, "rank 5 (host", "died while the group was made"), rank)
			require.Equal(t, 5, f.Rank)
		}
	}
}

// A rank that has told its address later than rank 0 waited, and one that began later, accuse no other rank: they do not know how long it was silent.
func TestWhoIsLateInTheAddressRoundAccusesNobody(t *testing.T) {
	const size = 66
	for _, missing := range [][]int{{7, 9}, {9}} {
		roster := []byte{'a'}
		for rank := range size {
			if len(missing) > 0 && rank == missing[0] {
				roster, missing = append(roster, 0), missing[1:]
			} else {
				roster = append(roster, 1, 'v')
			}
		}
		store := bootstrap.NewMemStore()
		require.NoError(t, store.Set("p/roster/0", roster))
		g := &Group{name: "g", rank: 7, size: size, members: make([]member, size)}
		err := g.shareAddresses(store, "p", time.Hour, errDead)
		f := CreateFailure("g", err)
		require.NoError(t, expect(f, coll.Timeout, "rank"))
		require.Equal(t, -1, f.Rank)
		require.NotContains(t, f.Message, "its process has died")
	}
}
