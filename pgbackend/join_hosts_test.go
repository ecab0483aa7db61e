package pgbackend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/env"
)

// In these tests ranks on several hosts meet at a unique id (hosts_test.go says how ranks get hosts of their own).

// joinsOnHosts are ranks that join at an id, which is made with the same options, such as the secret of the job.
func joinsOnHosts(t *testing.T, hosts string, more options) []Join {
	t.Helper()
	eachAProcess(t)
	id, err := Get().newID(more, nil)
	require.NoError(t, err)
	list := joins(id.Encode(), len(hosts), opTimeout)
	for rank := range list {
		list[rank].Options = onHosts(hosts)(rank)
		maps.Copy(list[rank].Options, more)
	}
	return list
}

// joinedOnHosts makes a group of ranks on hosts that meet at an id.
func joinedOnHosts(t *testing.T, hosts string, more options) *world {
	t.Helper()
	groups, err := Get().Join(joinsOnHosts(t, hosts, more))
	require.NoError(t, err)
	w := &world{t, groups}
	t.Cleanup(w.destroy)
	require.True(t, groups[0].shape().Apart)
	return w
}

func TestGroupsAtAnIDOverHosts(t *testing.T) {
	for _, hosts := range []string{"01", "0011", "0101"} {
		t.Run(hosts, func(t *testing.T) {
			w := joinedOnHosts(t, hosts, nil)
			for kind := range coll.KindCount {
				if kind.Collective() {
					w.each(func(g *Group) error { return g.try(transfer{kind, 0, 1, equalLength(1000)}, coll.Op{}) })
				}
			}
			w.destroy()
			requireNoNetworks(t)
		})
	}
}

// Groups that are split off, and groups of the ranks that stay, are over hosts as well, also where their first rank,
// at whose process they meet, is on another host than that of the parent.
func TestChildrenOverHosts(t *testing.T) {
	w := joinedOnHosts(t, "0012", nil)
	parts, err := Get().Split(children(w.groups, func(rank int) Child { return Child{Color: min(rank, 1), Key: -rank} }))
	require.NoError(t, err)
	defer destroyAll(parts)
	for rank, want := range [][]int{{0}, {3, 2, 1}, {3, 2, 1}, {3, 2, 1}} {
		require.Equal(t, want, parts[rank].global)
		require.Equal(t, rank > 0, parts[rank].apart())
	}
	large := &world{t, parts[1:]}
	large.each(func(g *Group) error { return asError(sum(g, 1000)) })
	cutOff(w, 0)
	rest, err := Get().Shrink(children(w.groups[1:], func(int) Child { return Child{LeftOut: []int{0}} }))
	require.NoError(t, err)
	defer destroyAll(rest)
	stay := &world{t, rest}
	stay.each(func(g *Group) error { return asError(sum(g, 1000)) })
}

// Between hosts the secret of links crosses no network, nor does that of a group which is split off.
func TestSecretsOfGroupsAtAnID(t *testing.T) {
	w := joinedOnHosts(t, "01", nil)
	first := w.groups[0]
	var m member
	m.draw(&Group{birth: first.birth, settings: first.settings, size: 2})
	require.NotZero(t, m.Number)
	require.Empty(t, m.Secret)
	m.draw(&Group{settings: first.settings, size: 2})
	require.NotEmpty(t, m.Secret)
	id := first.birth.id
	require.NotEqual(t, id.LinkSecret(1), id.LinkSecret(2))
	told := Get().invite(Child{Parent: first}, []int{0})
	text, err := json.Marshal(told)
	require.NoError(t, err)
	new, err := first.invited([]int{0}, text)
	require.NoError(t, err)
	require.Empty(t, told.ID)
	require.False(t, bytes.Contains(text, new.Secret[:]))
	require.NotEqual(t, id.Secret, new.Secret)
	store, err := bootstrap.Dial(t.Context(), new, nil, time.Now().Add(opTimeout), nil, inherited)
	require.NoError(t, err)
	defer store.Close()
	require.NoError(t, store.Leave(1)) // later tests find no key space of this one
}

