package sendrecv

import (
	"fmt"
	"math"
	"math/bits"
	"testing"

	"sagecomm/algo/cost"
	"sagecomm/algo/plan"
	"sagecomm/algo/verify"
	"sagecomm/internal/coll"
)

// formula holds the counts that the literature gives for one algorithm, for P ranks and n bytes (of the buffer, or of
// each block) in one chunk that divides evenly. If ranks differ, it has the counts of the rank with the largest ones.
type formula struct {
	rounds   int // rounds of one port, see verify.CheckSendRecvCall; -n if the literature only gives the bound n
	messages int // messages sent
	sent     uint64
	reduced  uint64
}

// lg returns the logarithm to base 2, rounded up.
func lg(n int) int { return bits.Len(uint(n - 1)) }

// paired factors P into the largest power of two p = 2^k and the e extra ranks that are paired with neighbours; one is
// 1 if there are any.
func paired(P int) (p, k, e, one int) {
	k = bits.Len(uint(P)) - 1
	p = 1 << k
	return p, k, P - p, min(1, P-p)
}

// square returns the factors A >= B of P that are closest to each other.
func square(P int) (A, B int) {
	for B = int(math.Sqrt(float64(P))); P%B != 0; B-- {
	}
	return P / B, B
}

// doubled returns the number of blocks of extras that a core sends if each of k rounds doubles its blocks: the sum of
// min(e, 2^j).
func doubled(k, e int) (sum uint64) {
	for j := range k {
		sum += uint64(min(e, 1<<j))
	}
	return sum
}

