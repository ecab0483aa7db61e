package pgbackend

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
)

// This file makes groups out of ranks of a group.

// Child describes this rank's part in a group that is made of ranks of another one, its parent.
type Child struct {
	Parent     *Group
	Color, Key int   // of Split
	LeftOut    []int // of Shrink: ranks of the parent
	// Of Shrink, in place of LeftOut: the ranks of the parent that stay, in the order of the new group. Groups with
	// different labels may be made in any order.
	Members    []int
	Label      uint64
	Aborts     Aborts // of Shrink
	Name       string
	Timeout    time.Duration     // of the rendezvous and of operations; 0: that of operations of the parent
	Operations time.Duration     // of operations; 0: Timeout
	Options    map[string]string // nil: those of the parent
	Context    context.Context   // its end ends the meeting of the ranks, unless the group is made; nil: nothing does
	Colors     context.Context   // of Split: its end aborts the parent, unless the ranks know all colors; nil: nothing does
}

// Aborts tells whether Shrink aborts the parent first. In a shrink that ends outstanding operations each rank decides
// for itself.
type Aborts int

// Values of Aborts, those of sagecomm_aborts in sagecomm.h.
const (
	NoAbort         Aborts = 0
	AbortsHere      Aborts = 2 // this rank does
	AbortsElsewhere Aborts = 3 // other ranks may, in the same shrink
)

// place is what a rank tells the others of a split.
type place struct {
	Color int `json:"color"`
	Key   int `json:"key"`
}

// invitation is what the first rank of a new group tells the others of a split.
type invitation struct {
	ID    []byte `json:"id,omitempty"`
	Nonce []byte `json:"nonce,omitempty"` // the id is derived with it from that of the parent
	Why   string `json:"why,omitempty"`   // there is no id
}

// nonceBytes is the length of a nonce.
const nonceBytes = 16

// Split makes a group of the ranks of a parent that have the same color, in the order of their keys, and of their ranks
// in the parent where keys are equal. All ranks of the parent call it. A rank with a color below 0 takes part in the
// call and gets nil. The children are made at the same time. If one is not made, none is.
func (p *Process) Split(children []Child) ([]*Group, error) {
	if err := distinctParents("split", children); err != nil {
		return nil, err
	}
	return jointly(len(children), func(i int) (*Group, error) { return p.split(children[i]) })
}

// distinctParents refuses children of one parent: nothing would say which of them is which on the other ranks.
func distinctParents(call string, children []Child) error {
	seen := map[*Group]bool{}
	for _, c := range children {
		if g := c.Parent; seen[g] {
			return &coll.Failure{Status: coll.Invalid, Rank: g.rank, Group: g.name, Message: fmt.Sprintf("sagecomm: group %q: %s: the group is named twice in one call: make its children one after the other", g.title(), call)}
		}
		seen[c.Parent] = true
	}
	return nil
}

func (p *Process) split(c Child) (*Group, error) {
	g, timeout := c.Parent, c.timeout()
	mine, err := json.Marshal(place{c.Color, c.Key})
	if err != nil {
		return nil, err
	}
	// The ranks cannot take back what they have told each other, so the end of an exchange is that of the group.
	stop := context.AfterFunc(contextOf(c.Colors), func() {
		g.guard(func() { g.abortFor("split", 0, "another group of the same call could not be made") })
	})
	defer stop()
	all, f := g.exchange(topicMembers, "split", mine, timeout)
	if f != nil {
		return nil, f
	}
	places, wrong, err := readPlaces(all)
	if err != nil {
		return nil, fmt.Errorf("sagecomm: group %q: split: %s wrote an unreadable color: %w", g.name, g.who(wrong), err)
	}
	members := c.members(places)
	var mineNext invitation
	if len(members) > 0 && members[0] == g.rank {
		mineNext = p.invite(c, members)
	}
	if mine, err = json.Marshal(mineNext); err != nil {
		return nil, err
	}
	if all, f = g.exchange(topicMembers, "ids of the groups of a split", mine, timeout); f != nil {
		return nil, f
	}
	stop()
	if len(members) == 0 {
		return nil, nil
	}
	first := members[0]
	id, err := g.invited(members, all[first])
	if err != nil {
		return nil, fmt.Errorf("sagecomm: group %q: split: %s cannot serve the new group: %w", g.name, g.who(first), err)
	}
	child, err := p.joinWithSecret(contextOf(c.Context), id, c.config(members, timeout, nil))
	if errors.Is(err, bootstrap.ErrGone) {
		return nil, &coll.Failure{Status: coll.PeerFailure, Rank: first, Group: g.name, Message: fmt.Sprintf("sagecomm: group %q: split: %s was to serve the new group: %v", g.title(), g.who(first), err)}
	}
	return child, err
}