// Where links are lost, the store of the id decides the first cause: two processes that have lost each other have one.
func TestOneCauseAtAnID(t *testing.T) {
	w := joinedOnHosts(t, "01", nil)
	w.groups[0].links.pairs[1].Link.Break(errors.New("cut for the test"))
	require.Eventually(t, func() bool { return w.groups[0].Cause() != nil && w.groups[1].Cause() != nil }, opTimeout, time.Millisecond)
	require.Eventually(t, func() bool { return w.groups[0].Cause().Message == w.groups[1].Cause().Message }, opTimeout, time.Millisecond)
}

// The server of the id may have ended, and with it the store.
func TestLostRankBehindTheEndOfTheServer(t *testing.T) {
	w := joinedOnHosts(t, "0012", nil)
	Get().server.Close()
	cutLast(t, w, 1000)
}

// The death of the process at which ranks meet, a wrong number of ranks and a rank that is there twice are errors on all
// hosts.
func TestRefusedJoinsOverHosts(t *testing.T) {
	attempt := func(list []Join) []error {
		errs := make([]error, len(list))
		var all sync.WaitGroup
		for i := range list {
			all.Go(func() {
				groups, err := Get().Join(list[i : i+1])
				destroyAll(groups)
				errs[i] = err
			})
		}
		all.Wait()
		return errs
	}
	list := joinsOnHosts(t, "01", nil)
	list[1].Size = 3
	for _, err := range attempt(list) {
		require.ErrorContains(t, err, "the number of ranks is 2 on rank 0 and 3 on rank 1")
	}
	list = joinsOnHosts(t, "01", nil)
	list[1].Rank = 0
	for _, err := range attempt(list) {
		require.ErrorContains(t, err, "rank 0 was started twice")
	}
	list = joinsOnHosts(t, "01", nil)
	list[1].Options["secret"] = "0123456789abcdef"
	list[0].Timeout = 100 * time.Millisecond
	errs := attempt(list)
	require.ErrorContains(t, errs[0], "1 of 2 ranks have not arrived")
	require.ErrorContains(t, errs[1], "does not accept the secret")
}

// An id that was made on another machine by a process which listens on loopback is refused before anything is dialed:
// another process may listen there.
func TestIDsOfOtherMachines(t *testing.T) {
	here, err := Get().newID(options{"socket_ifname": "lo"}, nil)
	require.NoError(t, err)
	require.Equal(t, homeOf(), here.Home)
	elsewhere := here
	elsewhere.Home[0] ^= 1
	text := elsewhere.Encode()
	_, err = Get().Join([]Join{{ID: text[:], Size: 1, Timeout: opTimeout}})
	require.ErrorContains(t, err, "the unique id was made on another machine, or in another network namespace, by a process that listens on loopback only: set SAGECOMM_SOCKET_IFNAME or MASTER_ADDR")
	unknown := elsewhere
	unknown.Home = [len(unknown.Home)]byte{}
	reached := elsewhere
	reached.Addresses = []netip.Addr{netip.MustParseAddr("10.1.2.3")}
	for _, id := range []bootstrap.ID{here, unknown, reached} {
		require.NoError(t, checkReach(id))
	}
	real := homeOf
	homeOf = func() [len(here.Home)]byte { return [len(here.Home)]byte{} }
	defer func() { homeOf = real }()
	require.NoError(t, checkReach(elsewhere))
}

// A process at which ranks of other machines cannot meet serves no group of theirs.
func TestServersOnLoopbackOfOtherMachines(t *testing.T) {
	groups := joined(t, 3)
	for _, g := range groups {
		g.members[2].Network++
	}
	_, err := Get().Shrink([]Child{{Parent: groups[0], LeftOut: []int{1}}})
	require.ErrorContains(t, err, "the new group meets at rank 0 (host ")
	require.ErrorContains(t, err, "and rank 2 (host ")
	rest, err := Get().Shrink(children(groups[:2], func(int) Child { return Child{LeftOut: []int{2}} }))
	require.NoError(t, err)
	destroyAll(rest)
	_, err = Get().Split(children(groups, func(int) Child { return Child{} }))
	require.ErrorContains(t, err, "split: rank 0 (host ")
	require.ErrorContains(t, err, "its process listens for unique ids on loopback only, and rank 2 (host ")
	told := Get().invite(Child{Parent: groups[0]}, []int{0, 1, 2})
	require.Contains(t, told.Why, "its process listens for unique ids on loopback only")
	require.Empty(t, told.Nonce, "nothing is served")
	for _, g := range groups {
		g.members[0].Listener.Addresses = []netip.Addr{netip.MustParseAddr("10.1.2.3")}
		require.NoError(t, g.checkServer([]int{0, 1, 2}))
	}
}