// formulas holds the formula of each algorithm. Hierarchical algorithms run on hosts of A ranks.
var formulas = map[string]func(P int, n uint64) formula{
	// Patarasuk and Yuan 2009: 2 (P-1) steps, 2 (P-1)/P n sent, (P-1)/P n reduced; the law 2 G (N-1)/N of ring.
	"all_reduce/ring": func(P int, n uint64) formula {
		part := n / uint64(P) * uint64(P-1)
		return formula{2 * (P - 1), 2 * (P - 1), 2 * part, part}
	},
	// Thakur, Rabenseifner, Gropp 2005: log2 P steps of n; extras add 2 steps and n.
	"all_reduce/recursive_doubling": func(P int, n uint64) formula {
		_, k, _, one := paired(P)
		return formula{k + 2*one, k + one, uint64(k+one) * n, uint64(k+one) * n}
	},
	// Ruefenacht, Bull, Booth 2017: log_k P steps of k-1 messages, here of radix 4, 3 and 2: p = 2^a 3^b.
	"all_reduce/recursive_multiplying": func(P int, n uint64) formula {
		p, a, b := 0, 0, 0
		for i, two := 0, 1; two <= P; i, two = i+1, two*2 {
			for j, three := 0, 1; two*three <= P; j, three = j+1, three*3 {
				if two*three > p {
					p, a, b = two*three, i, j
				}
			}
		}
		partners, one := a/2*3+a%2+b*2, min(1, P-p)
		// Messages are taken in the order of ranks, not in that of their arrival: up to 2 k - 3 rounds of one port.
		return formula{-(2*partners - (a/2 + a%2 + b) + 2*one), partners + one, uint64(partners+one) * n, uint64(partners+one) * n}
	},
	// Rabenseifner 2004: 2 log2 P steps, 2 (P-1)/P n sent, (P-1)/P n reduced (the law 2 log2 N); extras add 2 steps
	// and n.
	"all_reduce/rabenseifner": func(P int, n uint64) formula {
		p, k, _, one := paired(P)
		part := n / uint64(p) * uint64(p-1)
		return formula{2*k + 2*one, 2*k + one, 2*part + uint64(one)*n, part + uint64(one)*n}
	},
	// Chan et al. 2007: two minimum spanning trees, 2 ceil(log2 P) steps of n.
	"all_reduce/binomial": func(P int, n uint64) formula {
		return formula{2 * lg(P), lg(P), uint64(lg(P)) * n, uint64(lg(P)) * n}
	},
	// Sanders, Speck, Träff 2009: an inner rank of one tree, with two children and a parent, is a leaf of the other: 4
	// halves sent, 2 reduced. 2 and 3 ranks have one child at most. Up and down is 2 log2 P
	// messages, and the messages of the other tree and of the other child go through the same port.
	"all_reduce/double_tree": func(P int, n uint64) formula {
		switch P {
		case 1:
			return formula{}
		case 2:
			return formula{-4, 2, n, n / 2}
		case 3:
			return formula{-8, 3, 3 * n / 2, n}
		}
		return formula{-(5*lg(P) + 2), 4, 2 * n, n}
	},
	// Mikami et al. 2018: 2 (A-1) + 2 (B-1) steps, bytes as a ring.
	"all_reduce/torus": func(P int, n uint64) formula {
		A, B := square(P)
		part := n / uint64(P) * uint64(P-1)
		return formula{2 * (A + B - 2), 2 * (A + B - 2), 2 * part, part}
	},
	// Cho et al. 2019: RS(A, n) + AR(B, n/A) + AG(A, n).
	"all_reduce/hierarchical": func(P int, n uint64) formula {
		A, B := square(P)
		p, k, _, one := paired(B)
		inside, rail := n/uint64(A)*uint64(A-1), n/uint64(A)
		between := rail / uint64(p) * uint64(p-1)
		return formula{2*(A-1) + 2*k + 2*one, 2*(A-1) + 2*k + one, 2*inside + 2*between + uint64(one)*rail, inside + between + uint64(one)*rail}
	},

	// Chan et al. 2007, "bucket": P-1 steps, (P-1) n, which is the least.
	"all_gather/ring": func(P int, n uint64) formula { return formula{P - 1, P - 1, uint64(P-1) * n, 0} },
	// Thakur, Rabenseifner, Gropp 2005: log2 P steps, (P-1) n. A core with an extra also sends the extra's block in each
	// round, and in the end all blocks but one to the extra.
	"all_gather/recursive_doubling": func(P int, n uint64) formula {
		p, k, e, one := paired(P)
		return formula{k + 2*one, k + one, (uint64(p-1) + doubled(k, e) + uint64(one*(P-1))) * n, 0}
	},
	// Bruck et al. 1997: ceil(log2 P) steps, (P-1) n.
	"all_gather/bruck":  func(P int, n uint64) formula { return formula{lg(P), lg(P), uint64(P-1) * n, 0} },
	"all_gather/direct": func(P int, n uint64) formula { return formula{P - 1, P - 1, uint64(P-1) * n, 0} },
	// AG(B, n) + AG(A, B n): (P-1) n.
	"all_gather/hierarchical": func(P int, n uint64) formula {
		A, B := square(P)
		return formula{A + B - 2, A + B - 2, uint64(P-1) * n, 0}
	},

	// Patarasuk and Yuan 2009: P-1 steps, (P-1) n, which is the least.
	"reduce_scatter/ring": func(P int, n uint64) formula {
		return formula{P - 1, P - 1, uint64(P-1) * n, uint64(P-1) * n}
	},
	// Thakur, Rabenseifner, Gropp 2005: log2 P steps, (P-1) n. An extra sends P blocks to its core, which reduces them, and
	// later the blocks of other extras.
	"reduce_scatter/recursive_halving": func(P int, n uint64) formula {
		p, k, e, one := paired(P)
		return formula{k + 2*one, k + one, uint64(P-1+one) * n, (uint64(p-1+one*P) + doubled(k, e)) * n}
	},
	// Träff 2024: ceil(log2 P) steps, (P-1) n.
	"reduce_scatter/bruck": func(P int, n uint64) formula {
		return formula{lg(P), lg(P), uint64(P-1) * n, uint64(P-1) * n}
	},
	"reduce_scatter/direct": func(P int, n uint64) formula {
		return formula{P - 1, P - 1, uint64(P-1) * n, uint64(P-1) * n}
	},
	// RS(A, B n) + RS(B, n): (P-1) n.
	"reduce_scatter/hierarchical": func(P int, n uint64) formula {
		A, B := square(P)
		return formula{A + B - 2, A + B - 2, uint64(P-1) * n, uint64(P-1) * n}
	},

	// Chan et al. 2007, minimum spanning tree: ceil(log2 P) steps of n.
	"broadcast/binomial": func(P int, n uint64) formula { return formula{lg(P), lg(P), uint64(lg(P)) * n, 0} },
	// P-1 steps for one chunk; each rank sends once.
	"broadcast/chain": func(P int, n uint64) formula { return formula{P - 1, min(1, P-1), uint64(min(1, P-1)) * n, 0} },
	// Thakur, Rabenseifner, Gropp 2005: log2 P + P-1 steps, 2 (P-1)/P n by the root.
	"broadcast/scatter_all_gather": func(P int, n uint64) formula {
		return formula{-(lg(P) + P - 1), lg(P) + P - 1, 2 * (n / uint64(P) * uint64(P-1)), 0}
	},
	// Sanders, Speck, Träff 2009: 2 halves sent, by the root and by inner ranks.
	"broadcast/double_tree": func(P int, n uint64) formula {
		if P == 1 {
			return formula{}
		}
		return formula{-(4*lg(P) + 2), 2, n, 0}
	},
	// B(B, n) + B(A, n).
	"broadcast/hierarchical": func(P int, n uint64) formula {
		A, B := square(P)
		return formula{lg(A) + lg(B), lg(A) + lg(B), uint64(lg(A)+lg(B)) * n, 0}
	},

	// These are broadcasts backwards: a rank that received n sends n, and a rank that sent k n reduces k n.
	"reduce/binomial": func(P int, n uint64) formula {
		return formula{lg(P), min(1, P-1), uint64(min(1, P-1)) * n, uint64(lg(P)) * n}
	},
	"reduce/chain": func(P int, n uint64) formula {
		return formula{P - 1, min(1, P-1), uint64(min(1, P-1)) * n, uint64(min(1, P-1)) * n}
	},
	// P-1 + log2 P steps; (P-1)/P n for the reduce-scatter and the largest subtree's part for the gather.
	"reduce/scatter_gather": func(P int, n uint64) formula {
		piece := n / uint64(P)
		return formula{-(P - 1 + lg(P)), P - 1 + min(1, P-1), piece * uint64(P-1+largestSubtree(P)), piece * uint64(P-1)}
	},
	"reduce/double_tree": func(P int, n uint64) formula {
		if P == 1 {
			return formula{}
		}
		return formula{-(4*lg(P) + 2), 2, n, n}
	},
	"reduce/hierarchical": func(P int, n uint64) formula {
		A, B := square(P)
		return formula{lg(A) + lg(B), min(1, P-1), uint64(min(1, P-1)) * n, uint64(lg(A)+lg(B)) * n}
	},

	// Bruck et al. 1997: P-1 steps and (P-1) n, or ceil(log2 P) steps. Step k sends the blocks whose distance has bit k:
	// P/2 log2 P n for powers of two.
	"all_to_all/pairwise": func(P int, n uint64) formula { return formula{P - 1, P - 1, uint64(P-1) * n, 0} },
	"all_to_all/direct":   func(P int, n uint64) formula { return formula{P - 1, P - 1, uint64(P-1) * n, 0} },
	"all_to_all/bruck": func(P int, n uint64) formula {
		blocks := 0
		for bit := 1; bit < P; bit *= 2 {
			blocks += P/(2*bit)*bit + max(0, P%(2*bit)-bit)
		}
		return formula{lg(P), lg(P), uint64(blocks) * n, 0}
	},
	// A-1 messages of B blocks inside hosts, B-1 of A blocks between them.
	"all_to_all/hierarchical": func(P int, n uint64) formula {
		A, B := square(P)
		return formula{A + B - 2, A + B - 2, uint64((A-1)*B+(B-1)*A) * n, 0}
	},

	// Chan et al. 2007: the root's P-1 blocks in P-1 or ceil(log2 P) messages.
	"gather/direct":   func(P int, n uint64) formula { return formula{P - 1, min(1, P-1), uint64(min(1, P-1)) * n, 0} },
	"gather/binomial": func(P int, n uint64) formula { return formula{lg(P), min(1, P-1), uint64(largestSubtree(P)) * n, 0} },
	"scatter/direct":  func(P int, n uint64) formula { return formula{P - 1, P - 1, uint64(P-1) * n, 0} },
	"scatter/binomial": func(P int, n uint64) formula {
		return formula{lg(P), lg(P), uint64(P-1) * n, 0}
	},

	// Hensgen, Finkel, Manber 1988: ceil(log2 P) steps; a tree up and down takes twice that.
	"barrier/dissemination": func(P int, _ uint64) formula { return formula{rounds: lg(P), messages: lg(P)} },
	"barrier/binomial":      func(P int, _ uint64) formula { return formula{rounds: 2 * lg(P), messages: lg(P)} },
}

