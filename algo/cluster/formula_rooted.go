package cluster

import "sagecomm/algo/sendrecv"

// subtree returns the bytes of the blocks of a subtree.
func (f *closed) subtree(ranks int) float64 { return float64(ranks) * f.n }

// pieces returns the bytes of the pieces that the ranks of a subtree get of a buffer that is scattered.
func (f *closed) pieces(ranks int) float64 { return min(f.n, float64(ranks)*piece(f.n, f.P)) }

// binomialDown returns the messages and bytes of the root of a binomial tree.
func binomialDown(f *closed) (int, float64) { return lg(f.P), float64(lg(f.P)) }

// once returns the messages and bytes of ranks that send the buffer once.
func once(f *closed) (int, float64) { return 1, 1 }

// chunks returns the number of chunks of the buffer.
func chunks(f *closed) int { return int(max(1, (f.n+f.chunk-1)/f.chunk)) }

// below returns the number of ranks in the largest subtree of a child of the root of a binomial tree.
func below(P int) int {
	h := 1 << lg(P) / 2
	return max(min(h, P-h), h/2)
}

var broadcastFormulas = map[string]formula{
	// Chan et al. 2007.
	sendrecv.Binomial: {
		func(f *closed) (float64, error) {
			return f.binomial(func() float64 { return f.tree(f.full, 0).down(f.P) })
		}, binomialDown,
	},
	sendrecv.Chain: {
		func(f *closed) (float64, error) { return f.chain(0) },
		func(f *closed) (int, float64) { return chunks(f), 1 },
	},
	// Thakur et al. 2005: scattered down a tree, gathered around the ring.
	sendrecv.ScatterAllGather: {
		func(f *closed) (float64, error) {
			return f.binomial(func() float64 {
				return f.tree(f.pieces, 0).down(f.P) + f.ring(f.P-1, 0, f.P, piece(f.n, f.P), false)
			})
		},
		func(f *closed) (int, float64) { return lg(f.P) + f.P - 1, 2 * float64(f.P-1) / float64(f.P) },
	},
	sendrecv.DoubleTree: {
		twoTrees,
		func(f *closed) (int, float64) { return 2 * chunks(f), 1 },
	},
	// B(H, n) + B(q, n).
	sendrecv.Hierarchical: {
		func(f *closed) (float64, error) {
			inside, between := f.inside().tree(f.full, 0), f.between().tree(f.full, 0)
			return between.down(f.H) + inside.down(f.q), nil
		},
		func(f *closed) (int, float64) { return lg(f.q) + lg(f.H), float64(lg(f.q) + lg(f.H)) },
	},
}

var reduceFormulas = map[string]formula{
	sendrecv.Binomial: {
		func(f *closed) (float64, error) {
			return f.binomial(func() float64 { return f.tree(f.full, f.gamma).up(f.P) })
		}, once,
	},
	sendrecv.Chain: {
		func(f *closed) (float64, error) { return f.chain(f.gamma) },
		func(f *closed) (int, float64) { return chunks(f), 1 },
	},
	sendrecv.ScatterGather: {
		func(f *closed) (float64, error) {
			if f.few(fewestAround) {
				return refuse("a ring through %d hosts", f.H)
			}
			return f.binomial(func() float64 {
				return f.ring(f.P-1, f.P-1, f.P, piece(f.n, f.P), false) + f.tree(f.pieces, 0).up(f.P)
			})
		},
		func(f *closed) (int, float64) {
			return f.P, float64(f.P-1+below(f.P)) / float64(f.P)
		},
	},
	sendrecv.DoubleTree: {
		twoTrees,
		func(f *closed) (int, float64) { return 2 * chunks(f), 1 },
	},
	sendrecv.Hierarchical: {
		func(f *closed) (float64, error) {
			inside, between := f.inside().tree(f.full, f.gamma), f.between().tree(f.full, f.gamma)
			return inside.up(f.q) + between.up(f.H), nil
		}, once,
	},
}

// inside returns the collective among the ranks of one host.
func (f *closed) inside() *closed {
	one := *f
	one.P, one.H = f.q, 1
	return &one
}

// between returns the collective among one rank of each host.
func (f *closed) between() *closed {
	one := *f
	one.P, one.q = f.H, 1
	if f.H > 1 {
		one.in = f.out
	}
	return &one
}

var gatherFormulas = map[string]formula{
	// Chan et al. 2007: P-1 messages through the root's link.
	sendrecv.Direct: {
		func(f *closed) (float64, error) { return f.gathered() }, once,
	},
	sendrecv.Binomial: {
		func(f *closed) (float64, error) {
			t, err := f.binomial(func() float64 { return f.tree(f.subtree, 0).up(f.P) })
			return plus(t, err, f.n*f.copy)
		},
		func(f *closed) (int, float64) { return 1, float64(below(f.P)) },
	},
}

var scatterFormulas = map[string]formula{
	sendrecv.Direct: {
		func(f *closed) (float64, error) {
			return f.scattered(), nil
		}, each,
	},
	sendrecv.Binomial: {
		func(f *closed) (float64, error) {
			t, err := f.binomial(func() float64 { return f.tree(f.subtree, 0).down(f.P) })
			return plus(t, err, f.n*f.copy)
		},
		func(f *closed) (int, float64) { return lg(f.P), float64(f.P - 1) },
	},
}

// gathered returns the time of P-1 messages to one rank. Messages of ranks on its host come over links of their own and
// are taken first. Where ranks share NICs, the last message of a host comes late, and the rank takes messages of other
// hosts after it.
func (f *closed) gathered() (float64, error) {
	if f.c.Oversubscription > 1 {
		return refuse("messages that pass a switch at the same time are taken in another order")
	}
	near, far, u := float64(f.q-1), float64(f.P-f.q), float64(f.sharing())
	inside := f.in.o + f.in.alpha + max(near*f.n*f.in.beta+f.in.o, f.n*f.in.beta+near*f.in.o)
	if far == 0 {
		return inside + f.n*f.copy, nil
	}
	first := f.out.o + f.out.alpha
	link := far * f.n * f.out.beta
	taken := max(f.in.o+f.in.alpha+f.n*f.in.beta+near*f.in.o, first+f.n*f.out.beta) + far*f.out.o
	late := first + link*(u-1)/u + (far-float64(f.q)+1)*f.out.o
	return max(inside, first+link+f.out.o, taken, late) + f.n*f.copy, nil
}

// scattered returns the time of P-1 messages from one rank, those to its host first.
func (f *closed) scattered() float64 {
	near, far := float64(f.q-1), float64(f.P-f.q)
	inside := f.in.alpha + f.in.o + max(near*f.in.o+f.n*f.in.beta, f.in.o+near*f.n*f.in.beta)
	sent := near*f.in.o + far*f.out.o + f.n*f.copy
	if far == 0 {
		return max(inside, sent)
	}
	begins := near*f.in.o + f.out.o
	outside := begins + max((far-1)*f.out.o+f.n*f.out.beta, far*f.n*f.out.beta) + f.out.alpha + f.out.o
	return max(inside, outside, sent)
}
