package pgbackend

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// A panic after which peers may have joined makes a rank give up, as an error does.
func TestPanicInCreate(t *testing.T) {
	for _, at := range []string{"open", "store"} {
		t.Run(at, func(t *testing.T) {
			real := openGroup
			defer func() { openGroup = real }()
			openGroup = func(c runner.Config) (*runner.Group, error) {
				if c.Rank == 1 && at == "open" {
					panic("as the test asked for")
				}
				return real(c)
			}
			mem := bootstrap.NewMemStore()
			groups, errs := make([]*Group, 2), make([]error, 2)
			began := time.Now()
			ranksOf(t, 2, func(rank int) error {
				var store bootstrap.Store = mem
				if rank == 1 && at == "store" {
					store = panickyStore{mem}
				}
				groups[rank], errs[rank] = Get().Create(Config{Rank: rank, Size: 2, Name: t.Name(), Timeout: opTimeout, Store: store})
				return nil
			})
			if errs[1] == nil || !strings.Contains(errs[1].Error(), "internal error on rank 1: as the test asked for") {
				t.Error(errs[1])
			}
			if groups[0] != nil { // it had joined
				if err := expect(sum(groups[0], 10), coll.PeerFailure, "gave up while the group was made", "as the test asked for"); err != nil {
					t.Error(err)
				}
				_ = groups[0].Destroy()
			} else if !strings.Contains(errs[0].Error(), "as the test asked for") {
				t.Error(errs[0])
			}
			if took := time.Since(began); took > opTimeout/2 {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// panickyStore panics when a rank has read the descriptions of the others.
type panickyStore struct{ bootstrap.Store }

func (s panickyStore) Get(key string, timeout time.Duration) ([]byte, error) {
	if strings.HasSuffix(key, "first/0") {
		panic("as the test asked for")
	}
	return s.Store.Get(key, timeout)
}

// Ranks that would attach by different methods fail at once.
func TestDifferentWaysToAttach(t *testing.T) {
	for _, lists := range [][2]string{{"tmpfs", "proc"}, {"proc,scm", "tmpfs,proc"}, {"proc", "scm"}} {
		began := time.Now()
		_, errs := tryWorld(t, 2, opTimeout, func(rank int) options {
			return options{"shm_attach": lists[rank], "shm_dir": t.TempDir()}
		})
		for rank, err := range errs {
			if err == nil || !strings.Contains(err.Error(), "ranks 0 and 1 are set up differently") || !strings.Contains(err.Error(), "SAGECOMM_SHM_ATTACH") {
				t.Errorf("%v, rank %d: %v", lists, rank, err)
			}
		}
		if took := time.Since(began); took > opTimeout/2 {
			t.Errorf("%v: it took %v", lists, took)
		}
	}
}

// A store outlives groups: the same keys serve one group after the other, however far ahead of the others a rank is.
func TestGroupsOnTheSameKeysOneAfterAnother(t *testing.T) {
	const ranks, rounds = 4, 20
	mem := bootstrap.NewMemStore()
	ranksOf(t, ranks, func(rank int) error {
		for round := range rounds {
			g, err := Get().Create(Config{Rank: rank, Size: ranks, Name: t.Name(), Timeout: opTimeout, Store: mem})
			if err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
			for i := range 3 + rank {
				if i >= 3 {
					time.Sleep(time.Millisecond) // some ranks leave later
					continue
				}
				in, out := []byte{byte(rank + round)}, make([]byte, 1)
				if _, f := g.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Uint8}, one(in), one(out)); f != nil {
					return f
				}
				if want := byte(ranks*(ranks-1)/2 + ranks*round); out[0] != want {
					return fmt.Errorf("round %d: %d, want %d", round, out[0], want)
				}
			}
			if err := g.Destroy(); err != nil {
				return err
			}
		}
		return nil
	})
}

// In a run of the job a rank was ended before it joined, after its peers had met. When the job starts again, it follows
// the epoch of its peers; what they wrote in the run before is of processes that have ended.
func TestRankThatMissedARun(t *testing.T) {
	mem := bootstrap.NewMemStore()
	create := func(rank int, timeout time.Duration) (*Group, error) {
		return Get().Create(Config{Rank: rank, Size: 3, Name: t.Name(), Timeout: timeout, Store: mem})
	}
	ranksOf(t, 2, func(rank int) error {
		if _, err := create(rank, 50*time.Millisecond); err == nil {
			return errors.New("a group without rank 2")
		}
		return nil
	})
	ranksOf(t, 3, func(rank int) error {
		for other := 0; rank == 2 && other < 2; {
			if epoch, err := mem.Get(fmt.Sprintf("sagecomm/epoch/%d", other), opTimeout); err != nil {
				return err
			} else if strings.HasPrefix(string(epoch), "2 ") {
				other++
			}
		}
		g, err := create(rank, opTimeout)
		if err != nil {
			return err
		}
		defer g.Destroy()
		return asError(sum(g, 100))
	})
}

func TestFirstEpochOfARestartedJob(t *testing.T) {
	for value, want := range map[string]int{"": 1, "0": 1, "x": 1, "-1": 1, "1": 1<<20 + 1, "3": 3<<20 + 1} {
		if got := firstEpoch([]string{"A=B", "TORCHELASTIC_RESTART_COUNT=" + value}); got != want {
			t.Errorf("%q: %d, want %d", value, got, want)
		}
	}
	if got := firstEpoch(nil); got != 1 {
		t.Error(got)
	}
}

// A rank without room for the group, when all others are ready, does not let them wait.
func TestNoRoomForTheGroupOnOneRank(t *testing.T) {
	before := openGroup
	defer func() { openGroup = before }()
	openGroup = func(c runner.Config) (*runner.Group, error) {
		if c.Rank == 1 {
			return nil, errors.New("no memory, for the test")
		}
		return before(c)
	}
	w, errs := tryWorld(t, 3, opTimeout, nil)
	for rank, err := range errs {
		if (err != nil) != (rank == 1) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
	for _, g := range []*Group{w.groups[0], w.groups[2]} {
		if err := expect(sum(g, 10), coll.PeerFailure, "rank 1 (host ", "gave up while the group was made: no memory, for the test"); err != nil {
			t.Error(err)
		}
	}
}

// editedStore changes what a rank writes.
type editedStore struct {
	bootstrap.Store
	from, to string
}

func (s editedStore) Set(key string, value []byte) error {
	return s.Store.Set(key, bytes.Replace(value, []byte(s.from), []byte(s.to), 1))
}

// The description of a rank is checked before anything that it names is opened or watched.
func TestDescriptionsAreChecked(t *testing.T) {
	for _, c := range [][2]string{{`"kind":"memfd"`, `"kind":"x"`}, {`"fd":`, `"fd":-`}, {`"pid":`, `"pid":-`}, {`"pid":`, `"pid":1`}, {`"size":`, `"size":0,"was":`}} {
		mem := bootstrap.NewMemStore()
		ranksOf(t, 2, func(rank int) error {
			var store bootstrap.Store = mem
			if rank == 1 {
				store = editedStore{mem, c[0], c[1]}
			}
			g, err := Get().Create(Config{Rank: rank, Size: 2, Name: t.Name(), Timeout: opTimeout, Store: store, Options: options{"shm_attach": "proc,scm"}})
			if err == nil {
				_ = g.Destroy()
			}
			if err == nil || !strings.Contains(err.Error(), "rank 1 (pid") || !strings.Contains(err.Error(), "wrote an invalid description into the store") {
				return fmt.Errorf("with %s: %v", c[1], err)
			}
			return nil
		})
	}
}
