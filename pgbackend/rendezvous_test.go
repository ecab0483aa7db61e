package pgbackend

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// A rank that gives up leaves no file and no arena behind, whichever step its peer did not reach.
func TestGivingUpLeavesNoFile(t *testing.T) {
	for _, reached := range []string{"nothing", "memory"} {
		t.Run(reached, func(t *testing.T) {
			dir, store := t.TempDir(), bootstrap.NewMemStore()
			of := func(rank int, s bootstrap.Store) error {
				_, err := Get().Create(Config{Rank: rank, Size: 2, Name: t.Name(), Timeout: 200 * time.Millisecond, Store: s,
					Options: options{"shm_attach": "tmpfs", "shm_dir": dir}})
				return err
			}
			done := make(chan struct{})
			if reached == "memory" {
				go func() {
					defer close(done)
					_ = of(1, lateStore{store}) // fails as well
				}()
			} else {
				close(done)
			}
			var late *bootstrap.TimeoutError
			if err := of(0, store); !errors.As(err, &late) {
				t.Error(err)
			}
			<-done
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// lateStore loses what a rank says after it has mapped the memory of the others.
type lateStore struct{ bootstrap.Store }

func (s lateStore) Set(key string, value []byte) error {
	if strings.Contains(key, "attached") {
		return nil
	}
	return s.Store.Set(key, value)
}

func (s lateStore) Get(key string, timeout time.Duration) ([]byte, error) {
	if strings.Contains(key, "attached") {
		timeout = time.Millisecond
		key = "none"
	}
	return s.Store.Get(key, timeout)
}

// givesUp is how long a rank waits for one that does not come: longer than a busy machine keeps one that does from it.
const givesUp = time.Second

// A rank that has not come in time does not come to the next attempt either: the reason is the first one.
func TestTimeoutIsNoReasonToFallBack(t *testing.T) {
	mem := bootstrap.NewMemStore()
	done := make(chan error, 1)
	create := func(rank int, store bootstrap.Store) error {
		_, err := Get().Create(Config{Rank: rank, Size: 2, Name: t.Name(), Timeout: givesUp, Store: store})
		return err
	}
	go func() { done <- create(1, lateStore{mem}) }()
	err := create(0, mem)
	var late *bootstrap.TimeoutError
	if !errors.As(err, &late) || late.Prefix != "sagecomm/1/first/attached" || late.Waited < givesUp/2 {
		t.Error(err)
	}
	if err := <-done; err == nil {
		t.Error("rank 1 joined")
	}
	if said, err := mem.Get("sagecomm/1/second/0", time.Millisecond); err != nil || said[0] != 'f' {
		t.Errorf("rank 0 tried again: %q, %v", said, err)
	}
}

// heldStore keeps a rank from writing a key until the test lets it.
type heldStore struct {
	bootstrap.Store
	key     string
	release <-chan struct{}
}

func (s heldStore) Set(key string, value []byte) error {
	if strings.HasSuffix(key, s.key) {
		<-s.release
	}
	return s.Store.Set(key, value)
}

// half makes a group that rank 1 has and rank 0 has given up: rank 1 was held up between mapping the memory and saying
// so, for longer than rank 0 waited.
func half(t *testing.T) (joined *Group, gaveUp error) {
	t.Helper()
	mem, released := bootstrap.NewMemStore(), make(chan struct{})
	go func() {
		_, gaveUp = Get().Create(Config{Rank: 0, Size: 2, Name: "half", Timeout: givesUp, Store: mem})
		close(released)
	}()
	joined, err := Get().Create(Config{Rank: 1, Size: 2, Name: "half", Timeout: givesUp,
		Store: heldStore{mem, "attached/1", released}})
	<-released
	if err != nil || gaveUp == nil {
		t.Fatalf("rank 1: %v, rank 0: %v", err, gaveUp)
	}
	return joined, gaveUp
}

// meetingStore is a lateStore in which every rank comes as far as to map the memory of the others, however late.
type meetingStore struct{ lateStore }

func (s meetingStore) Get(key string, timeout time.Duration) ([]byte, error) {
	if strings.Contains(key, firstTry+"/") && !strings.Contains(key, attached) {
		timeout = opTimeout
	}
	return s.lateStore.Get(key, timeout)
}

// Ranks of which each gives up do not hear of each other, and still free what they had, but for a few shared blocks.
func TestAllGiveUp(t *testing.T) {
	dir := t.TempDir()
	attempt := func(o options) {
		store := meetingStore{lateStore{bootstrap.NewMemStore()}}
		ranksOf(t, 2, func(rank int) error {
			if _, err := Get().Create(Config{Rank: rank, Size: 2, Name: t.Name(), Timeout: 10 * time.Millisecond, Store: store, Options: o}); err == nil {
				return errors.New("it joined")
			}
			return nil
		})
	}
	for range 40 { // more than a process can have arenas
		attempt(options{"shm_attach": "tmpfs", "shm_dir": dir, "arena_size": "16M"})
	}
	newWorldWith(t, 2, opTimeout, options{"shm_attach": "tmpfs", "shm_dir": dir, "arena_size": "16M"})
	var each int64 // bytes that a rank has for a group, and may keep for each of so many that it gave up
	for _, r := range newWorld(t, 2).groups[0].memory.ranges {
		each += r.Len + 4096
	}
	before := inUse(t)
	for round := range 40 {
		attempt(nil)
		if now := inUse(t); now > before+tombs*each {
			t.Fatalf("%d bytes in use after %d attempts, %d before, %d of each rank", now, round+1, before, each)
		}
	}
}

// brokenAt fails one read once the test lets it.
type brokenAt struct {
	bootstrap.Store
	key     string
	release <-chan struct{}
}

func (s brokenAt) Get(key string, timeout time.Duration) ([]byte, error) {
	if strings.HasSuffix(key, s.key) {
		<-s.release
		return nil, errors.New("interrupted")
	}
	return s.Store.Get(key, timeout)
}

// A rank gives up after another one has joined and left again: the memory of its shared block is released all the same.
func TestGivingUpAfterAnotherHasLeft(t *testing.T) {
	newWorld(t, 1)
	mem, release, gaveUp := bootstrap.NewMemStore(), make(chan struct{}), make(chan error)
	go func() {
		_, err := Get().Create(Config{Rank: 0, Size: 2, Name: "late", Timeout: opTimeout, Store: brokenAt{mem, "attached/1", release}})
		gaveUp <- err
	}()
	joined, err := Get().Create(Config{Rank: 1, Size: 2, Name: "late", Timeout: opTimeout, Store: mem})
	if err != nil {
		t.Fatal(err)
	}
	if err := joined.Destroy(); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(Get().leaving, joined) {
		t.Error("the shared block of the rank that left has gone before the other one could look at it")
	}
	close(release)
	if err := <-gaveUp; err == nil {
		t.Error("rank 0 joined")
	}
	Get().sweep()
	if slices.Contains(Get().leaving, joined) {
		t.Error("the shared block of the rank that left stays")
	}
}

// A panic when peers may have joined is a reason to give up, like any other.
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

// panickyStore panics when a rank has read what the others say of themselves.
type panickyStore struct{ bootstrap.Store }

func (s panickyStore) Get(key string, timeout time.Duration) ([]byte, error) {
	if strings.HasSuffix(key, "first/0") {
		panic("as the test asked for")
	}
	return s.Store.Get(key, timeout)
}

// Ranks that would not take the same way to the memory say so at once.
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

// A rank that was ended before its turn came, in a run of the job whose other ranks had met already, follows them when all
// begin again; what they wrote then is of processes that have ended.
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

// A rank that gives up after it has said that it is ready cannot know whether others have joined. They learn its reason
// at their first operation that needs it, and what they write does not hit the group that comes next.
func TestHalfMadeGroup(t *testing.T) {
	newWorld(t, 1) // the arena exists
	before := inUse(t)
	joined, gaveUp := half(t)
	var late *bootstrap.TimeoutError
	if !errors.As(gaveUp, &late) {
		t.Error(gaveUp)
	}
	w := newWorld(t, 2)
	began := time.Now()
	if err := expect(sum(joined, 1), coll.PeerFailure, `group "half": rank 0 (host `, "gave up while the group was made", "have not arrived"); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("known after %v", took)
	}
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	if err := joined.Destroy(); err != nil {
		t.Error(err)
	}
	w.destroy()
	Get().sweep()
	// The shared block of the rank that gave up stays, in place of an older one if there are some (tombs).
	if now := inUse(t); now > before+runner.SharedBlockBytes(2)+4096 {
		t.Errorf("%d bytes in use, %d before", now, before)
	}
}

// Two ranks of three, or all, have given up: nobody waits for what will never come.
func TestRanksThatGaveUpAreNamedToWhoJoined(t *testing.T) {
	mem, released := bootstrap.NewMemStore(), make(chan struct{})
	var waiting sync.WaitGroup
	for rank := range 2 {
		waiting.Go(func() {
			if _, err := Get().Create(Config{Rank: rank, Size: 3, Name: "g", Timeout: givesUp, Store: mem}); err == nil {
				t.Errorf("rank %d joined", rank)
			}
		})
	}
	go func() {
		waiting.Wait()
		close(released)
	}()
	g, err := Get().Create(Config{Rank: 2, Size: 3, Name: "g", Timeout: givesUp, Store: heldStore{mem, "attached/2", released}})
	if err != nil {
		t.Fatal(err)
	}
	recv := coll.Op{Kind: coll.Recv, Root: 1, Type: coll.Uint8}
	if _, f := g.Issue(recv, nil, one([]byte{0})); expect(f, coll.PeerFailure, "rank 1 (host ", "gave up while the group was made") != nil {
		t.Error(f)
	}
	if err := g.Destroy(); err != nil {
		t.Error(err)
	}
}

// A rank that finds no room for the group when all are ready already does not leave the others to wait.
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

// editedStore changes what a rank says.
type editedStore struct {
	bootstrap.Store
	from, to string
}

func (s editedStore) Set(key string, value []byte) error {
	return s.Store.Set(key, bytes.Replace(value, []byte(s.from), []byte(s.to), 1))
}

// What a rank says of itself is checked before anything is opened or watched by it.
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

// A rank that comes when another one has given up already hears so at once, and why.
func TestWhoComesTooLateHearsThatOthersGaveUp(t *testing.T) {
	for _, methods := range []string{"proc,scm", "tmpfs", "proc,scm,tmpfs"} {
		mem := bootstrap.NewMemStore()
		create := func(rank int, timeout time.Duration) error {
			_, err := Get().Create(Config{Rank: rank, Size: 2, Name: t.Name(), Timeout: timeout, Store: mem,
				Options: options{"shm_attach": methods, "shm_dir": t.TempDir()}})
			return err
		}
		var late *bootstrap.TimeoutError
		if err := create(0, 100*time.Millisecond); !errors.As(err, &late) {
			t.Fatal(err)
		}
		began := time.Now()
		if err := create(1, opTimeout); err == nil || !strings.Contains(err.Error(), "rank 0: ") || !strings.Contains(err.Error(), "have not arrived") {
			t.Errorf("%s: %v", methods, err)
		}
		if took := time.Since(began); took > opTimeout/4 {
			t.Errorf("%s: it took %v", methods, took)
		}
	}
}
