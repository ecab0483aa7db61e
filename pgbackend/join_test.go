package pgbackend

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sagecomm/algo"
	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/env"
)

// joined makes a group of ranks of this process at an id.
func joined(t *testing.T, size int) []*Group {
	t.Helper()
	id, err := Get().UniqueID()
	require.NoError(t, err)
	groups, err := Get().Join(joins(id, size, opTimeout))
	require.NoError(t, err)
	t.Cleanup(func() { destroyAll(groups) })
	return groups
}

func joins(id [bootstrap.IDBytes]byte, size int, timeout time.Duration) []Join {
	list := make([]Join, size)
	for rank := range list {
		list[rank] = Join{ID: id[:], Rank: rank, Size: size, Name: "joined", Timeout: timeout}
	}
	return list
}

func destroyAll(groups []*Group) {
	for _, g := range groups {
		if g != nil {
			_ = g.Destroy()
		}
	}
}

func children(groups []*Group, of func(rank int) Child) []Child {
	list := make([]Child, len(groups))
	for i, g := range groups {
		list[i] = of(g.Rank())
		list[i].Parent, list[i].Name = g, "child"
	}
	return list
}

func TestSplitOrdersByKeyThenRank(t *testing.T) {
	groups := joined(t, 5)
	keys := []int{7, -1, 7, 0, 3}
	parts, err := Get().Split(children(groups, func(rank int) Child { return Child{Color: min(rank%4, 1) * rank % 3, Key: keys[rank]} }))
	require.NoError(t, err)
	defer destroyAll(parts)
	// Colors are 0, 1, 2, 0, 0.
	for rank, want := range [][]int{{3, 4, 0}, {1}, {2}, {3, 4, 0}, {3, 4, 0}} {
		require.Equal(t, len(want), parts[rank].Size(), rank)
		require.Equal(t, slices.Index(want, rank), parts[rank].Rank(), rank)
		require.Equal(t, want, parts[rank].global)
		require.Equal(t, groups[rank].timeout(), parts[rank].timeout())
	}
	// A child can be split too, and a rank may be in no group.
	again, err := Get().Split(children([]*Group{parts[0], parts[3], parts[4]}, func(rank int) Child { return Child{Color: -rank} }))
	require.NoError(t, err)
	defer destroyAll(again)
	require.Nil(t, again[0]) // its rank is 2
	require.Equal(t, 1, again[1].Size())
	require.Nil(t, again[2])
}

// The parent failed before, and so do not its children.
func TestShrinkOfAFailedGroup(t *testing.T) {
	groups := joined(t, 4)
	groups[2].Abort("for the test")
	stay := []*Group{groups[0], groups[1], groups[3]}
	rest, err := Get().Shrink(children(stay, func(int) Child { return Child{LeftOut: []int{2, 2}} }))
	require.NoError(t, err)
	defer destroyAll(rest)
	for i, want := range []int{0, 1, 3} {
		require.Equal(t, i, rest[i].Rank())
		require.Equal(t, want, rest[i].globalRank(i))
		require.Nil(t, rest[i].Cause())
	}
	again, err := Get().Shrink(children(rest[1:], func(int) Child { return Child{LeftOut: []int{0}} }))
	require.NoError(t, err)
	destroyAll(again)
}

// A group can be shrunk twice with one list, also when one rank's first try ended before another one came.
func TestShrinkTwice(t *testing.T) {
	groups := joined(t, 3)
	list := children(groups[:2], func(int) Child { return Child{LeftOut: []int{2}} })
	alone := list[1]
	alone.Timeout = 50 * time.Millisecond
	_, err := Get().Shrink([]Child{alone})
	require.ErrorContains(t, err, "rank 1 waited ")
	for range 2 {
		rest, err := Get().Shrink(list)
		require.NoError(t, err)
		defer destroyAll(rest)
		require.Equal(t, 2, rest[1].Size())
	}
}

