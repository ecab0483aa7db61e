package pgbackend

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
)

// In these tests the server of this process ends as soon as the join of rank 0 has returned, as with a process of its
// own that ends behind it. Other ranks of an id are made with a store of the test.

// heldReads holds a rank in front of the keys that end with a suffix.
type heldReads struct {
	bootstrap.Store
	suffix  string
	reached func()
	release <-chan struct{}
}

func (s heldReads) Get(key string, timeout time.Duration) ([]byte, error) {
	if strings.HasSuffix(key, s.suffix) {
		s.reached()
		<-s.release
	}
	return s.Store.Get(key, timeout)
}

// joinedThrough makes a rank that joins at an id, with a store in front of that of the id.
func joinedThrough(t *testing.T, j Join, through func(bootstrap.Store) bootstrap.Store) (*Group, error) {
	id, err := bootstrap.ParseID(j.ID)
	if err != nil {
		return nil, err
	}
	b := &birth{id: id}
	b.here.Addresses, b.here.Port, err = Get().server.Listen(bootstrap.Endpoint{Addresses: bootstrap.Loopback})
	if err != nil {
		return nil, err
	}
	store, err := bootstrap.Dial(t.Context(), id, nil, time.Now().Add(j.Timeout), nil, inherited)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	g, err := Get().Create(Config{Rank: j.Rank, Size: j.Size, Name: j.Name, Timeout: j.Timeout, Options: j.Options,
		Store: through(store), Lasting: store, birth: b})
	if err == nil {
		err = store.Leave(j.Size)
	}
	return g, err
}

// signal returns a channel, and a function that closes it, any number of times.
func signal() (<-chan struct{}, func()) {
	c := make(chan struct{})
	return c, sync.OnceFunc(func() { close(c) })
}

// waitsForReaders lets ranks that wait for readers of the store wait as long as those need.
func waitsForReaders(t *testing.T) {
	real := readGrace
	readGrace = opTimeout
	t.Cleanup(func() { readGrace = real })
}

// madeAt returns the group of this process that has met at an id, nil if there is none.
func madeAt(t *testing.T, j Join) (made *Group) {
	id, err := bootstrap.ParseID(j.ID)
	require.NoError(t, err)
	p := Get()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.groups {
		if g.birth != nil && g.birth.id.Space == id.Space {
			made = g
		}
	}
	return made
}

// joinAndEnd joins as a rank whose process ends behind that, and serves the id.
func joinAndEnd(j Join) <-chan error {
	ended := make(chan error, 1)
	go func() {
		groups, err := Get().Join([]Join{j})
		destroyAll(groups)
		Get().server.Close()
		ended <- err
	}()
	return ended
}

// deadlineAsked is the context of a join, and calls asked when a context with a deadline is made of it, as seeOff does
// behind the rendezvous.
type deadlineAsked struct {
	context.Context
	asked func()
}

func (c deadlineAsked) Deadline() (time.Time, bool) {
	c.asked()
	return c.Context.Deadline()
}

// A rank that has told all, and has read nothing of the last round when another one is done, joins all the same.
// Without the wait in seeOff it finds no store.
func TestTheProcessOfAnIDMayEndBehindItsJoin(t *testing.T) {
	for hosts, last := range map[string]string{"00": attachedRound, "01": joinedRound} {
		t.Run(hosts, func(t *testing.T) {
			list := joinsOnHosts(t, hosts, nil)
			reached, reach := signal()
			release, goOn := signal()
			waits, wait := signal()
			made := make(chan error, 1)
			list[0].Context = deadlineAsked{t.Context(), func() {
				if madeAt(t, list[0]) != nil {
					wait()
				}
			}}
			ended := joinAndEnd(list[0])
			go func() {
				g, err := joinedThrough(t, list[1], func(s bootstrap.Store) bootstrap.Store {
					return heldReads{s, last + "/0", reach, release}
				})
				destroyAll([]*Group{g})
				made <- err
			}()
			<-reached
			select {
			case err := <-ended:
				require.Fail(t, "the join of rank 0 returned although rank 1 has not joined", "%v", err)
			case <-waits:
			}
			goOn()
			require.NoError(t, <-made)
			require.NoError(t, <-ended)
		})
	}
}

// A rank that fails, or is stopped, does not keep the join of the other one: that ends with the connections of the
// rank, with its caller, and with the failure of the group.
func TestTheJoinOfAServerIsNotKept(t *testing.T) {
	for _, by := range []string{"the end of the connections", "the caller", "a cause"} {
		t.Run(by, func(t *testing.T) {
			list := joinsOnHosts(t, "00", nil)
			list[0].Timeout, list[1].Timeout = time.Hour, time.Hour
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			list[0].Context = ctx
			reached, reach := signal()
			release, goOn := signal()
			made, joined := make(chan struct{}), make(chan error, 1)
			go func() {
				groups, err := Get().Join(list[:1])
				destroyAll(groups)
				joined <- err
			}()
			var connections *bootstrap.TCPStore // of rank 1
			go func() {
				defer close(made)
				g, _ := joinedThrough(t, list[1], func(s bootstrap.Store) bootstrap.Store {
					connections, _ = s.(*bootstrap.TCPStore)
					return heldReads{s, attachedRound + "/0", reach, release}
				})
				destroyAll([]*Group{g})
			}()
			<-reached
			require.Eventually(t, func() bool { return madeAt(t, list[0]) != nil }, opTimeout, time.Millisecond)
			switch by {
			case "the end of the connections":
				connections.Close()
			case "the caller":
				cancel()
			default:
				madeAt(t, list[0]).Abort("for the test")
			}
			select {
			case err := <-joined:
				require.NoError(t, err)
			case <-time.After(opTimeout):
				require.Fail(t, "the join of rank 0 waits for rank 1 still")
			}
			goOn()
			<-made
		})
	}
}

