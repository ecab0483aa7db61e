package pgbackend

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/tests/quick"
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

// lateStore drops what a rank writes after it has mapped the memory of the others.
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

// givesUp is the timeout of a rank whose peer does not come. It is longer than a busy machine delays a peer that comes.
const givesUp = time.Second

// A rank that is late does not come to the second attempt either, so the error has the reason of the first one.
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

// half makes a group that rank 1 has joined and rank 0 has given up: between mapping the memory and saying so, rank 1
// was held up for longer than rank 0 waited.
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

// meetingStore is a lateStore in which every rank gets as far as mapping the memory of the others, however late.
type meetingStore struct{ lateStore }

func (s meetingStore) Get(key string, timeout time.Duration) ([]byte, error) {
	if strings.Contains(key, firstTry+"/") && !strings.Contains(key, attachedRound) {
		timeout = opTimeout
	}
	return s.lateStore.Get(key, timeout)
}

// keptOf returns how many bytes a rank may keep of such a group, which has no large slots yet, for each of the last
// ones that it gave up.
func keptOf(g *Group) (bytes int64) {
	m := g.memory
	for _, r := range append(m.ranges[:len(m.ranges):len(m.ranges)], m.control) {
		bytes += r.Len + 4096
	}
	return bytes
}

// Ranks that all give up do not learn of each other. They still free their memory, except for a few shared blocks.
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
	attempts := 40 // more than a process can have arenas
	if quick.Only() {
		attempts = 10
	}
	for range attempts {
		attempt(options{"shm_attach": "tmpfs", "shm_dir": dir, "arena_size": "16M"})
	}
	newWorldWith(t, 2, opTimeout, options{"shm_attach": "tmpfs", "shm_dir": dir, "arena_size": "16M"})
	each := keptOf(newWorld(t, 2).groups[0])
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

// A rank that gives up after another one has joined and left again still frees its shared block.
func TestGivingUpAfterAnotherHasLeft(t *testing.T) {
	newWorld(t, 1)
	mem, release, gaveUp := bootstrap.NewMemStore(), make(chan struct{}), make(chan error)
	go func() {
		_, err := Get().Create(Config{Rank: 0, Size: 2, Name: "late", Timeout: opTimeout, Store: brokenAt{mem, "attached/1", release}})
		gaveUp <- err
	}()
	joined, err := Get().Create(Config{Rank: 1, Size: 2, Name: "late", Timeout: opTimeout, Store: mem})
	require.NoError(t, err)
	require.NoError(t, joined.Destroy())
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
	each := keptOf(w.groups[0])
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
	if now := inUse(t); now > before+each {
		t.Errorf("%d bytes in use, %d before", now, before)
	}
}

// Two ranks of three, or all, have given up: no rank waits for them.
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
	require.NoError(t, err)
	recv := coll.Op{Kind: coll.Recv, Root: 1, Type: coll.Uint8}
	if _, f := g.Issue(recv, nil, one([]byte{0})); expect(f, coll.PeerFailure, "rank 1 (host ", "gave up while the group was made") != nil {
		t.Error(f)
	}
	if err := g.Destroy(); err != nil {
		t.Error(err)
	}
}

// A rank that comes after another one has given up learns that at once, with the reason.
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
