package cluster

import "slices"

// round is one exchange of each rank with the rank at a distance.
type round struct {
	distance int
	n        float64
	gamma    float64 // per byte reduced
}

// doubling returns the rounds over distances 1, 2, 4, ... below P.
func (f *closed) doubling(bytes func(distance int) float64, gamma float64) (list []round) {
	for d := 1; d < f.P; d *= 2 {
		list = append(list, round{d, bytes(d), gamma})
	}
	return list
}

// backwards returns the rounds in the other order.
func backwards(list []round) []round {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

// whole is the length of a round that moves the whole buffer.
func (f *closed) whole(int) float64 { return f.n }

// partners returns the time of rounds in pairs, for groups of powers of two. In each round either all pairs are inside
// hosts or all are between hosts. A rank that is late between hosts keeps the ranks of its host waiting afterwards.
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

// circle returns the time of rounds to the rank a distance further on, modulo P. In a round over less than a host some
// ranks cross to the next host. A message that has crossed stays inside for the rounds that are left, so on the longest
// path one of these rounds crosses, the longest one. But the last rank of a host crosses in all of them, through one
// link.
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

// fewestAround and fewestDirect are the numbers of hosts from which on formulas hold that leave out the beginning and
// the end.
const (
	fewestAround = 8
	fewestDirect = 32
)

// paired returns the largest power of two p = 2^k up to P. It refuses groups in which P - p ranks cannot hand their
// part to neighbours (Thakur et al. 2005) at a known cost.
func (f *closed) paired() (p, k int, err error) {
	if !f.uniform() {
		_, err = refuse("ranks that are paired with neighbours are on other hosts than their numbers among the others say")
	}
	k = lg(f.P+1) - 1
	return 1 << k, k, err
}

// multiplying returns the time of one round of recursive multiplying (Ruefenacht et al. 2017): k-1 messages are sent
// and as many taken, in the order of ranks. The last to arrive may be the first to be taken, and then the others wait
// in the channels. The first rank reduces each message as it takes it, the last rank reduces its own vector with the
// sum of the others in the end.
func (h hop) multiplying(k int, n, gamma float64) float64 {
	others := float64(k - 1)
	take, more := n*gamma+h.o, float64(k-2)
	t := max(others*h.o, h.o+(others-1)*n*h.beta) + h.alpha + n*h.beta
	if k == 2 {
		return t + take
	}
	return t + max(take+more*max(n*h.beta, take), max(more*n*h.beta+take, h.o+more*take)+n*gamma)
}

// radices factors P as recursive multiplying does: p is the largest product of 4, 3 and 2 up to P, list its factors.
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

// factors returns A >= B with A B = P that are closest to each other.
func factors(P int) (A, B int) {
	B = 1
	for b := 1; b*b <= P; b++ {
		if P%b == 0 {
			B = b
		}
	}
	return P / B, B
}
