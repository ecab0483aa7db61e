package main

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"

	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

// A cell is one combination: a fault of one rank at one moment of one call on one path, in a group of so many ranks.
type cell struct {
	op, variant, fault, moment string
	size                       int
}

func (c cell) String() string {
	return fmt.Sprintf("%s/%s/%s/%s/%d", c.op, c.variant, c.fault, c.moment, c.size)
}

// random returns the source for what a cell leaves open; the same seed gives the same draws.
func (c cell) random(seed uint64) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, c)
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// Forms of a call, as rank.h numbers them.
const (
	single = iota
	p2p
	fused
	fusedP2P
)

// path is a call that takes one path through the library.
type path struct {
	op, variant string
	form        int
	kind        coll.Kind
	count       func(size int) int // elements of 4 bytes of the tensor, or of a block
	tune        string
	apart       bool // the ranks are on several hosts
}

const (
	smallCount = 64    // fits into a small slot, of 8 ranks too
	largeCount = 75000 // several chunks of 64 KiB
)

func count(n int) func(int) int { return func(int) int { return n } }

// shared is the length of a block when all blocks together are several chunks.
func shared(n int) func(int) int { return func(size int) int { return max(n/size, 20000) } }

var paths = slices.Concat(slotPaths, sendrecvPaths(), apartPaths(), []path{nothing})

// apartPaths are the paths between hosts: p2p, and each collective by one algorithm, and by the hierarchical one where it has one.
func apartPaths() (list []path) {
	known := map[coll.Kind]bool{}
	for _, p := range slices.Concat(slotPaths, sendrecvPaths()) {
		if p.form == p2p || p.form == single && strings.Contains(p.tune, "@chunk=4K") && (!known[p.kind] || p.variant == sendrecv.Hierarchical) {
			known[p.kind] = true
			p.variant, p.apart = p.variant+"-apart", true
			list = append(list, p)
		}
	}
	return list
}

// sendrecvPaths are the paths of all sendrecv algorithms, in several chunks.
func sendrecvPaths() (list []path) {
	for kind := range coll.KindCount {
		if !kind.Collective() {
			continue
		}
		elements := count(largeCount)
		switch kind {
		case coll.Barrier:
			elements = count(0)
		case coll.ReduceScatter, coll.AllToAll, coll.Scatter:
			elements = shared(2 * largeCount)
		}
		for _, name := range sendrecv.Algorithms(kind) {
			list = append(list, path{kind.String(), name, single, kind, elements, fmt.Sprintf("%v:%s@chunk=4K", kind, name), false})
		}
	}
	return list
}

var slotPaths = []path{
	{"all_reduce", "small", single, coll.AllReduce, count(smallCount), "", false},
	{"all_reduce", "large", single, coll.AllReduce, count(largeCount), "all_reduce:one_shot@chunk=64K", false},
	{"all_reduce", "two_shot", single, coll.AllReduce, count(largeCount), "all_reduce:two_shot@chunk=64K", false},
	{"broadcast", "small", single, coll.Broadcast, count(smallCount), "", false},
	{"broadcast", "large", single, coll.Broadcast, count(largeCount), "broadcast:one_shot@chunk=64K", false},
	{"all_gather", "small", single, coll.AllGather, count(smallCount), "", false},
	{"all_gather", "large", single, coll.AllGather, count(largeCount), "all_gather:one_shot@chunk=64K", false},
	{"reduce", "small", single, coll.Reduce, count(smallCount), "", false},
	{"reduce", "large", single, coll.Reduce, count(largeCount), "reduce:one_shot@chunk=64K", false},
	{"reduce", "two_shot", single, coll.Reduce, count(largeCount), "reduce:two_shot@chunk=64K", false},
	{"barrier", "small", single, coll.Barrier, count(0), "", false},
	{"reduce_scatter", "small", single, coll.ReduceScatter, count(smallCount / 4), "", false},
	{"reduce_scatter", "large", single, coll.ReduceScatter, shared(2 * largeCount), "reduce_scatter:one_shot@chunk=64K", false},
	{"all_to_all", "heads", single, coll.AllToAll, count(smallCount / 4), "", false},
	{"all_to_all", "large", single, coll.AllToAll, shared(2 * largeCount), "all_to_all:one_shot@chunk=64K", false},
	{"gather", "small", single, coll.Gather, count(smallCount), "", false},
	{"gather", "large", single, coll.Gather, count(largeCount), "gather:one_shot@chunk=64K", false},
	{"scatter", "small", single, coll.Scatter, count(smallCount / 4), "", false},
	{"scatter", "large", single, coll.Scatter, shared(2 * largeCount), "scatter:one_shot@chunk=64K", false},
	{"send_recv", "eager", p2p, coll.Send, count(smallCount), "", false},
	{"send_recv", "announced", p2p, coll.Send, count(largeCount), "", false},
	{"coalesced", "small", fused, coll.AllReduce, count(smallCount / 4), "", false},
	{"coalesced", "large", fused, coll.AllReduce, count(largeCount), "all_reduce:two_shot@chunk=64K", false},
	{"coalesced", "p2p", fusedP2P, coll.Send, count(smallCount), "", false},
}

