package cluster

import "sagecomm/algo/sendrecv"

// blocks returns rounds of as many blocks as the distance, at most the blocks that are left (Bruck et al., IEEE TPDS
// 1997).
func (f *closed) blocks(gamma float64) []round {
	return f.doubling(func(d int) float64 { return f.n * float64(min(d, f.P-d)) }, gamma)
}

// growing returns the time of rounds in pairs whose messages differ in length.
func (f *closed) growing(list []round) (float64, error) {
	if f.c.Oversubscription > 1 {
		return refuse("messages that grow from round to round pass links of switches")
	}
	return f.partners(list)
}

// all returns the number of blocks of all other ranks.
func all(f *closed) float64 { return float64(f.P - 1) }

// each, logarithmic and levels return the messages and bytes of algorithms that send one message to each other rank, lg
// P messages, and messages inside hosts and then between them.
func each(f *closed) (int, float64) { return f.P - 1, all(f) }

func logarithmic(f *closed) (int, float64) { return lg(f.P), all(f) }

func levels(f *closed) (int, float64) { return f.q + f.H - 2, all(f) }

// plus adds to a time, if there is one.
func plus(t float64, err error, more float64) (float64, error) { return t + more, err }

var allGatherFormulas = map[string]formula{
	// Chan et al. 2007: P-1 steps of n.
	sendrecv.Ring: {
		func(f *closed) (float64, error) {
			if f.few(fewestAround) {
				return refuse("a ring through %d hosts", f.H)
			}
			return f.ring(f.P-1, 0, f.P, f.n, false) + f.n*f.copy, nil
		}, each,
	},
	// Thakur et al. 2005: lg P steps of n, 2 n, 4 n, ...
	sendrecv.RecursiveDoubling: {
		func(f *closed) (float64, error) {
			t, err := f.growing(f.blocks(0))
			return plus(t, err, f.n*f.copy)
		},
		func(f *closed) (int, float64) {
			p, k := 1<<(lg(f.P+1)-1), lg(f.P+1)-1
			if p == f.P {
				return k, all(f)
			}
			// Blocks of the extras, and all but one in the end.
			sum := float64(p - 1 + f.P - 1)
			for d := 1; d < p; d *= 2 {
				sum += float64(min(f.P-p, d))
			}
			return k + 1, sum
		},
	},
	// Bruck et al. 1997: the same in any group.
	sendrecv.Bruck: {
		func(f *closed) (float64, error) {
			t, err := f.circle(f.blocks(0))
			return plus(t, err, f.n*f.copy)
		}, logarithmic,
	},
	sendrecv.Direct: {func(f *closed) (float64, error) { return f.direct(0, f.n*f.copy) }, each},
	// Between hosts first, then inside: AG(H, n) + AG(q, H n).
	sendrecv.Hierarchical: {
		func(f *closed) (float64, error) {
			inside := float64(f.q-1) * f.in.message(float64(f.H)*f.n)
			t, err := f.railRing(0, 0)
			return plus(t, err, inside+f.n*f.copy)
		}, levels,
	},
}

var reduceScatterFormulas = map[string]formula{
	// Patarasuk and Yuan 2009: P-1 steps of n.
	sendrecv.Ring: {
		func(f *closed) (float64, error) {
			if f.few(fewestAround) {
				return refuse("a ring through %d hosts", f.H)
			}
			return f.ring(f.P-1, f.P-1, f.P, f.n, true), nil
		}, each,
	},
	// Thakur et al. 2005: lg P steps of ..., 2 n, n.
	sendrecv.RecursiveHalving: {
		func(f *closed) (float64, error) { return f.growing(backwards(f.blocks(f.gamma))) },
		func(f *closed) (int, float64) {
			if isPower(f.P) {
				return lg(f.P), all(f)
			}
			return lg(f.P), float64(f.P)
		},
	},
	// Träff 2024: Bruck's all-gather backwards.
	sendrecv.Bruck:  {func(f *closed) (float64, error) { return f.circle(backwards(f.blocks(f.gamma))) }, logarithmic},
	sendrecv.Direct: {func(f *closed) (float64, error) { return f.direct(f.gamma, 0) }, each},
	// Inside hosts first, then between them: RS(q, H n) + RS(H, n).
	sendrecv.Hierarchical: {
		func(f *closed) (float64, error) {
			n := float64(f.H) * f.n
			return f.railRing(float64(f.q-1)*(f.in.message(n)+n*f.gamma), f.gamma)
		}, levels,
	},
}

