package sendrecv

// pairing lets an algorithm for p ranks run on size ranks. Pairs of neighbouring ranks first become one: the even rank,
// the extra, hands its part to the odd rank and takes its result back in the end (Thakur, Rabenseifner, Gropp, IJHPCA
// 2005). At most half of the ranks may be extras: p >= size/2. The p ranks that are no extras are the cores, numbered
// in order.
type pairing struct{ size, p int }

// extras returns how many ranks hand their part to a neighbour.
func (f pairing) extras() int { return f.size - f.p }

// extra reports whether a rank hands its part to its partner, the next rank.
func (f pairing) extra(rank int) bool { return rank < 2*f.extras() && rank%2 == 0 }

// partner returns the extra of a rank, or -1.
func (f pairing) partner(rank int) int {
	if rank < 2*f.extras() && rank%2 == 1 {
		return rank - 1
	}
	return -1
}

// core returns the number of a rank, which is no extra, among the cores.
func (f pairing) core(rank int) int {
	if rank < 2*f.extras() {
		return rank / 2
	}
	return rank - f.extras()
}

// rank returns the rank of a core.
func (f pairing) rank(core int) int {
	if core < f.extras() {
		return 2*core + 1
	}
	return core + f.extras()
}

// members returns the ranks whose parts a core holds, in order.
func (f pairing) members(core int) []int {
	if core < f.extras() {
		return []int{2 * core, 2*core + 1}
	}
	return []int{core + f.extras()}
}

// powerOfTwo returns the largest power of two up to n.
func powerOfTwo(n int) int {
	p := 1
	for 2*p <= n {
		p *= 2
	}
	return p
}