// Who joins listens where a network leads to the process that made the id, unless MASTER_ADDR says where, and who makes
// an id with nothing set on loopback.
func TestWhereRanksOfAnIDListen(t *testing.T) {
	real := towards
	defer func() { towards = real }()
	own := netip.MustParseAddr("10.1.2.3")
	towards = func(host string) (netip.Addr, error) {
		switch host {
		case "10.1.2.9":
			return own, nil
		case "node7":
			return netip.MustParseAddr("10.9.9.9"), nil
		default:
			return netip.Addr{}, errors.New("no route")
		}
	}
	settings, err := env.Resolve(nil, nil)
	require.NoError(t, err)
	find := func(elsewhere ...string) []netip.Addr {
		var list []netip.Addr
		for _, a := range elsewhere {
			list = append(list, netip.MustParseAddr(a))
		}
		e, err := Get().endpoint(settings, list)
		require.NoError(t, err)
		require.Equal(t, len(list) == 0 || !list[0].IsLoopback(), e.Beyond)
		return e.Find()
	}
	t.Setenv("MASTER_ADDR", "")
	require.Equal(t, bootstrap.Loopback, find())
	require.Equal(t, bootstrap.Loopback, find("127.0.0.1"))
	require.Equal(t, bootstrap.Loopback, find("10.7.7.7"))
	require.Equal(t, []netip.Addr{own}, find("10.7.7.7", "10.1.2.9"))
	e, err := Get().linkEndpoint(settings, true, []netip.Addr{netip.MustParseAddr("10.1.2.9")})
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{own}, e.Find())
	t.Setenv("MASTER_ADDR", "node7")
	require.Equal(t, "10.9.9.9", find("10.1.2.9")[0].String())
}

// What a rank tells of its server is checked before anything is dialed there.
func TestInvalidServersOfRanks(t *testing.T) {
	groups := joined(t, 2)
	for _, spoil := range []func(m *member){
		func(m *member) { m.Listener = nil },
		func(m *member) { m.Listener = &listener{Port: 1} },
		func(m *member) { m.Listener = &listener{Addresses: []netip.Addr{{}}, Port: 1} },
		func(m *member) { m.Listener = &listener{Addresses: bootstrap.Loopback[:1]} },
		func(m *member) { m.Listener = &listener{Addresses: make([]netip.Addr, 4), Port: 1} },
	} {
		all := make([][]byte, 2)
		for rank, m := range groups[0].members {
			if rank == 1 {
				spoil(&m)
			}
			var err error
			all[rank], err = json.Marshal(m)
			require.NoError(t, err)
		}
		err := (&Group{size: 2, birth: groups[0].birth}).introduce(all)
		require.ErrorContains(t, err, "rank 1 (pid ")
		require.ErrorContains(t, err, "no server can be where it says")
	}
}

// Settings count for an id that is made where the server listens on loopback already: an error says to set them, and the
// process may try again.
func TestIDsBehindOneOnLoopback(t *testing.T) {
	all, err := bootstrap.InterfacesOf(env.Interfaces{Not: true})
	require.NoError(t, err)
	if len(all) == 0 {
		t.Skip("this machine has no interface but loopback")
	}
	real := towards
	defer func() { towards = real }()
	towards = func(host string) (netip.Addr, error) {
		if host != "node7" {
			return netip.Addr{}, errors.New("no route")
		}
		return all[0].Addresses[0], nil
	}
	at := func(p *Process) []netip.Addr {
		text, err := p.UniqueID()
		require.NoError(t, err)
		id, err := bootstrap.ParseID(text[:])
		require.NoError(t, err)
		return id.Addresses
	}
	for name, value := range map[string]string{"SAGECOMM_SOCKET_IFNAME": "=" + all[0].Name, "MASTER_ADDR": "node7"} {
		t.Run(name, func(t *testing.T) {
			p := &Process{server: bootstrap.NewServer(bootstrap.Descriptors{})}
			defer p.server.Close()
			t.Setenv("SAGECOMM_SOCKET_IFNAME", "")
			for _, master := range []string{"", "node6"} {
				t.Setenv("MASTER_ADDR", master)
				require.True(t, bootstrap.AllLoopback(at(p)))
			}
			t.Setenv(name, value)
			require.Equal(t, all[0].Addresses[0], at(p)[0])
		})
	}
}

