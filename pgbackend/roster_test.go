package pgbackend

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
)

// In a group of more than 64 ranks rank 0 reads for all what each has written. All name the rank that cannot take part,
// or is set up differently, also where that is rank 0.
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

// deadAt is the store of a rank whose process dies before it writes or reads a key.
type deadAt struct {
	*bootstrap.MemStore
	key  string
	die  func()
	dead *atomic.Bool
}

// at returns an error if the process is dead, or dies at this key.
func (s deadAt) at(key string) error {
	if strings.HasSuffix(key, s.key) && !s.dead.Swap(true) {
		s.die()
	}
	if s.dead.Load() {
		return errDead
	}
	return nil
}

func (s deadAt) Set(key string, value []byte) error {
	if err := s.at(key); err != nil {
		return err
	}
	return s.MemStore.Set(key, value)
}

func (s deadAt) Get(key string, timeout time.Duration) ([]byte, error) {
	if err := s.at(key); err != nil {
		return nil, err
	}
	return s.MemStore.Get(key, timeout)
}

// dieInTheAddressRound makes a group of 66 ranks of which one dies at a key of the round in which they tell their
// addresses, and some before they tell theirs, which nobody sees. Ranks 0, 1 and 5 are on one host, and one rank of
// that host sees the first death. It returns what each rank got.
func dieInTheAddressRound(t *testing.T, dying int, key string, witness int, unseen ...int) []error {
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
		c := Config{Rank: rank, Size: size, Name: t.Name(), Timeout: opTimeout, Store: mem, Lasting: mem,
			Options: options{"hostid": "b"}}
		if rank == 0 || rank == 1 || rank == 5 {
			c.Options = options{"hostid": "a"}
		}
		if rank == dying {
			c.Store = deadAt{mem, addressRound + key, func() { (<-seen).peerDied(dying) }, new(atomic.Bool)}
		}
		if slices.Contains(unseen, rank) {
			c.Store = deadAt{mem, fmt.Sprint(addressRound, "/", rank), func() {}, new(atomic.Bool)}
		}
		_, errs[rank] = Get().Create(c)
		return nil
	})
	measure(t, "the end of the rendezvous", time.Since(began), 5*time.Second)
	for _, rank := range append(unseen, dying) {
		require.ErrorContains(t, errs[rank], errDead.Error())
	}
	return errs
}

// A rank dies while ranks of a large group tell their addresses. Only a rank of its host can see that. All name it,
// whether that rank is rank 0, which reads for all, or not.
func TestADeathInTheAddressRoundOfALargeGroup(t *testing.T) {
	for _, witness := range []int{0, 1} {
		for rank, err := range dieInTheAddressRound(t, 5, "/5", witness) {
			if rank == 5 {
				continue
			}
			f := CreateFailure("g", err)
			require.NoError(t, expect(f, coll.PeerFailure, "rank 5 (host", "died while the group was made"), rank)
			require.Equal(t, 5, f.Rank)
		}
	}
}

// Rank 0, which reads for all, dies there before it tells its address, or behind that. The others hear it from a rank
// of its host.
func TestRankZeroDiesInTheAddressRoundOfALargeGroup(t *testing.T) {
	for _, key := range []string{"/0", "/40"} {
		for rank, err := range dieInTheAddressRound(t, 0, key, 1, 40) {
			if rank == 0 || rank == 40 {
				continue
			}
			f := CreateFailure("g", err)
			require.NoError(t, expect(f, coll.PeerFailure, "rank 0 (host", "died while the group was made"), rank)
			require.Equal(t, 0, f.Rank)
		}
	}
}

// wrongControl is the store of a rank 0 that is misled about rank 3, and tells the others the truth.
type wrongControl struct {
	*bootstrap.MemStore
	right, wrong []byte
}

var controlOf = regexp.MustCompile(`"control":[0-9]+`)

func (s *wrongControl) Get(key string, timeout time.Duration) ([]byte, error) {
	value, err := s.MemStore.Get(key, timeout)
	if err != nil || !strings.HasSuffix(key, firstTry+"/3") {
		return value, err
	}
	s.right = controlOf.Find(value)
	s.wrong = append(s.right[:len(s.right)-1:len(s.right)-1], '1') // no multiple of 64
	return bytes.Replace(value, s.right, s.wrong, 1), nil
}

