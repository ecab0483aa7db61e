package cluster

import (
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

var allReduceFormulas = map[string]formula{
	// Patarasuk and Yuan, JPDC 2009: 2 (P-1) steps of n/P, half of them reduced.
	sendrecv.Ring: {
		func(f *closed) (float64, error) {
			if f.few(fewestAround) {
				return refuse("a ring through %d hosts", f.H)
			}
			return f.ring(2*(f.P-1), f.P-1, f.P, piece(f.n, f.P), false), nil
		},
		func(f *closed) (int, float64) { return 2 * (f.P - 1), 2 * float64(f.P-1) / float64(f.P) },
	},
	// Thakur et al. 2005: lg P steps of n; extra ranks take two more.
	sendrecv.RecursiveDoubling: {
		func(f *closed) (float64, error) {
			if !isPower(f.P) {
				return f.pairedDoubling()
			}
			t, err := f.partners(f.doubling(f.whole, f.gamma))
			if f.P == 2 {
				t += f.n * f.copy // the result of a single round goes through a cell
			}
			return t, err
		},
		func(f *closed) (int, float64) {
			steps := lg(f.P)
			return steps, float64(steps) // of p = 2^k < P ranks k, and one more
		},
	},
	// Ruefenacht, Bull, Booth, Parallel Computing 2017: rounds of k-1 messages.
	sendrecv.RecursiveMultiplying: {
		func(f *closed) (float64, error) {
			if !f.uniform() {
				return refuse("rounds of several messages inside hosts and between them")
			}
			p, list := radices(f.P)
			t := 0.
			for _, k := range list {
				t += f.one().multiplying(k, f.n, f.gamma)
			}
			if len(list) == 1 {
				t += f.n * f.copy
			}
			if p < f.P {
				return refuse("ranks that are paired with neighbours come late to rounds of several messages")
			}
			return t, nil
		},
		func(f *closed) (int, float64) {
			p, list := radices(f.P)
			sends := min(1, f.P-p)
			for _, k := range list {
				sends += k - 1
			}
			return sends, float64(sends)
		},
	},
	// Rabenseifner 2004: lg P steps of n/2, n/4, ..., and back.
	sendrecv.Rabenseifner: {
		func(f *closed) (float64, error) {
			if !isPower(f.P) {
				p, _, err := f.paired()
				t := 2*f.one().message(f.n) + f.n*f.gamma
				for d := 1; d < p; d *= 2 {
					n := f.n / float64(2*d)
					t += 2*f.one().message(n) + n*f.gamma
				}
				return t, err
			}
			return f.partners(f.halves())
		},
		func(f *closed) (int, float64) {
			p, one := 1<<(lg(f.P+1)-1), 0
			if p < f.P {
				one = 1
			}
			return 2*lg(p) + one, 2*float64(p-1)/float64(p) + float64(one)
		},
	},
	// Chan et al. 2007: up a tree and down.
	sendrecv.Binomial: {
		func(f *closed) (float64, error) {
			return f.binomial(func() float64 { return f.tree(f.full, f.gamma).up(f.P) + f.tree(f.full, 0).down(f.P) })
		},
		func(f *closed) (int, float64) { return lg(f.P), float64(lg(f.P)) },
	},
	sendrecv.DoubleTree: {
		twoTrees,
		// Sanders et al. 2009: four halves, two of them for each chunk.
		func(f *closed) (int, float64) {
			switch chunks := int(max(1, (f.n+f.chunk-1)/f.chunk)); f.P {
			case 2:
				return 2 * chunks, 1
			case 3:
				return 3 * chunks, 1.5
			default:
				return 4 * chunks, 2
			}
		},
	},
	// Mikami et al. 2018; Ying et al. 2018: a ring reduce-scatter along rows, a ring along columns, and back.
	sendrecv.Torus: {
		func(f *closed) (float64, error) {
			A, B := factors(f.P)
			row, part := piece(f.n, A), piece(f.n, f.P)
			along := f.ring(A-1, A-1, A, row, false) + f.ring(A-1, 0, A, row, false)
			if B == 1 {
				return along, nil
			}
			switch {
			case f.H == 1:
				return along + 2*float64(B-1)*f.in.message(part) + float64(B-1)*part*f.gamma, nil
			case f.q > 1 && A < fewestAround*f.q:
				return refuse("rings through %s", coll.Count(A/f.q, "host"))
			case A%f.q != 0:
				return refuse("rows of %d ranks begin inside hosts", A)
			case f.c.Oversubscription > 1 && A/f.q%f.c.HostsPerSwitch != 0:
				return refuse("rows of %d ranks begin behind switches that others end behind", A)
			}
			r := f.rails(along)
			for i := range 2 * (B - 1) {
				gamma := f.gamma
				if i >= B-1 {
					gamma = 0
				}
				r.exchange(part, gamma, A/f.q)
			}
			return r.end(), nil
		},
		func(f *closed) (int, float64) {
			A, B := factors(f.P)
			return 2 * (A + B - 2), 2 * float64(f.P-1) / float64(f.P)
		},
	},
	// Cho et al., MLSys 2019: RS(q, n) + AR(H, n/q) + AG(q, n), with Rabenseifner between hosts.
	sendrecv.Hierarchical: {
		func(f *closed) (float64, error) { return f.hierarchicalAllReduce() },
		func(f *closed) (int, float64) {
			p, one := 1<<(lg(f.H+1)-1), 0
			if p < f.H {
				one = 1
			}
			inside, rail := 2*float64(f.q-1)/float64(f.q), 1/float64(f.q)
			return 2*(f.q-1) + 2*lg(p) + one, inside + rail*(2*float64(p-1)/float64(p)+float64(one))
		},
	},
}

// twoTrees refuses: the two trees of a double tree keep each other's ranks waiting, and Sanders et al. 2009 only give a
// bound. The plans are short, so they can be played for any group.
func twoTrees(*closed) (float64, error) { return refuse("two trees keep each other's ranks waiting") }

// pairedDoubling returns the time of recursive doubling for sizes that are no powers of two. Ranks with an extra come
// to the rounds a message late. In the end ranks without an extra are late as well, and ranks with one hand the result
// back. A rank is made late in the rounds by others with an extra, which it meets only at distances below their number.
func (f *closed) pairedDoubling() (float64, error) {
	p, k, err := f.paired()
	h, late := f.one(), lg(f.P-p)
	message, stay := h.message(f.n)+f.n*f.gamma, max(2*h.o+f.n*f.gamma, f.n*h.beta)
	t := max(float64(k+1)*message, float64(late+1)*message+float64(k-late)*stay+h.message(f.n))
	if p == 2 {
		t += f.n * f.copy
	}
	return t, err
}

// halves returns the rounds of halving the buffer over distances 1, 2, 4, ... and of doubling it back.
func (f *closed) halves() []round {
	half := func(d int) float64 { return f.n / float64(2*d) }
	return append(f.doubling(half, f.gamma), backwards(f.doubling(half, 0))...)
}

func (f *closed) hierarchicalAllReduce() (float64, error) {
	n := piece(f.n, f.q)
	inside := float64(f.q - 1)
	reduced, gathered := inside*(f.in.message(n)+n*f.gamma), inside*f.in.message(n)
	if f.H == 1 {
		return reduced + gathered, nil
	}
	if !f.switchesOfPowers() {
		return refuse("pairs of hosts are alike in switches of powers of two only")
	}
	p := 1 << (lg(f.H+1) - 1)
	if p < f.H && f.c.Oversubscription > 1 {
		return refuse("hosts that are paired with neighbours are behind other switches than their numbers among the others say")
	}
	r := f.rails(reduced)
	if p < f.H {
		r.exchange(n, f.gamma, 1)
	}
	for d := 1; d < p; d *= 2 {
		r.exchange(n/float64(2*d), f.gamma, d)
	}
	for d := p / 2; d > 0; d /= 2 {
		r.exchange(n/float64(2*d), 0, d)
	}
	if p < f.H {
		r.exchange(n, 0, 1)
	}
	return r.end() + gathered, nil
}

var barrierFormulas = map[string]formula{
	// Hensgen, Finkel, Manber, IJPP 1988.
	sendrecv.Dissemination: {
		func(f *closed) (float64, error) {
			return f.circle(f.doubling(func(int) float64 { return 0 }, 0))
		},
		func(f *closed) (int, float64) { return lg(f.P), 0 },
	},
	sendrecv.Binomial: {
		func(f *closed) (float64, error) {
			none := func(int) float64 { return 0 }
			return f.binomial(func() float64 { return f.tree(none, 0).up(f.P) + f.tree(none, 0).down(f.P) })
		},
		func(f *closed) (int, float64) { return lg(f.P), 0 },
	},
}