// nothing is the path of faults that happen where no call is made.
var nothing = path{"none", "none", single, coll.Barrier, count(0), "", false}

// hierarchical reports whether the path needs several hosts with several ranks each, for phases inside a host and between hosts.
func (p path) hierarchical() bool {
	return p.apart && strings.HasPrefix(p.variant, sendrecv.Hierarchical)
}

func (p path) collective() bool { return p.form == single || p.form == fused }

// faults are the actions of one rank, or what is done to it.
var faults = []string{"kill", "exit", "stop", "leave", "abort", "slow", "mismatch_kind", "mismatch_type", "mismatch_bytes",
	"mismatch_reduce", "mismatch_root", "mismatch_settings", "store_fails", "store_vanishes"}

// moments are the moments at which a fault happens. The first four are moments of init: before each of a rank's three writes
// into the store, and after the last one. Then: between calls, before the others call; between calls, while they wait; in
// the call before its first
// publish, after it, and after a later one; in destroy before the goodbye, and after it.
var moments = []string{"write0", "write1", "write2", "wrote2", "away", "awaited", "started", "published", "later", "goodbye", "left"}

var sizes = []int{2, 4, 8}

// apartSize is how many ranks a group over several hosts has.
const apartSize = 4

func atInit(moment string) bool { return strings.HasPrefix(moment, "wr") }

func atDestroy(moment string) bool { return moment == "goodbye" || moment == "left" }

// senseless returns the reason why a combination has no meaning, or "" if it has one.
func senseless(p path, fault, moment string, size int) string {
	mismatch, isMismatch := strings.CutPrefix(fault, "mismatch_")
	settings := fault == "mismatch_settings"
	store := strings.HasPrefix(fault, "store_")
	switch {
	case p.op == "none" && !atInit(moment) && !atDestroy(moment):
		return "no call: the moment is one of a call"
	case p.apart && (isMismatch || store):
		return "between hosts: what ranks call and where they meet is the same, and in pgbackend"
	case p.apart && size != apartSize:
		return "between hosts: groups of 4 have one rank or two on a host, and links take seconds to end"
	case p.apart && moment == "left":
		return "between hosts: the goodbye is on its way, and may be lost with the process"
	case p.op != "none" && atInit(moment):
		return "init: no call has been made, so its path does not matter"
	case atInit(moment) && (fault == "leave" || fault == "abort"):
		return "init: there is no group to leave or to abort yet"
	case settings != (isMismatch && atInit(moment)):
		return "settings differ at init, calls differ later"
	case settings && moment != "write1":
		return "settings are said by one write"
	case isMismatch && !settings && moment != "started":
		return "a call that differs is made in place of the call, at no other moment"
	case store && !atInit(moment) && (moment != "away" || fault == "store_fails"):
		return "after init the store is not used: one cell shows that it may vanish"
	case store && moment == "wrote2":
		return "after its last write a rank has still to read: the store vanishes before that write"
	case atDestroy(moment) && fault == "leave":
		return "to destroy is to leave"
	case atDestroy(moment) && fault == "abort":
		return "who says goodbye has destroyed the group, and has none to abort"
	case fault == "slow" && (moment == "away" || moment == "wrote2" || moment == "left"):
		return "nobody waits for a rank that is slow there, or as for one that is slow a moment later"
	case fault == "slow" && moment == "goodbye" && p.op != "none":
		return "a call that a leaving rank does not join fails, slow or not"
	case moment == "later" && (fault == "leave" || fault == "slow"):
		return "who leaves or is slow makes one call, which may have no later publish"
	case p.kind == coll.Barrier && p.op != "none" && isMismatch && mismatch != "kind":
		return "a barrier has no arguments"
	case mismatch == "reduce" && !p.kind.Reduces():
		return "the call reduces nothing"
	case mismatch == "root" && !p.kind.Rooted():
		return "the call has no root"
	case mismatch == "kind" && !p.collective():
		return "p2p against a collective is no mismatch but a wait for ever: part of tests/python/test_timeouts.py"
	case p.form == fusedP2P && isMismatch && mismatch != "bytes" && mismatch != "type":
		return "the call reduces nothing"
	}
	return ""
}

// cells returns all combinations that have a meaning, and the numbers of the others by reason.
func cells() (list []cell, skipped map[string]int) {
	skipped = map[string]int{}
	for _, p := range paths {
		for _, fault := range faults {
			for _, moment := range moments {
				for _, size := range sizes {
					if why := senseless(p, fault, moment, size); why != "" {
						skipped[why]++
						continue
					}
					list = append(list, cell{p.op, p.variant, fault, moment, size})
				}
			}
		}
	}
	return list, skipped
}

func (c cell) path() (path, error) {
	for _, p := range paths {
		if p.op == c.op && p.variant == c.variant {
			return p, nil
		}
	}
	return path{}, fmt.Errorf("cell %v: there is no path %s/%s", c, c.op, c.variant)
}