// readPlaces returns what the ranks have chosen, or the rank whose choice cannot be read.
func readPlaces(all [][]byte) (places []place, wrong int, err error) {
	places = make([]place, len(all))
	for rank, text := range all {
		if err := json.Unmarshal(text, &places[rank]); err != nil {
			return nil, rank, err
		}
	}
	return places, 0, nil
}

// invite makes the id at which the members of a new group meet, which this process serves. Between hosts the invitation
// may cross a network that others read. So where the parent has met at an id, no secret is in it: the new id is derived.
func (p *Process) invite(c Child, members []int) (told invitation) {
	g := c.Parent
	if !g.life.acquire() {
		return invitation{Why: destroyed(g.name).Message}
	}
	defer g.life.release()
	if g.birth == nil {
		id, err := p.newID(c.options(), g.elsewhere())
		if err != nil {
			return invitation{Why: err.Error()}
		}
		text := id.Encode()
		return invitation{ID: text[:]}
	}
	if err := g.checkServer(members); err != nil {
		return invitation{Why: err.Error()}
	}
	job, err := jobSecretOf(c.options())
	if err != nil {
		return invitation{Why: err.Error()}
	}
	told.Nonce = make([]byte, nonceBytes)
	_, _ = rand.Read(told.Nonce) // it does not fail
	p.server.Serve(g.derivedID(told.Nonce, g.rank), job)
	return told
}

// derivedID returns the id at which a group that is split off meets, at the process of its first rank.
func (g *Group) derivedID(nonce []byte, first int) bootstrap.ID {
	at := g.members[first].Listener
	return g.birth.id.Derive(fmt.Sprintf("split %x", nonce), at.Addresses, at.Port)
}

// invited reads what the first of the members of a new group has told: it returns the id at which they meet.
func (g *Group) invited(members []int, text []byte) (id bootstrap.ID, err error) {
	var told invitation
	if err := json.Unmarshal(text, &told); err != nil || told.Why != "" {
		return id, errors.New(cmp.Or(told.Why, "its answer is unreadable"))
	}
	if g.birth == nil {
		return bootstrap.ParseID(told.ID)
	}
	if err := g.checkServer(members); err != nil {
		return id, err
	}
	if len(told.Nonce) != nonceBytes {
		return id, errors.New("its answer is unreadable")
	}
	return g.derivedID(told.Nonce, members[0]), nil
}

// checkServer refuses members of a new group that do not reach the server of the first one, at which they are to meet.
// All of them return the same. Requires: the group has met at a unique id.
func (g *Group) checkServer(members []int) error {
	first := members[0]
	at := g.members[first].Listener
	if !bootstrap.AllLoopback(at.Addresses) {
		return nil
	}
	for _, rank := range members {
		if onOtherMachine(&g.members[first], &g.members[rank]) {
			return fmt.Errorf("its process listens for unique ids on loopback only, and %s is on another machine or in another network namespace: set SAGECOMM_SOCKET_IFNAME or MASTER_ADDR for that process; %s", g.who(rank), noLoopback)
		}
	}
	return nil
}

// members returns the ranks of the parent that form the group of this rank, in the order of their ranks there.
func (c Child) members(places []place) (list []int) {
	if c.Color < 0 {
		return nil
	}
	for rank, at := range places {
		if at.Color == c.Color {
			list = append(list, rank)
		}
	}
	slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(places[a].Key, places[b].Key) })
	return list
}

func (c Child) timeout() time.Duration { return cmp.Or(c.Timeout, c.Parent.timeout()) }