// Ranks are given in the order of the new group. A label tells groups of the same ranks apart, in whatever order they
// are made, and the same label can be used again.
func TestShrinkToMembers(t *testing.T) {
	groups := joined(t, 4)
	groups[2].Abort("for the test")
	of := func(label uint64) func(int) Child {
		return func(int) Child { return Child{Members: []int{3, 0, 1}, Label: label} }
	}
	a, b := children([]*Group{groups[0], groups[1], groups[3]}, of(1)), children([]*Group{groups[0], groups[1], groups[3]}, of(2))
	made, second, errs := make([][]*Group, 3), make([][]*Group, 3), make([]error, 6)
	var all sync.WaitGroup
	for i := range 3 {
		first, then := a[i:i+1], b[i:i+1]
		if i == 1 {
			first, then = then, first
		}
		for k, list := range [][]Child{first, then} { // both are under way at once, and rank 1 has begun with the other one
			all.Go(func() {
				g, err := Get().Shrink(list)
				errs[2*i+k] = err
				if k == 0 {
					made[i] = g
				} else {
					second[i] = g
				}
			})
		}
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	for i, want := range []int{1, 2, 0} {
		defer destroyAll(made[i])
		defer destroyAll(second[i])
		require.Equal(t, want, made[i][0].Rank())
		require.Equal(t, []int{3, 0, 1}, made[i][0].global)
	}
	again, err := Get().Shrink(a)
	require.NoError(t, err)
	destroyAll(again)
	for want, members := range map[string][]int{"no rank stays": {}, "ranks [0 4] are to stay": {0, 4}, "one of them is named twice": {0, 0}, "only they may call it": {1, 3}} {
		_, err := Get().Shrink([]Child{{Parent: groups[0], Members: members}})
		require.ErrorContains(t, err, want)
	}
}

// The end of a context ends a join and a shrink whose other ranks do not come: at the server of the id, and where there
// is none yet.
func TestCancelledJoins(t *testing.T) {
	id, err := Get().UniqueID()
	require.NoError(t, err)
	groups := joined(t, 3)
	cancelled := func(name string, join func(context.Context) error) {
		ctx, cancel := context.WithCancel(t.Context())
		end := make(chan error, 1)
		go func() { end <- join(ctx) }()
		select {
		case err := <-end:
			t.Fatalf("%s ended by itself: %v", name, err)
		case <-time.After(50 * time.Millisecond): // it would end in an hour
		}
		cancel()
		err := <-end
		var f *coll.Failure
		require.ErrorAs(t, err, &f, name)
		require.Equal(t, coll.Aborted, f.Status, name)
		require.Contains(t, f.Message, "was aborted while its ranks met", name)
	}
	cancelled("join", func(ctx context.Context) error {
		list := joins(id, 2, time.Hour)[:1]
		list[0].Context = ctx
		_, err := Get().Join(list)
		return err
	})
	cancelled("shrink at a server", func(ctx context.Context) error {
		_, err := Get().Shrink([]Child{{Parent: groups[0], LeftOut: []int{2}, Timeout: time.Hour, Context: ctx}})
		return err
	})
	cancelled("shrink before there is a server", func(ctx context.Context) error {
		_, err := Get().Shrink([]Child{{Parent: groups[1], LeftOut: []int{2}, Label: 1, Timeout: time.Hour, Context: ctx, Members: []int{0, 1}}})
		return err
	})
}

// The end of a split while the colors of other ranks are not known aborts the parent, on a rank with no color as well.
func TestCancelledColors(t *testing.T) {
	for _, color := range []int{0, -1} {
		groups := joined(t, 2)
		ctx, cancel := context.WithCancel(t.Context())
		end := make(chan error, 1)
		go func() {
			_, err := Get().Split([]Child{{Parent: groups[0], Color: color, Timeout: time.Hour, Colors: ctx}})
			end <- err
		}()
		for groups[0].exchanges.Load() == 0 {
			runtime.Gosched()
		}
		cancel()
		err := <-end
		var f *coll.Failure
		require.ErrorAs(t, err, &f)
		require.Equal(t, coll.Aborted, f.Status)
		require.Contains(t, f.Message, "another group of the same call could not be made")
		require.Equal(t, coll.Aborted, sum(groups[1], 1).Status)
	}
}

// Finish tells how the operations have ended, which Destroy does not.
func TestFinish(t *testing.T) {
	groups := joined(t, 2)
	require.Nil(t, groups[0].Finish())
	require.NoError(t, groups[0].SetTimeout(100*time.Millisecond))
	impatient(t, time.Nanosecond)
	work, f := sumAsync(groups[0], 10)
	require.Nil(t, f)
	defer work.Release()
	f = groups[0].Finish()
	require.NotNil(t, f)
	require.Equal(t, coll.Timeout, f.Status)
	require.NoError(t, groups[0].Destroy())
	require.Equal(t, coll.Invalid, groups[0].Finish().Status)
}

// The failure of a group concerns a rank that needed something of it: an operation, or a control exchange.
func TestFinishOfARankThatNeededNothing(t *testing.T) {
	groups := joined(t, 4)
	require.Nil(t, groups[3].Finish())
	work, f := sumAsync(groups[0], 10)
	require.Nil(t, f)
	defer work.Release()
	split := make(chan error, 1)
	go func() {
		_, err := Get().Split([]Child{{Parent: groups[1], Timeout: time.Hour}})
		split <- err
	}()
	for groups[1].exchanges.Load() == 0 {
		runtime.Gosched()
	}
	groups[0].Leave("a test")
	require.Error(t, <-split)
	for rank := range 2 {
		f := groups[rank].Finish()
		require.NotNil(t, f, rank)
		require.Equal(t, coll.Aborted, f.Status)
	}
	for rank := 2; rank < 4; rank++ {
		require.Nil(t, groups[rank].Finish(), rank)
		require.Equal(t, coll.Aborted, sum(groups[rank], 1).Status, "a later call hears of it")
		require.Nil(t, groups[rank].Finish(), "and was no operation")
		_, err := Get().Split([]Child{{Parent: groups[rank], Timeout: time.Hour}})
		require.Error(t, err)
		require.Nil(t, groups[rank].Finish())
	}
}

// A thread that asks a group for its failure is inside the group, and no operation. So it is in a group that has
// failed.
func TestFinishBesideQuestions(t *testing.T) {
	for name, fails := range map[string]bool{"healthy": false, "failed": true} {
		t.Run(name, func(t *testing.T) {
			groups := joined(t, 2)
			if fails {
				groups[1].Abort("a test")
			}
			var asking sync.WaitGroup
			defer asking.Wait()
			end := make(chan struct{})
			defer close(end)
			for range 2 {
				asking.Go(func() {
					for {
						select {
						case <-end:
							return
						default:
						}
						if f := groups[0].run.Error(); (f != nil) != fails {
							t.Errorf("the failure is %v, expected one: %t", f, fails)
							return
						}
					}
				})
			}
			for range 3000 {
				require.Nil(t, groups[0].Finish())
			}
		})
	}
}

// lostBefore splits groups. The rank lost does what a process does that ends when all know where they meet. The others hear of
// that from the parent.
func lostBefore(t *testing.T, groups []*Group, lost int, end func(), how string) {
	t.Helper()
	errs := make([]error, len(groups))
	var all sync.WaitGroup
	told := make(chan struct{})
	for rank, g := range groups {
		all.Go(func() {
			if rank != lost {
				_, errs[rank] = Get().Split(children([]*Group{g}, func(int) Child { return Child{} }))
				return
			}
			defer close(told)
			for _, purpose := range []string{"split", "ids of the groups of a split"} {
				if _, f := g.exchange(topicMembers, purpose, []byte("{}"), opTimeout); f != nil {
					errs[rank] = f
					return
				}
			}
		})
	}
	<-told
	taken := func(g *Group) uint64 { return g.control[topicMembers].taken.Load() }
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(groups, func(g *Group) bool { return taken(g) < taken(groups[lost]) })
	}, opTimeout, time.Millisecond) // a rank that has taken the last round does not look whether the group has ended
	end()
	all.Wait()
	for rank, err := range errs {
		if rank == lost {
			require.NoError(t, err)
			continue
		}
		var f *coll.Failure
		require.ErrorAs(t, err, &f)
		require.Equal(t, coll.PeerFailure, f.Status)
		require.Equal(t, lost, f.Rank)
		require.ErrorContains(t, err, fmt.Sprintf(`group "child": Connection closed by peer: rank %d, which is rank %d (host `, lost, lost))
		require.ErrorContains(t, err, `in group "joined", `+how)
	}
}

