// Closed forms of algorithms that go in rounds, in which all ranks do the same.

package cluster

import "slices"

// round is one exchange of all ranks, with the one that is so far away.
type round struct {
	distance int
	n        float64
	gamma    float64 // per byte reduced
}

// doubling are the rounds over distances 1, 2, 4, ... below P, of so many bytes each.
func (f *closed) doubling(bytes func(distance int) float64, gamma float64) (list []round) {
	for d := 1; d < f.P; d *= 2 {
		list = append(list, round{d, bytes(d), gamma})
	}
	return list
}

// backwards is the rounds in the other order.
func backwards(list []round) []round {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

// whole is all of the buffer in each round.
func (f *closed) whole(int) float64 { return f.n }

// partners are rounds in pairs (distances of which bits differ), which is for powers of two: inside hosts or between
// them, all ranks alike. Whoever is between hosts late keeps those of its host waiting afterwards.
func (f *closed) partners(lists ...[]round) (float64, error) {
	if !isPower(f.P) || !f.levels() || !f.switchesOfPowers() {
		return refuse("pairs of ranks are alike in groups, hosts and switches of powers of two only")
	}
	r := f.rails(0)
	for _, list := range lists {
		for _, x := range list {
			if x.distance >= f.q && f.H > 1 {
				r.exchange(x.n, x.gamma, x.distance/f.q)
			} else {
				r = f.rails(r.end() + f.in.message(x.n) + x.n*x.gamma)
			}
		}
	}
	return r.end(), nil
}

func (f *closed) switchesOfPowers() bool {
	return f.c.Oversubscription == 1 || isPower(f.c.HostsPerSwitch)
}

// circle are rounds to the rank a distance further on, modulo P. Over less than a host some ranks cross to the next
// one. What has crossed is inside for the rounds that are left, so that on the longest way one of these rounds does,
// the one that takes longest; but the last rank of a host sends to the next host in all of them, through one link.
func (f *closed) circle(list []round) (float64, error) {
	if f.c.Oversubscription > 1 {
		return refuse("ranks of one switch go to several at once")
	}
	if f.few(fewestAround) {
		return refuse("a circle through %d hosts", f.H)
	}
	if f.H > 1 && f.q > 1 && f.c.sharesNICs() {
		return refuse("some ranks of a host cross to the next one by the same NIC")
	}
	near, slowest, sum := 0., round{}, round{}
	for _, x := range list {
		if f.H == 1 || x.distance < f.q {
			near += f.in.message(x.n) + x.n*x.gamma
			sum.n, sum.gamma = sum.n+x.n, x.gamma
			if x.n >= slowest.n {
				slowest = x
			}
		}
	}
	if f.H > 1 && slowest.distance > 0 {
		crossing := func(n float64) float64 {
			r := f.rails(0)
			r.at = r.at[:min(len(r.at), slowest.distance)]
			r.exchange(n, slowest.gamma, 1)
			return r.end()
		}
		near = max(near-f.in.message(slowest.n)-slowest.n*slowest.gamma+crossing(slowest.n), crossing(sum.n))
	}
	r := f.rails(0)
	if len(list) > 0 && list[0].distance == 1 {
		r = f.rails(near)
	}
	for _, x := range list {
		if f.H > 1 && x.distance >= f.q {
			r.exchange(x.n, x.gamma, x.distance/f.q)
		}
	}
	if len(list) > 0 && list[0].distance > 1 {
		return r.end() + near, nil
	}
	return r.end(), nil
}

// fewestAround and fewestDirect are the hosts from which on formulas hold that leave out how it begins and ends.
const (
	fewestAround = 8
	fewestDirect = 32
)

// folds says whether groups of this size can hand what P - p ranks have to neighbours (Thakur et al. 2005) at a cost
// that is known: p = 2^k is the largest power of two up to P.
func (f *closed) paired() (p, k int, err error) {
	if !f.uniform() {
		_, err = refuse("ranks that fold into neighbours are on other hosts than their numbers among the others say")
	}
	k = lg(f.P+1) - 1
	return 1 << k, k, err
}

// multiplying is one round of recursive multiplying (Ruefenacht et al. 2017): k-1 messages out, and as many taken, in
// the order of ranks: the last to arrive may be the first to be taken, and then the others wait in the channels. The
// first rank reduces each as it is taken, the last one its own vector with the sum of the others in the end.
func (h hop) multiplying(k int, n, gamma float64) float64 {
	others := float64(k - 1)
	take, more := n*gamma+h.o, float64(k-2)
	t := max(others*h.o, h.o+(others-1)*n*h.beta) + h.alpha + n*h.beta
	if k == 2 {
		return t + take
	}
	return t + max(take+more*max(n*h.beta, take), max(more*n*h.beta+take, h.o+more*take)+n*gamma)
}

// radices takes P apart as recursive multiplying does: into the radices 4, 3 and 2 of the largest such product up to P.
func radices(P int) (p int, list []int) {
	for p = P; ; p-- {
		rest := p
		list = list[:0]
		for radix := 4; radix > 1; radix-- {
			for rest%radix == 0 {
				list = append(list, radix)
				rest /= radix
			}
		}
		if rest == 1 {
			return p, list
		}
	}
}

// factors are A >= B with A B = P that are closest to each other.
func factors(P int) (A, B int) {
	B = 1
	for b := 1; b*b <= P; b++ {
		if P%b == 0 {
			B = b
		}
	}
	return P / B, B
}