func (c Child) options() map[string]string {
	if c.Options != nil {
		return c.Options
	}
	return c.Parent.options
}

// config returns the configuration of the new group for this rank. cut are ranks of the parent that were lost before.
func (c Child) config(members []int, timeout time.Duration, cut map[int]bool) Config {
	global := make([]int, len(members))
	for i, rank := range members {
		global[i] = c.Parent.globalRank(rank)
	}
	return Config{Rank: slices.Index(members, c.Parent.rank), Size: len(members), GlobalRanks: global, Name: c.Name, Timeout: timeout, Operations: c.Operations, Options: c.options(),
		kin: &kin{parent: c.Parent, members: members, cut: cut}}
}

// kin are the ranks of a new group in its parent. The parent watches their processes before the new group does.
type kin struct {
	parent  *Group
	members []int        // ranks of the parent, by rank of the new group
	cut     map[int]bool // of a shrink: ranks of the parent whose links were lost before the call, which may be reached anew
}

// lostElsewhere returns the ranks of other hosts that the group has lost.
func (g *Group) lostElsewhere() map[int]bool {
	cut := map[int]bool{}
	for rank := range g.size {
		if g.isRemote(rank) && g.life.hasDied(rank) {
			cut[rank] = true
		}
	}
	return cut
}

// lost returns the failure of the new group, which has the name, if the process of one of its ranks has ended. A parent
// that is destroyed hears of no further death.
func (k *kin) lost(name string) error {
	if k == nil {
		return nil
	}
	for rank, there := range k.members {
		if k.cut[there] || !k.parent.life.hasDied(there) {
			continue
		}
		how := "died while the group was made; look at its log for the reason, then restart the job"
		if k.parent.isRemote(there) {
			how = "was lost while the group was made; look at its log for the reason"
		}
		f := k.parent.failedRank(coll.PeerFailure, there)
		f.Rank, f.Group = rank, name
		f.Message = fmt.Sprintf("sagecomm: group %q: %s: rank %d, which is %s in group %q, %s", name, closedByPeer, rank, k.parent.who(there), k.parent.title(), how)
		return f
	}
	return nil
}

// rankOf names a rank of a group.
type rankOf struct {
	g    *Group
	rank int
}

func (r rankOf) String() string { return r.g.who(r.rank) }

// Shrink makes groups without some ranks of a parent. Only the ranks that stay call it, all with the same list. The
// parent may have failed; it must have met at a unique id. The ranks keep their order. The children are made at the
// same time. If one is not made, none is.
func (p *Process) Shrink(children []Child) ([]*Group, error) {
	if err := distinctParents("shrink", children); err != nil {
		return nil, err
	}
	return jointly(len(children), func(i int) (*Group, error) { return p.shrink(children[i]) })
}

func (p *Process) shrink(c Child) (*Group, error) {
	cut := c.Parent.lostElsewhere()
	at, err := p.planShrink(c)
	if err != nil {
		return nil, err
	}
	if c.Aborts != NoAbort {
		number := purposeHash(at.name)
		c.Parent.shrinkAborts(number)
		if c.Aborts == AbortsHere {
			c.Parent.abortFor("shrink", number, "it is shrunk, and its operations were to be aborted")
		}
	}
	// The parent may be destroyed from here on.
	child, err := p.joinAt(contextOf(c.Context), at.id, at.job, rankOf{c.Parent, at.members[0]}, c.config(at.members, c.timeout(), cut))
	if err == nil {
		c.Parent.shrunk(at.text)
	}
	return child, err
}

// shrinkPlan is where the ranks that stay meet.
type shrinkPlan struct {
	members []int  // ranks of the parent
	text    string // what the name is made of, without the number of the group
	name    string // of the call, which all ranks that stay make; the id is derived from it
	id      bootstrap.ID
	job     []byte // the secret of the parent's job
}