// A parent knows of a death before the ranks of its child have met.
func TestDeathBeforeAChildHasMet(t *testing.T) {
	groups := joined(t, 3)
	lostBefore(t, groups, 1, func() {
		groups[0].peerDied(1)
		groups[2].peerDied(1)
	}, "died while the group was made")
	for first, list := range map[int][]int{0: {0, 1}, 1: {1, 0}} { // the rank that has died serves the id, or does not
		groups = joined(t, 3)
		groups[0].peerDied(1)
		_, err := Get().Shrink([]Child{{Parent: groups[0], Members: list, Name: "child"}})
		require.ErrorContains(t, err, fmt.Sprintf(`group "child": Connection closed by peer: rank %d, which is rank 1 (host `, 1-first))
		require.ErrorContains(t, err, "died while the group was made")
	}
}

// A shrink is not inside its parent while it waits for other ranks, so the parent can be destroyed meanwhile.
func TestParentIsDestroyedDuringShrink(t *testing.T) {
	groups := joined(t, 2)
	_, err := Get().planShrink(Child{Parent: groups[1], LeftOut: []int{1}})
	require.ErrorContains(t, err, "is to be left out")
	c := Child{Parent: groups[1], Timeout: 50 * time.Millisecond}
	at, err := Get().planShrink(c)
	require.NoError(t, err)
	require.NoError(t, groups[1].Destroy()) // would wait for a call inside
	_, err = Get().joinAt(t.Context(), at.id, at.job, rankOf{groups[1], 0}, c.config(at.members, c.timeout(), nil))
	require.ErrorContains(t, err, "rank 1 waited ")
}

