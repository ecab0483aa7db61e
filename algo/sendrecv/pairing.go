// Groups whose size does not suit an algorithm.

package sendrecv

// fold is how an algorithm for p ranks runs on at.Size: pairs of neighbouring ranks first become one, the odd rank of
// each, and take their result back in the end (Thakur, Rabenseifner, Gropp, IJHPCA 2005). At most half of the ranks may
// be extras: p >= size/2.
type pairing struct{ size, p int }

// extras is how many ranks hand their part to a neighbour.
func (f pairing) extras() int { return f.size - f.p }

// extra says whether a rank hands its part to its partner, the next rank.
func (f pairing) extra(rank int) bool { return rank < 2*f.extras() && rank%2 == 0 }

// partner is the extra of a rank, or -1.
func (f pairing) partner(rank int) int {
	if rank < 2*f.extras() && rank%2 == 1 {
		return rank - 1
	}
	return -1
}

// core is the number of a rank that is no extra among those that are none.
func (f pairing) core(rank int) int {
	if rank < 2*f.extras() {
		return rank / 2
	}
	return rank - f.extras()
}

// rank is the inverse of core.
func (f pairing) rank(core int) int {
	if core < f.extras() {
		return 2*core + 1
	}
	return core + f.extras()
}

// members are the ranks whose parts a core holds, in order.
func (f pairing) members(core int) []int {
	if core < f.extras() {
		return []int{2 * core, 2*core + 1}
	}
	return []int{core + f.extras()}
}

// powerOfTwo is the largest one that is no more than n.
func powerOfTwo(n int) int {
	p := 1
	for 2*p <= n {
		p *= 2
	}
	return p
}