// largestSubtree returns the number of ranks in the largest subtree of a child of a binomial tree's root.
func largestSubtree(P int) int {
	h := 1 << lg(P) / 2 // the last child of the root
	return max(min(h, P-h), h/2)
}

func TestStepsAndBytesAreThoseOfTheFormulas(t *testing.T) {
	for _, f := range families {
		want, ok := formulas[fmt.Sprintf("%v/%s", f.kind, f.name)]
		if !ok {
			t.Errorf("%v/%s has no formula", f.kind, f.name)
			continue
		}
		compare(t, f, want)
	}
}

// compare checks the counts of an algorithm's plans against its formula.
func compare(t *testing.T, f family, law func(P int, n uint64) formula) {
	t.Helper()
	for _, size := range sizes() {
		at := Place{Size: size, Chunk: size << lg(size) * plan.Unit}
		at.Hosts = rows(at).hosts
		n := uint64(at.Chunk)
		if f.kind == coll.Barrier {
			n = 0
		}
		for _, root := range []int{0, size - 1} {
			at.Root = root
			plans := buildAll(t, f, at)
			got := formula{}
			for _, p := range plans {
				c := cost.Count(p, plan.Lengths{Bytes: n})
				got.messages, got.sent, got.reduced = max(got.messages, c.Sends), max(got.sent, c.Sent), max(got.reduced, c.Reduced)
			}
			var err error
			if got.rounds, err = verify.CheckSendRecvCall(verify.SendRecvCall{Plans: plans, Lengths: plan.Lengths{Bytes: min(n, 1)}}, 1); err != nil {
				t.Fatal(err)
			}
			want := law(size, n)
			if bound := -want.rounds; bound > 0 && got.rounds <= bound {
				want.rounds = got.rounds
			}
			if got != want {
				t.Errorf("%v %s, %d ranks, root %d: %+v, want %+v", f.kind, f.name, size, root, got, want)
			}
			if !f.kind.Rooted() {
				break
			}
		}
	}
}
