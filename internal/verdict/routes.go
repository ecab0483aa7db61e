package verdict

// routes is what a member knows of the links between members.
type routes struct {
	self, members int
	gone          map[[2]int]bool // links that are lost
	left          []bool          // by member: it has left the group, and answers and passes on nothing
	via           []int           // by member: the first link of a shortest path to it, -1: there is none
}

func newRoutes(self, members int) routes {
	r := routes{self: self, members: members, gone: map[[2]int]bool{}, left: make([]bool, members)}
	r.find()
	return r
}

func link(a, b int) [2]int { return [2]int{min(a, b), max(a, b)} }

// cut takes a link out, and reports whether it was there.
func (r *routes) cut(a, b int) bool {
	if r.gone[link(a, b)] {
		return false
	}
	r.gone[link(a, b)] = true
	r.find()
	return true
}

// leave takes a member out, and reports whether it was there.
func (r *routes) leave(j int) bool {
	if r.left[j] {
		return false
	}
	r.left[j] = true
	r.find()
	return true
}

// linked reports whether there is a link to a member.
func (r *routes) linked(to int) bool { return !r.gone[link(r.self, to)] }

// find finds the shortest paths.
func (r *routes) find() {
	r.via = make([]int, r.members)
	for j := range r.via {
		r.via[j] = -1
	}
	r.via[r.self] = r.self
	for at := []int{r.self}; len(at) > 0; at = at[1:] {
		for j := range r.via {
			if r.via[j] >= 0 || r.left[j] || r.gone[link(at[0], j)] {
				continue
			}
			if r.via[j] = r.via[at[0]]; at[0] == r.self {
				r.via[j] = j
			}
			at = append(at, j)
		}
	}
}

// hop returns the member over whose link a frame goes first.
func (r *routes) hop(to int) (over int, ok bool) { return r.via[to], r.via[to] >= 0 && to != r.self }

// lost reports whether no path of links leads to a member, or whether it has left.
func (r *routes) lost(j int) bool { return r.via[j] < 0 }

// lowest returns the lowest member that is not lost.
func (r *routes) lowest() int {
	for j := range r.via {
		if !r.lost(j) {
			return j
		}
	}
	return r.self
}