// A parent knows of a rank on another host that is lost before the ranks of its child have met. A shrink may make links
// anew to ranks that were lost before.
func TestLossBeforeAChildHasMet(t *testing.T) {
	w := joinedOnHosts(t, "012", nil)
	lostBefore(t, w.groups, 1, func() { cutOff(w, 1) }, "was lost while the group was made")
	w = joinedOnHosts(t, "01", nil)
	w.groups[0].links.pairs[1].Link.Break(errors.New("cut for the test"))
	for rank, g := range w.groups {
		require.Eventually(t, func() bool { return g.life.hasDied(1 - rank) }, opTimeout, time.Millisecond)
	}
	rest, err := Get().Shrink(children(w.groups, func(int) Child { return Child{} }))
	require.NoError(t, err)
	defer destroyAll(rest)
	(&world{t, rest}).each(func(g *Group) error { return asError(sum(g, 1000)) })
}

// A group that was made over a store is split at an id that is passed around, and knows addresses elsewhere.
func TestSplitOfAGroupOfAStoreOverHosts(t *testing.T) {
	w := newHostsWorld(t, "011")
	require.Equal(t, bootstrap.Loopback[:1], w.groups[0].elsewhere()[:1])
	parts, err := Get().Split(children(w.groups, func(rank int) Child { return Child{Key: -rank} }))
	require.NoError(t, err)
	defer destroyAll(parts)
	split := &world{t, parts}
	require.True(t, parts[0].apart())
	split.each(func(g *Group) error { return asError(sum(g, 1000)) })
}

// The warning of plain links tells who can have the secret of a group that met at an id.
func TestWarningOfPlainLinksAtAnID(t *testing.T) {
	realAdvertised, realWarn := advertisedTo, warnOfPlainLinks
	advertisedTo = func(a, b *member) bool { return a.HostSetting == b.HostSetting } // as in TestWarningOfPlainLinks
	var warned []string
	warnOfPlainLinks = func(text string) { warned = append(warned, text) }
	t.Cleanup(func() { advertisedTo, warnOfPlainLinks = realAdvertised, realWarn })
	for i, secret := range []string{"", "0123456789abcdef"} {
		Get().networks.warned = sync.Once{}
		more := options{"advertise": "10.77.0.1", "secret": secret}
		groups, err := Get().Join(joinsOnHosts(t, "01", more))
		require.NoError(t, err)
		destroyAll(groups)
		require.Len(t, warned, i+1)
		require.Contains(t, warned[i], "are not encrypted")
		require.NotContains(t, warned[i], "put it into the store")
		if secret == "" {
			require.Contains(t, warned[i], "whoever has read that on its way to the ranks can join the job")
		} else {
			require.NotContains(t, warned[i], "secret")
		}
	}
}

// An abort reaches ranks of an id on all hosts.
func TestAbortOfAGroupAtAnID(t *testing.T) {
	w := joinedOnHosts(t, "011", nil)
	causes := make(chan *coll.Failure, 2)
	for rank := range 2 {
		go func() { causes <- sum(w.groups[rank], 1000) }()
	}
	w.groups[2].Abort("enough")
	for range 2 {
		require.NoError(t, expect(<-causes, coll.Aborted, "rank 2", fmt.Sprintf("group %q", "joined"), "enough"))
	}
}

