package sendrecv

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// RecursiveDoublingAllReduce exchanges whole vectors with partners at distance 1, 2, 4, ...
//
//	extras: send the input to the next rank                              | ... | receive the result
//	others: (receive and reduce) | with r^1, r^2, r^4, ...: send, receive and reduce | (send the result)
//
// Steps: log2 P messages of n, with P rounded down to p = 2^k; other sizes pair P-p ranks with their neighbours and
// take 2 more. Per rank log2 p n sent and reduced, one n each more with an extra. log2 P (a + n b + n g) (Thakur,
// Rabenseifner, Gropp, IJHPCA 2005).
// For: short messages, where steps count and bytes do not.
func RecursiveDoublingAllReduce(at Place) plan.SendRecvPlan {
	return multiplyAllReduce(at, RecursiveDoubling, 2)
}

// RecursiveMultiplyingAllReduce has groups of up to Radix ranks exchange whole vectors in each round (Ruefenacht, Bull,
// Booth, Parallel Computing 2017: "Generalisation of recursive doubling for AllReduce").
//
//	round of radix f: send to f-1 partners | receive and reduce f-1 vectors in the order of the partners
//
// Steps: the number p of ranks is factored into factors f of at most Radix; each is one round, which sends f-1 messages
// of n. p is the largest such product up to P; the other ranks are paired as in recursive doubling. log_k P (a + (k-1)
// n b + (k-1) n g) where the messages of a round leave at the same time.
// For: short messages between ranks that can send several at once, or whose number is 3, 6, 9, 12, ...
func RecursiveMultiplyingAllReduce(at Place) plan.SendRecvPlan {
	return multiplyAllReduce(at, RecursiveMultiplying, Radix)
}

// Radix bounds the partners of one round of recursive multiplying.
const Radix = 4

// factors factors n into factors of at most radix, large ones first. It reports whether there are such factors.
func factors(n, radix int) (list []int, ok bool) {
	for f := radix; f > 1; f-- {
		for n%f == 0 {
			list = append(list, f)
			n /= f
		}
	}
	return list, n == 1
}

// multiplyAllReduce is recursive multiplying with some radix; with radix 2 it is recursive doubling.
func multiplyAllReduce(at Place, name string, radix int) plan.SendRecvPlan {
	m := newMaker(at, coll.AllReduce, name, 1)
	if at.Size == 1 {
		m.copy(m.whole(plan.Input), m.whole(plan.Output))
		return m.done()
	}
	p := at.Size
	rounds, ok := factors(p, radix)
	for !ok {
		p--
		rounds, ok = factors(p, radix)
	}
	f := pairing{at.Size, p}
	if f.extra(at.Rank) {
		m.send(at.Rank+1, m.whole(plan.Input)...)
		m.recv(at.Rank+1, m.whole(plan.Output)...)
		return m.done()
	}
	// The result of a round must not overwrite the vector that the round sends, which partners may still be reading. So
	// results go to two cells in turn, and the last one to the output, which may be the input that the first round has
	// sent. Where there is one round only, its result goes through a cell too.
	from := m.whole(plan.Input)
	cells := [2][]plan.Region{{m.cell(0, 0)}, {m.cell(1, 0)}}
	if extra := f.partner(at.Rank); extra >= 0 {
		m.recvReduceFirst(extra, from, cells[1])
		from = cells[1]
	}
	distance := 1
	for i, radix := range rounds {
		to := cells[i%2]
		if i > 0 && i == len(rounds)-1 {
			to = m.whole(plan.Output)
		}
		m.exchange(f, radix, distance, from, to)
		from = to
		distance *= radix
	}
	if len(rounds) == 1 {
		m.copy(from, m.whole(plan.Output))
	}
	if extra := f.partner(at.Rank); extra >= 0 {
		m.send(extra, m.whole(plan.Output)...)
	}
	return m.done()
}

// exchange is one round: cores that differ in one digit only reduce their vectors, all of them in the order of that
// digit.
func (m *maker) exchange(f pairing, radix, distance int, from, to []plan.Region) {
	core := f.core(m.Rank)
	mine := core / distance % radix
	rank := func(digit int) int { return f.rank(core + (digit-mine)*distance) }
	for i := 1; i < radix; i++ {
		m.send(rank((mine+i)%radix), from...)
	}
	for digit := range radix {
		switch {
		case digit == mine && digit > 1:
			m.reduce(from, to) // after the vectors of the lower digits
		case digit == mine, mine > 1 && digit == 0:
			if digit != mine {
				m.recv(rank(digit), to...)
			}
		case mine == 1 && digit == 0:
			m.recvReduceFirst(rank(digit), from, to)
		case mine == 0 && digit == 1:
			m.recvReduce(rank(digit), from, to)
		default:
			m.recvReduce(rank(digit), to, to)
		}
	}
}