// The rank at whose process the others meet waits for a shorter time than they, and ends. They name the rank that is
// missing, with the status of that.
func TestAnAbsentRankIsNamedWhereTheServerEnds(t *testing.T) {
	list := joinsOnHosts(t, "012", nil)
	list[0].Timeout = givesUp
	waits := make(chan error, 1)
	go func() {
		_, err := Get().Join(list[2:])
		waits <- err
	}()
	id, err := bootstrap.ParseID(list[0].ID)
	require.NoError(t, err)
	store, err := bootstrap.Dial(t.Context(), id, nil, time.Now().Add(opTimeout), nil, inherited)
	require.NoError(t, err)
	_, err = store.Get("sagecomm/1"+firstTry+"/2", opTimeout)
	require.NoError(t, err)
	store.Close()
	absent := "1 of 3 ranks have not arrived: rank 1"
	require.ErrorContains(t, <-joinAndEnd(list[0]), absent)
	f := CreateFailure("joined", <-waits)
	require.NoError(t, expect(f, coll.Timeout,
		"the rank whose process serves the store of the unique id gave up: ", absent))
	require.Equal(t, -1, f.Rank)
}

// The status and the culprit of what the server of an id has told; this rank's own failure takes precedence.
func TestReasonsOfTheServerOfAnID(t *testing.T) {
	died := &coll.Failure{Status: coll.PeerFailure, Rank: 2, PID: 12, Host: "b", Message: "rank 2 died"}
	told := func(err error) *bootstrap.GaveUpError {
		detailed, ok := telling(err).(bootstrap.Detailed)
		require.True(t, ok)
		return &bootstrap.GaveUpError{Reason: err.Error(), Detail: detailed.Detail()}
	}
	f := CreateFailure("g", told(died))
	require.NoError(t, expect(f, coll.PeerFailure, "gave up: rank 2 died"))
	require.Equal(t, []any{2, 12, "b"}, []any{f.Rank, f.PID, f.Host})
	accused := told(died)
	(&Group{rank: 2}).forgetOwnCulprit(accused)
	require.Equal(t, -1, CreateFailure("g", accused).Rank)
	own := bootstrap.WithOwn("p", 1, 3, errors.New("no such interface"), told(died))
	require.NoError(t, expect(CreateFailure("g", own), coll.System,
		"1 of 3 ranks failed; rank 1: no such interface; ", "after that, ", "rank 2 died"))
}

// mortalReads is a store whose server ends when a rank reads in some round.
type mortalReads struct {
	bootstrap.Store
	round string
}

func (s mortalReads) Get(key string, timeout time.Duration) ([]byte, error) {
	if strings.Contains(key, s.round+"/") {
		return nil, errors.New("Connection reset by peer")
	}
	return s.Store.Get(key, timeout)
}

// A rank that has failed itself knows why, also where the store ends before it can read what the others tell. It raises
// that with the status that it has where the store lives.
func TestOwnFailureWhereTheStoreEnds(t *testing.T) {
	for round, wrong := range map[string]options{
		firstTry:     {"hostid": "1", "shm_attach": "tmpfs", "shm_dir": "/nonexistent"},
		addressRound: {"hostid": "1", "socket_ifname": "=nosuch0"},
	} {
		t.Run(strings.Trim(round, "/"), func(t *testing.T) {
			eachAProcess(t)
			reason := "/nonexistent"
			if round == addressRound {
				reason = "no network interface of this host is chosen"
			}
			mem := bootstrap.NewMemStore()
			errs := make([]error, 2)
			ranksOf(t, 2, func(rank int) error {
				c := Config{Rank: rank, Size: 2, Name: t.Name(), Timeout: opTimeout, Store: mem, Lasting: mem,
					Options: options{"hostid": "0", "shm_attach": wrong["shm_attach"], "shm_dir": t.TempDir()}}
				if rank == 1 {
					c.Store, c.Options = mortalReads{mem, round}, wrong
				}
				_, errs[rank] = Get().Create(c)
				return nil
			})
			require.ErrorContains(t, errs[0], reason)
			f := CreateFailure("g", errs[1])
			require.NoError(t, expect(f, coll.System,
				"1 of 2 ranks failed; rank 1: ", reason, "after that, ", "Connection reset by peer"))
		})
	}
}