// planShrink checks a call of Shrink, and serves the id if this rank is the first one of the new group.
func (p *Process) planShrink(c Child) (at shrinkPlan, err error) {
	g := c.Parent
	if !g.life.acquire() {
		return at, destroyed(g.name)
	}
	defer g.life.release()
	refuse := func(format string, args ...any) (shrinkPlan, error) {
		return at, &coll.Failure{Status: coll.Invalid, Rank: g.rank, Group: g.name, Message: fmt.Sprintf("sagecomm: group %q: shrink: ", g.title()) + fmt.Sprintf(format, args...)}
	}
	if g.birth == nil {
		return refuse("the group was made over a store of its caller; make a new group over that store")
	}
	if c.Members != nil {
		return p.planMembers(c, refuse)
	}
	out := slices.Compact(slices.Sorted(slices.Values(c.LeftOut)))
	if len(out) > 0 && (out[0] < 0 || out[len(out)-1] >= g.size) {
		return refuse("ranks %v are to be left out, and the group has ranks 0 to %d", out, g.size-1)
	}
	if slices.Contains(out, g.rank) {
		return refuse("rank %d calls it, and is to be left out; only ranks that stay may call it", g.rank)
	}
	for rank := range g.size {
		if !slices.Contains(out, rank) {
			at.members = append(at.members, rank)
		}
	}
	at.text = fmt.Sprintf("shrink %v", out)
	return p.serveShrink(g, at, refuse)
}

// refusal makes the error of a call of Shrink that is refused.
type refusal func(format string, args ...any) (shrinkPlan, error)

// planMembers is planShrink for a list of the ranks that stay.
func (p *Process) planMembers(c Child, refuse refusal) (at shrinkPlan, err error) {
	g, sorted := c.Parent, slices.Sorted(slices.Values(c.Members))
	switch {
	case len(sorted) == 0:
		return refuse("no rank stays")
	case sorted[0] < 0 || sorted[len(sorted)-1] >= g.size:
		return refuse("ranks %v are to stay, and the group has ranks 0 to %d", c.Members, g.size-1)
	case len(slices.Compact(slices.Clone(sorted))) < len(sorted):
		return refuse("ranks %v are to stay, and one of them is named twice", c.Members)
	case !slices.Contains(sorted, g.rank):
		return refuse("rank %d calls it, and ranks %v are to stay; only they may call it", g.rank, c.Members)
	}
	at.members, at.text = slices.Clone(c.Members), fmt.Sprintf("members %v, label %d", c.Members, c.Label)
	return p.serveShrink(g, at, refuse)
}

// serveShrink completes a plan, and serves its id if this rank is the first one of the new group.
func (p *Process) serveShrink(g *Group, at shrinkPlan, refuse refusal) (shrinkPlan, error) {
	if err := g.checkServer(at.members); err != nil {
		return refuse("the new group meets at %s: %v", g.who(at.members[0]), err)
	}
	first := g.members[at.members[0]].Listener
	at.job = g.birth.job
	at.name = fmt.Sprintf("%s, group %d", at.text, g.shrinksOf(at.text))
	at.id = g.birth.id.Derive(at.name, first.Addresses, first.Port)
	if at.members[0] == g.rank {
		p.server.Serve(at.id, at.job)
	}
	return at, nil
}

// shrinksOf returns the number of groups that this one was shrunk to with the same list. Groups that were not made do
// not count, so that a rank that tries again meets one that has been late.
func (g *Group) shrinksOf(text string) int {
	g.shrinking.Lock()
	defer g.shrinking.Unlock()
	return g.shrinks[text]
}

func (g *Group) shrunk(text string) {
	g.shrinking.Lock()
	defer g.shrinking.Unlock()
	if g.shrinks == nil {
		g.shrinks = map[string]int{}
	}
	g.shrinks[text]++
}

// shrinkAborts notes that this rank takes part in a shrink that may abort the group.
func (g *Group) shrinkAborts(number uint64) {
	g.shrinking.Lock()
	defer g.shrinking.Unlock()
	g.aborting = append(g.aborting, number)
}

// AbortedByShrink reports whether the group was aborted by a shrink in which this rank has taken part.
func (g *Group) AbortedByShrink() bool {
	f := g.failed()
	if f == nil || f.Shrink == 0 {
		return false
	}
	g.shrinking.Lock()
	defer g.shrinking.Unlock()
	return slices.Contains(g.aborting, f.Shrink)
}