// The end of a context ends the join of a rank that waits for its links.
func TestCancelledWhileLinksAreMade(t *testing.T) {
	real := advertisedTo
	advertisedTo = func(*member, *member) bool { return true }
	t.Cleanup(func() { advertisedTo = real })
	list := joinsOnHosts(t, "01", options{"advertise": "198.51.100.1"}) // where nobody is (RFC 5737)
	ctx, cancel := context.WithCancel(t.Context())
	ends := make(chan error, len(list))
	for i := range list {
		list[i].Context = ctx
		go func() {
			_, err := Get().Join(list[i : i+1])
			ends <- err
		}()
	}
	linking := func() (n int) {
		p := Get()
		p.networks.mu.Lock()
		all := slices.Collect(maps.Keys(p.networks.all))
		p.networks.mu.Unlock()
		for _, network := range all {
			network.mu.Lock()
			n += len(network.linkings)
			network.mu.Unlock()
		}
		return n
	}
	require.Eventually(t, func() bool { return linking() == len(list) }, opTimeout, time.Millisecond)
	began := time.Now()
	cancel()
	for range list {
		var f *coll.Failure
		require.ErrorAs(t, <-ends, &f)
		require.Equal(t, coll.Aborted, f.Status)
		require.Contains(t, f.Message, "was aborted while its ranks met")
	}
	measure(t, "the end of the joins", time.Since(began), noWayLimit/4)
}

// Destroy waits for peers on other hosts as long as operations may take, as in a group of one host.
func TestDestroyAtAnIDWaitsForPeers(t *testing.T) {
	w := joinedOnHosts(t, "01", nil)
	impatient(t, time.Nanosecond)
	work, f := sumAsync(w.groups[0], 10)
	require.Nil(t, f)
	defer work.Release()
	end := make(chan error)
	go func() { end <- w.groups[0].Destroy() }()
	require.Eventually(t, func() bool { return w.groups[0].life.now() == destroying }, opTimeout, time.Microsecond)
	require.Nil(t, sum(w.groups[1], 10))
	require.NoError(t, <-end)
	done, f := work.Wait(0)
	require.True(t, done)
	require.Nil(t, f)
}

// A group that is shrunk has the secret of the job with which its parent met, also in its links: the file may be gone.
func TestShrinkWithoutTheFileOfTheSecret(t *testing.T) {
	path := writeSecret(t, "0123456789abcdef")
	more := options{"secret_file": path}
	groups, err := Get().Join(joinsOnHosts(t, "012", more))
	require.NoError(t, err)
	defer destroyAll(groups)
	require.NoError(t, os.Remove(path))
	rest, err := Get().Shrink(children(groups[1:], func(int) Child { return Child{LeftOut: []int{0}} }))
	require.NoError(t, err)
	defer destroyAll(rest)
	(&world{t, rest}).each(func(g *Group) error { return asError(sum(g, 1000)) })
}

// Links that are made at first need have the secret of the id as well.
func TestLinksAtFirstNeedAtAnID(t *testing.T) {
	real := allWatch
	allWatch = 2
	defer func() { allWatch = real }()
	w := joinedOnHosts(t, "012345", nil)
	require.True(t, w.groups[0].links.sparse)
	w.each(func(g *Group) error { return g.try(transfer{coll.AllToAll, 0, 1, equalLength(1000)}, coll.Op{}) })
	cutLast(t, w, 1000)
	w.destroy()
	requireNoNetworks(t)
}

// A timeout names the rank of another host that did not come, and a rank that leaves is known to have left.
func TestEndsOfGroupsAtAnID(t *testing.T) {
	patient(t, time.Second)
	w := joinedOnHosts(t, "01", nil)
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	require.NoError(t, w.groups[0].SetTimeout(300*time.Millisecond))
	require.NoError(t, expect(sum(w.groups[0], 1000), coll.Timeout, "rank 1", "last called all_reduce #1"))
	w = joinedOnHosts(t, "01", nil)
	w.each(func(g *Group) error { return asError(sum(g, 10)) })
	require.NoError(t, w.groups[0].Destroy())
	require.NoError(t, expect(sum(w.groups[1], 10), coll.PeerFailure, "rank 0", "has left the group after collective #1"))
}

// Of many processes not every two watch each other, but a split makes all links: all ranks notice the loss.
func TestLossOfARankThatIsNotWatchedBeforeAChildHasMet(t *testing.T) {
	real := allWatch
	allWatch = 2
	defer func() { allWatch = real }()
	w := joinedOnHosts(t, "012345", nil)
	require.False(t, w.groups[0].links.watched(0, 3))
	lostBefore(t, w.groups, 3, func() { cutOff(w, 3) }, "was lost while the group was made")
}