// beginners are ranks that begin when rank 0 has told something, over a store that ends when rank 0 has raised. Each
// waits longer than those in front of it.
func beginners(t *testing.T, ranks []int, size int, timeout time.Duration, of func(rank int) options) []error {
	waitsForReaders(t)
	mem, ended := bootstrap.NewMemStore(), new(atomic.Bool)
	errs := make([]error, size)
	var all sync.WaitGroup
	for _, rank := range ranks {
		all.Go(func() {
			if rank > 0 {
				if _, errs[rank] = mem.Get("sagecomm/1"+firstTry+"/0", opTimeout); errs[rank] != nil {
					return
				}
			}
			later := time.Duration(rank) * 100 * time.Millisecond
			_, errs[rank] = Get().Create(Config{Rank: rank, Size: size, Name: t.Name(), Timeout: timeout + later,
				Store: mortalStore{mem, ended}, Lasting: mem, Options: of(rank)})
			if rank == 0 {
				ended.Store(true)
			}
		})
	}
	all.Wait()
	return errs
}

// Rank 0, whose process serves the store, has a wrong setting. The others begin later, and are told all the same, once.
func TestAWrongSettingIsToldWhereTheStoreEnds(t *testing.T) {
	for name, wrong := range map[string]struct{ value, reason string }{
		"link_timeout": {"99", `option link_timeout="99" is not accepted`},
		"tune_file":    {"/nonexistent", "SAGECOMM_TUNE_FILE: open /nonexistent: no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			errs := beginners(t, []int{0, 1, 2}, 3, opTimeout, func(rank int) options {
				if rank == 0 {
					return options{name: wrong.value}
				}
				return nil
			})
			for rank, err := range errs {
				require.ErrorContains(t, err, wrong.reason, rank)
				require.NotContains(t, err.Error(), "before that", rank)
			}
		})
	}
}

// The time of rank 0 runs out first. The others name the rank that is missing as well.
func TestAnAbsentRankIsNamedWhereTheStoreEnds(t *testing.T) {
	errs := beginners(t, []int{0, 2}, 3, givesUp, func(int) options { return nil })
	for _, rank := range []int{0, 2} {
		var late *bootstrap.TimeoutError
		require.ErrorAs(t, errs[rank], &late, rank)
		require.Equal(t, []int{1}, late.Missing, rank)
	}
}

// Rank 0, whose process serves the store, has read the last round, and another rank has not. That joins all the same.
// Without the wait in leaveStore it finds no store.
func TestTheProcessOfRank0MayEndBehindItsGroup(t *testing.T) {
	for hosts, last := range map[string]string{"00": attachedRound, "01": joinedRound} {
		t.Run(hosts, func(t *testing.T) {
			eachAProcess(t)
			waitsForReaders(t)
			mem, ended := bootstrap.NewMemStore(), new(atomic.Bool)
			release, goOn := signal()
			none, pass := signal()
			pass()
			ranksOf(t, 2, func(rank int) error {
				held := heldReads{mortalStore{mem, ended}, last + "/0", func() {}, release}
				if rank == 0 { // rank 1 goes on when rank 0 waits for it, or has left
					held.suffix, held.reached, held.release = endedKey+"/1", goOn, none
				}
				g, err := Get().Create(Config{Rank: rank, Size: 2, Name: t.Name(), Timeout: opTimeout, Store: held, Lasting: mem,
					Options: onHosts(hosts)(rank)})
				if rank == 0 {
					ended.Store(true)
					goOn()
				}
				destroyAll([]*Group{g})
				return err
			})
		})
	}
}

// The last rank, whose process serves the id, has a wrong setting. The others begin later, and are told all the same.
func TestAWrongSettingIsToldWhereALaterRankServesTheID(t *testing.T) {
	list := joinsOnHosts(t, "000", nil)
	list[2].Options["tune_file"] = "/nonexistent"
	told := func(j Join) error {
		id, err := bootstrap.ParseID(j.ID)
		if err != nil {
			return err
		}
		store, err := bootstrap.Dial(t.Context(), id, nil, time.Now().Add(opTimeout), nil, inherited)
		if err != nil {
			return err
		}
		_, err = store.Get("sagecomm/1"+secondTry+endedKey+"/2", opTimeout) // the last that rank 2 tells
		store.Close()
		if err != nil {
			return err
		}
		_, err = joinedThrough(t, j, func(s bootstrap.Store) bootstrap.Store { return s })
		return err
	}
	errs := make([]error, 2)
	var all sync.WaitGroup
	for rank := range errs {
		all.Go(func() { errs[rank] = told(list[rank]) })
	}
	const reason = "SAGECOMM_TUNE_FILE: open /nonexistent: no such file or directory"
	require.ErrorContains(t, <-joinAndEnd(list[2]), reason)
	all.Wait()
	for rank, err := range errs {
		var failed *bootstrap.FailedError
		require.ErrorAs(t, err, &failed, rank)
		require.ErrorContains(t, err, "rank 2: sagecomm: "+reason, rank)
	}
}