// Destroy of a joined group waits for peers as long as operations may take.
func TestDestroyOfAJoinedGroupWaitsForPeers(t *testing.T) {
	groups := joined(t, 2)
	impatient(t, time.Nanosecond)
	work, f := sumAsync(groups[0], 10)
	require.Nil(t, f)
	defer work.Release()
	end := make(chan error)
	go func() { end <- groups[0].Destroy() }()
	require.Eventually(t, func() bool { return groups[0].life.now() == destroying }, opTimeout, time.Microsecond)
	require.Nil(t, sum(groups[1], 10))
	require.NoError(t, <-end)
	done, f := work.Wait(0)
	require.True(t, done)
	require.Nil(t, f)
}

func TestRefusedChildren(t *testing.T) {
	groups := joined(t, 2)
	for want, out := range map[string][]int{"rank 0 calls it, and is to be left out": {0}, "ranks [-1] are to be left out": {-1}, "ranks [2] are": {2}} {
		_, err := Get().Shrink([]Child{{Parent: groups[0], LeftOut: out}})
		require.ErrorContains(t, err, want)
	}
	_, err := Get().Shrink([]Child{{Parent: groups[1], LeftOut: []int{}, Timeout: 50 * time.Millisecond}}) // rank 0 does not call it
	var f *coll.Failure
	require.ErrorAs(t, err, &f)
	require.Equal(t, coll.Timeout, f.Status)
	require.Contains(t, f.Message, "rank 1 waited ")
	require.Contains(t, f.Message, "for rank 0 (host ")
	twice := []Child{{Parent: groups[0]}, {Parent: groups[0]}}
	_, err = Get().Split(twice)
	require.ErrorContains(t, err, "split: the group is named twice in one call")
	_, err = Get().Shrink(twice)
	require.ErrorContains(t, err, "shrink: the group is named twice in one call")
	w := newWorld(t, 1)
	defer w.destroy()
	_, err = Get().Shrink([]Child{{Parent: w.groups[0]}})
	require.ErrorContains(t, err, "was made over a store of its caller")
}

// SAGECOMM_TIMEOUT takes the place of both timeouts; without it, operations have their own.
func TestTimeoutsOfJoinedGroups(t *testing.T) {
	for _, c := range []struct {
		options map[string]string
		want    time.Duration
	}{{nil, time.Hour}, {map[string]string{"timeout": "7"}, 7 * time.Second}} {
		id, err := Get().UniqueID()
		require.NoError(t, err)
		list := joins(id, 2, opTimeout)
		for i := range list {
			list[i].Operations, list[i].Options = time.Hour, c.options
		}
		groups, err := Get().Join(list)
		require.NoError(t, err)
		defer destroyAll(groups)
		parts, err := Get().Split(children(groups, func(int) Child { return Child{Timeout: opTimeout, Operations: time.Hour} }))
		require.NoError(t, err)
		defer destroyAll(parts)
		for _, g := range slices.Concat(groups, parts) {
			require.Equal(t, c.want, g.timeout())
		}
		require.NoError(t, groups[0].SetTimeout(time.Minute))
		require.Equal(t, time.Minute, groups[0].timeout())
	}
}