// railRing returns when a ring around the hosts on all rails ends that begins at a given time.
func (f *closed) railRing(begin, gamma float64) (float64, error) {
	if f.H == 1 {
		return begin, nil
	}
	if f.c.Oversubscription > float64(f.c.HostsPerSwitch) {
		return refuse("one host alone fills the links of its switch")
	}
	r := f.rails(begin)
	for range f.H - 1 {
		r.exchange(f.n, gamma, 0)
	}
	return r.end(), nil
}

// direct returns the time of P-1 messages of n that all ranks send, and then take, at once. A rank is busy with each
// message, or waits for its link inside the host, for the NIC or for the switch.
func (f *closed) direct(gamma, copied float64) (float64, error) {
	if f.few(fewestDirect) {
		return refuse("all ranks of %d hosts send to one after the other", f.H)
	}
	others, away := float64(f.P-1), float64(f.P-f.q)
	h := f.one()
	take := h.o + f.n*gamma
	busy := others * (h.o + take)
	link := others * f.n * f.in.beta
	if f.H > 1 {
		link = max(away*f.n*f.out.beta, float64(f.sharing())*away*f.n*perByte(f.c.links()[1].nic()))
		if f.c.Oversubscription > 1 {
			behind := float64(f.c.HostsPerSwitch * f.q)
			link = max(link, behind*(float64(f.P)-behind)*f.n*f.c.switchByte())
		}
	}
	return max(busy, h.o+h.alpha+link+take, h.o+h.alpha+f.n*h.beta+others*take) + copied, nil
}

var allToAllFormulas = map[string]formula{
	// Thakur et al. 2005: P-1 steps of n.
	sendrecv.Pairwise: {
		func(f *closed) (float64, error) {
			if f.uniform() {
				return float64(f.P-1)*f.one().message(f.n) + f.n*f.copy, nil
			}
			if f.few(fewestDirect) {
				return refuse("pairs of ranks of %d hosts, some of them inside", f.H)
			}
			if !f.plain() {
				return refuse("pairs of ranks that wait for different numbers of others")
			}
			r := f.rails(0)
			for d := 1; d < f.P; d++ {
				r.exchange(f.n, 0, d/f.q)
			}
			return r.end() + f.n*f.copy, nil
		}, each,
	},
	sendrecv.Direct: {func(f *closed) (float64, error) { return f.direct(0, f.n*f.copy) }, each},
	// Bruck et al. 1997: lg P steps of P/2 blocks.
	sendrecv.Bruck: {
		func(f *closed) (float64, error) {
			t, err := f.circle(f.doubling(func(d int) float64 { return f.n * float64(withBit(f.P, d)) }, 0))
			return plus(t, err, f.n*f.copy)
		},
		func(f *closed) (int, float64) {
			blocks := 0
			for d := 1; d < f.P; d *= 2 {
				blocks += withBit(f.P, d)
			}
			return lg(f.P), float64(blocks)
		},
	},
	// q-1 messages of H blocks inside hosts, H-1 of q blocks between them.
	sendrecv.Hierarchical: {
		func(f *closed) (float64, error) {
			if f.c.Oversubscription > 1 {
				return refuse("hosts of one switch go to several at once")
			}
			t := float64(f.q-1)*f.in.message(float64(f.H)*f.n) + float64(f.H)*f.n*f.copy
			if f.H > 1 {
				r := f.rails(t)
				for d := 1; d < f.H; d++ {
					r.exchange(float64(f.q)*f.n, 0, min(d, f.H-d))
				}
				t = r.end()
			}
			return t + float64(f.q)*f.n*f.copy, nil
		},
		func(f *closed) (int, float64) {
			return f.q + f.H - 2, float64((f.q-1)*f.H + (f.H-1)*f.q)
		},
	},
}

// withBit returns how many numbers below P have a bit.
func withBit(P, bit int) int { return P/(2*bit)*bit + max(0, P%(2*bit)-bit) }
