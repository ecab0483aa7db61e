package verdict

import "math/bits"

// routes is what a member knows of the links between members.
type routes struct {
	self, members int
	gone          []set   // by member: members to which its link is lost, or to which there is none
	sparse        bool    // not all members watch each other
	noticed       [][]int // by member: members to which it has noticed that the link is lost, as the first end of which this one knows that
	left          set     // members that have left the group, and answer and pass on nothing
	broken        set     // members to which the own link is lost, so that nothing that comes over it counts
	stale         bool    // via is older than what it follows from
	via           []int   // by member: the first link of a shortest path to it, -1: there is none. See fresh
	viaLeft       []int   // where not all watch each other: the same over paths in which members that have left stand, too
}

// set is a set of members.
type set []uint64

func newSet(members int) set { return make(set, (members+63)/64) }
func (s set) add(i int)      { s[i/64] |= 1 << (i % 64) }
func (s set) remove(i int)   { s[i/64] &^= 1 << (i % 64) }
func (s set) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }

func newRoutes(self, members int, watched func(i, j int) bool) routes {
	r := routes{self: self, members: members, noticed: make([][]int, members), left: newSet(members), broken: newSet(members)}
	for range members {
		r.gone = append(r.gone, newSet(members))
	}
	if watched != nil {
		r.leaveOut(watched)
	}
	r.find()
	return r
}

// leaveOut takes the links out that there are not.
func (r *routes) leaveOut(watched func(i, j int) bool) {
	for i := range r.members {
		for j := range r.members {
			if i != j && !watched(i, j) {
				r.gone[i].add(j)
				r.sparse = true
			}
		}
	}
	copy(r.broken, r.gone[r.self])
}

// cut takes the link of an end, which has noticed that, to another member out, and reports whether it was there.
func (r *routes) cut(end, other int) bool {
	if end == r.self {
		r.broken.add(other)
	} else if other == r.self {
		r.broken.add(end)
	}
	return r.forgo(end, other)
}

// forgo is cut for a link over which something may still come that counts.
func (r *routes) forgo(end, other int) bool {
	if r.gone[end].has(other) {
		return false
	}
	r.gone[end].add(other)
	r.gone[other].add(end)
	r.noticed[end] = append(r.noticed[end], other)
	r.stale = true
	return true
}

// leave takes a member out, and reports whether it was there.
func (r *routes) leave(j int) bool {
	if r.left.has(j) {
		return false
	}
	r.left.add(j)
	r.stale = true
	return true
}

// linked reports whether there is a link to a member.
func (r *routes) linked(to int) bool { return !r.broken.has(to) }

// parted reports whether a link is lost between a member and one that is not lost.
func (r *routes) parted(j int) bool {
	for w, gone := range r.gone[j] {
		for ; gone != 0; gone &= gone - 1 {
			if !r.lost(64*w + bits.TrailingZeros64(gone)) {
				return true
			}
		}
	}
	return false
}

// fresh finds the shortest paths anew, if something has changed since. Many links may be lost at once.
func (r *routes) fresh() {
	if r.stale {
		r.stale = false
		r.find()
	}
}

// find finds the shortest paths.
func (r *routes) find() {
	there := newSet(r.members)
	for j := range r.members {
		if !r.left.has(j) {
			there.add(j)
		}
	}
	r.via = r.search(there)
	if r.viaLeft = r.via; r.sparse {
		all := newSet(r.members)
		for j := range r.members {
			all.add(j)
		}
		r.viaLeft = r.search(all)
	}
}

// search returns the first link of a shortest path to each member, over members of a set. A path does not begin with a member that has left: this one
// tells of its link there.
func (r *routes) search(over set) []int {
	first := make([]int, r.members)
	rest := append(set(nil), over...) // members to which no path was found yet
	for j := range first {
		first[j] = -1
	}
	first[r.self] = r.self
	rest.remove(r.self)
	for at := []int{r.self}; len(at) > 0; at = at[1:] {
		for w := range rest {
			found := rest[w] &^ r.gone[at[0]][w]
			if at[0] == r.self {
				found &^= r.left[w]
			}
			for ; found != 0; found &= found - 1 {
				j := 64*w + bits.TrailingZeros64(found)
				rest.remove(j)
				if first[j] = first[at[0]]; at[0] == r.self {
					first[j] = j
				}
				at = append(at, j)
			}
		}
	}
	return first
}

// hop returns the member over whose link a frame goes first. Where no path is left, a frame goes over members that have left, up to the one before
// them: that one is to tell of the farewell, since the sender does not know of it.
func (r *routes) hop(to int) (over int, ok bool) {
	r.fresh()
	over = r.via[to]
	if over < 0 {
		over = r.viaLeft[to]
	}
	return over, over >= 0 && to != r.self
}

// lost reports whether no path of links leads to a member, or whether it has left.
// Requires: fresh.
func (r *routes) lost(j int) bool { return r.via[j] < 0 }

// lowest returns the lowest member that is not lost.
// Requires: fresh.
func (r *routes) lowest() int {
	for j := range r.via {
		if !r.lost(j) {
			return j
		}
	}
	return r.self
}