func TestJoinNamesRanksThatDoNotCome(t *testing.T) {
	id, err := Get().UniqueID()
	require.NoError(t, err)
	_, err = Get().Join(joins(id, 4, 300*time.Millisecond)[1:3])
	require.ErrorContains(t, err, "2 of 4 ranks have not arrived: ranks 0, 3;")
	require.Equal(t, coll.Timeout, CreateFailure("g", err).Status)
}

// Two threads of a process join as one rank: both learn of it at once, and so does the rank that comes to meet them.
func TestJoinOfARankTwice(t *testing.T) {
	id, err := Get().UniqueID()
	require.NoError(t, err)
	list := joins(id, 2, opTimeout)
	began, first := time.Now(), make(chan error)
	join := func(j Join) error {
		groups, err := Get().Join([]Join{j})
		destroyAll(groups)
		return err
	}
	go func() { first <- join(list[0]) }()
	require.Eventually(t, func() bool { return sits(id, 0) }, opTimeout, time.Millisecond)
	want := "rank 0 was started twice in one process: host "
	require.ErrorContains(t, join(list[0]), want)
	require.ErrorContains(t, <-first, want)
	require.ErrorContains(t, join(list[1]), want)
	require.False(t, sits(id, 0))
	measure(t, "the refusals", time.Since(began), opTimeout/10)
}

// An id is for one group, as long as that exists.
func TestJoinOfARankThatHasJoined(t *testing.T) {
	id, err := Get().UniqueID()
	require.NoError(t, err)
	groups, err := Get().Join(joins(id, 2, opTimeout))
	require.NoError(t, err)
	for rank := range 2 {
		_, err = Get().Join(joins(id, 2, opTimeout)[rank : rank+1])
		require.ErrorContains(t, err, fmt.Sprintf("rank %d was started twice in one process: host ", rank))
		require.NoError(t, groups[rank].Destroy())
		require.False(t, sits(id, rank))
	}
}

// What no group can have is refused before the store is asked: its process has ended here.
func TestJoinOfTooManyRanks(t *testing.T) {
	id := bootstrap.ID{Addresses: bootstrap.Loopback, Port: 1}.Encode()
	for _, size := range []int{0, algo.MaxSize + 1} {
		_, err := Get().Join([]Join{{ID: id[:], Size: size, Timeout: opTimeout}})
		require.ErrorContains(t, err, fmt.Sprintf("rank 0 of %d: a group has 1 to %d ranks", size, algo.MaxSize))
	}
}

func sits(id [bootstrap.IDBytes]byte, rank int) bool {
	parsed, err := bootstrap.ParseID(id[:])
	if err != nil {
		return false
	}
	p := Get()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seats[seat{parsed.Space, rank}] != nil
}

// With the id alone nobody joins where the job has a secret.
func TestSecretOfTheJob(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("0123456789abcdef\n"), 0o600))
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, []byte("0123456789abcdeg\n"), 0o600))
	short := filepath.Join(t.TempDir(), "short")
	require.NoError(t, os.WriteFile(short, []byte("0123\n"), 0o600))
	options := func(path string) map[string]string { return map[string]string{"secret_file": path} }
	id, err := Get().newID(options(secret), nil)
	require.NoError(t, err)
	text := id.Encode()
	for path, want := range map[string]string{"": "does not accept the secret", other: "does not accept the secret", short: "expected 16 to 4096", secret + "x": "no such file"} {
		_, err := Get().Join([]Join{{ID: text[:], Size: 1, Timeout: opTimeout, Options: options(path)}})
		require.ErrorContains(t, err, want, path)
	}
	groups, err := Get().Join([]Join{{ID: text[:], Size: 1, Timeout: opTimeout, Options: options(secret)}})
	require.NoError(t, err)
	defer destroyAll(groups)
	_, err = Get().Join([]Join{{ID: text[:], Rank: 1, Size: 2, Timeout: opTimeout, Options: map[string]string{"secret": "0123456789abcdeg"}}})
	require.ErrorContains(t, err, "does not accept the secret")
	_, err = Get().newID(map[string]string{"secret": "0123"}, nil)
	require.ErrorContains(t, err, "SAGECOMM_SECRET: holds a secret of 4 bytes: expected 16 to 4096")
	_, err = Get().newID(map[string]string{"secret": "0123456789abcdef", "secret_file": secret}, nil)
	require.ErrorContains(t, err, "SAGECOMM_SECRET_FILE and SAGECOMM_SECRET are both set: set one of them")
	require.NoError(t, os.Remove(secret)) // a shrink uses the parent's
	rest, err := Get().Shrink([]Child{{Parent: groups[0], Name: "rest"}})
	require.NoError(t, err)
	destroyAll(rest)
}