func (s *wrongControl) Set(key string, value []byte) error {
	if s.wrong != nil {
		value = bytes.Replace(value, s.wrong, s.right, 1)
	}
	return s.MemStore.Set(key, value)
}

// heldReader keeps a rank from reading a key until the test lets it.
type heldReader struct {
	*bootstrap.MemStore
	key     string
	release <-chan struct{}
}

func (s heldReader) Get(key string, timeout time.Duration) ([]byte, error) {
	if strings.HasSuffix(key, s.key) {
		<-s.release
	}
	return s.MemStore.Get(key, timeout)
}

// Rank 0 of a large group cannot map the memory of another rank, so nobody waits for those that have not tried yet. One
// of them tries when rank 0 has given its memory back, and fails with the same error.
func TestRankZeroOfALargeGroupFailsToAttach(t *testing.T) {
	const size = 66
	newWorld(t, 1) // the arena exists
	before := inUse(t)
	mem, errs, ended := bootstrap.NewMemStore(), make([]error, size), make(chan struct{})
	ranksOf(t, size, func(rank int) error {
		c := Config{Rank: rank, Size: size, Name: t.Name(), Timeout: opTimeout, Store: mem,
			Options: options{"shm_attach": "proc,scm"}}
		switch rank {
		case 0:
			c.Store = &wrongControl{MemStore: mem}
			defer close(ended)
		case 40:
			c.Store = heldReader{mem, firstTry + "/roster/0", ended}
		}
		_, errs[rank] = Get().Create(c)
		return nil
	})
	for rank, err := range errs {
		require.ErrorContains(t, err, "1 of 66 ranks failed; rank 0: there is no control area of rank 3 at offset ", rank)
	}
	require.Equal(t, before, inUse(t))
}

// otherVersion is the store of a rank that speaks another version of the protocol, in which rank 0 writes no roster.
type otherVersion struct{ *bootstrap.MemStore }

func (s otherVersion) Set(key string, value []byte) error {
	if strings.Contains(key, "/roster/") {
		return nil
	}
	spoken := fmt.Appendf(nil, `"protocol":%d`, protocolVersion)
	return s.MemStore.Set(key, bytes.Replace(value, spoken, fmt.Appendf(nil, `"protocol":%d`, protocolVersion-1), 1))
}

// A version with other rosters, or none, is named at once by all that speak this one, though a rank is missing.
func TestAnotherVersionInALargeGroupIsNamedAtOnce(t *testing.T) {
	const size = 66
	for _, other := range []int{0, 40} {
		mem, errs := bootstrap.NewMemStore(), make([]error, size)
		began := time.Now()
		ranksOf(t, size, func(rank int) error {
			c := Config{Rank: rank, Size: size, Name: t.Name(), Timeout: opTimeout, Store: mem}
			switch rank {
			case size - 1:
				return nil
			case other:
				c.Store, c.Timeout = otherVersion{mem}, time.Second
			}
			_, errs[rank] = Get().Create(c)
			return nil
		})
		measure(t, "the end of the rendezvous", time.Since(began), 5*time.Second)
		for rank, err := range errs[:size-1] {
			if rank != other {
				require.ErrorContains(t, err, "are set up differently: the sagecomm version is one of protocol", rank)
			}
		}
	}
}

// A rank that has told its address later than rank 0 waited, and one that began later, accuse no other rank: they do
// not know how long it was silent.
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

// A rank that does not know who is missing, since nobody reads for all and a store that is asked for each key is not
// asked for so many, names nobody.
func TestWhoDoesNotKnowTheMissingAccusesNobody(t *testing.T) {
	real := addressLimit
	addressLimit = 10 * time.Millisecond
	defer func() { addressLimit = real }()
	const size = 66
	store := bootstrap.NewMemStore()
	for rank := range size - 1 {
		require.NoError(t, store.Set(fmt.Sprint("p/", rank), []byte{'v'}))
	}
	g := &Group{name: "g", rank: 7, size: size, members: make([]member, size)}
	f := CreateFailure("g", g.shareAddresses(store, "p", time.Hour, errDead))
	require.NoError(t, expect(f, coll.System, "rank 7: this process is dead; ", "others were not looked for"))
	require.Equal(t, -1, f.Rank)
}