// A file with a secret that every user of the host may open is worth a warning.
func TestFilesThatAreOpenToOthers(t *testing.T) {
	var warned []string
	real := warnOfFile
	warnOfFile = func(text string) { warned = append(warned, text) }
	t.Cleanup(func() { warnOfFile = real })
	secret := writeSecret(t, "0123456789abcdef")
	tls := newCertificates(t).options(t, time.Now().Add(time.Hour))
	settings, err := env.Resolve(nil, map[string]string{"secret_file": secret, "tls_key": tls["tls_key"], "tls_certificate": tls["tls_certificate"], "tls_authorities": tls["tls_authorities"]})
	require.NoError(t, err)
	read := func() []string {
		warned = nil
		_, err := jobSecret(settings)
		require.NoError(t, err)
		_, err = openEncryption(settings)
		require.NoError(t, err)
		return warned
	}
	for _, path := range []string{tls["tls_certificate"], tls["tls_authorities"]} {
		require.NoError(t, os.Chmod(path, 0o644)) // they are no secrets
	}
	for _, path := range []string{secret, tls["tls_key"]} {
		require.NoError(t, os.Chmod(path, 0o640))
	}
	require.Empty(t, read())
	require.NoError(t, os.Chmod(secret, 0o644))
	require.Equal(t, []string{"SAGECOMM_SECRET_FILE: every user of this host may open " + secret + " (mode 0644): chmod o= takes that away"}, read())
	require.NoError(t, os.Chmod(secret, 0o600))
	require.NoError(t, os.Chmod(tls["tls_key"], 0o604))
	require.Equal(t, []string{"SAGECOMM_TLS_KEY: every user of this host may open " + tls["tls_key"] + " (mode 0604): chmod o= takes that away"}, read())
}

func TestFactors(t *testing.T) {
	f32, f64, half, bf16, i8, u64 := float32(-0.75), math.Pi, uint16(0x3555), uint16(0xbf80), int8(-3), uint64(1)<<53
	for _, c := range []struct {
		at   unsafe.Pointer
		t    coll.DataType
		want float64
	}{
		{unsafe.Pointer(&f32), coll.Float32, -0.75}, {unsafe.Pointer(&f64), coll.Float64, math.Pi}, {unsafe.Pointer(&half), coll.Float16, 0.333251953125},
		{unsafe.Pointer(&bf16), coll.BFloat16, -1}, {unsafe.Pointer(&i8), coll.Int8, -3}, {unsafe.Pointer(&u64), coll.Uint64, 1 << 53},
	} {
		got, err := Get().ReadFactor(c.at, c.t, 0)
		require.NoError(t, err)
		require.Equal(t, c.want, got, c.t)
	}
	for bits, want := range map[uint16]float64{0: 0, 1: math.Ldexp(1, -24), 0x0400: math.Ldexp(1, -14), 0x7bff: 65504, 0x7c00: math.Inf(1), 0xfc00: math.Inf(-1)} {
		require.Equal(t, want, float64(halfToFloat(bits)))
	}
	require.True(t, math.IsNaN(float64(halfToFloat(0x7e00))))
	for _, no := range []coll.DataType{coll.Bool, coll.Complex64, coll.Float8E5M2} {
		_, err := Get().ReadFactor(unsafe.Pointer(&f64), no, 0)
		require.ErrorContains(t, err, "cannot be a factor")
	}
	_, err := Get().ReadFactor(nil, coll.Float32, 0)
	require.ErrorContains(t, err, "no address")
}
