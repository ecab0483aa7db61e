package verdict

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// net is a group on a network that loses what was on the way when a link is lost, and a store. What happens next is drawn.
type net struct {
	t        *testing.T
	r        *rand.Rand
	m        []*Member
	dead     []bool
	stopped  []bool
	left     []bool      // it has left the group, and does nothing any more
	said     [][]bool    // by member and member: the farewell of the other one has gone out over their link
	farewell [][]bool    // by member and member: it has seen that the other one has left
	cut      [][]bool    // by pair: nothing is carried any more
	noticed  [][]bool    // by member and member
	q        [][][]Frame // on the way, by sender and the member at the other end of the link

	cause     string
	storeDead bool
	storeCut  []bool
	slow      []bool // the store answers the member too late
	noStore   []bool // the member holds the store as lost
	quiet     bool   // a lost link is no failure: the ranks at its other end have left
	batches   bool   // several things may happen before a member does what it has to do
	undone    []bool // it has something to do, perhaps
	claim     []string
	answer    []string
	verdict   []string
	log       []string
	sent      int // frames
	lost      int // of these, LOST
}

// newNet returns a group without faults. watched reports whether there is a link between two members, nil: there are all.
func newNet(t *testing.T, seed uint64, members int, watched func(i, j int) bool) *net {
	n := &net{t: t, r: rand.New(rand.NewPCG(seed, 1))}
	square := func() (s [][]bool) {
		for range members {
			s = append(s, make([]bool, members))
		}
		return s
	}
	n.dead, n.stopped = make([]bool, members), make([]bool, members)
	n.storeCut, n.slow, n.noStore = make([]bool, members), make([]bool, members), make([]bool, members)
	n.quiet = n.r.IntN(3) == 0
	n.undone = make([]bool, members)
	n.claim, n.answer, n.verdict = make([]string, members), make([]string, members), make([]string, members)
	n.cut, n.noticed, n.said, n.farewell, n.left = square(), square(), square(), square(), make([]bool, members)
	for i := range members {
		n.m = append(n.m, New(i, members, watched))
		n.q = append(n.q, make([][]Frame, members))
		for j := range members {
			if watched != nil && i != j && !watched(i, j) {
				n.cut[i][j], n.noticed[i][j] = true, true
			}
		}
	}
	return n
}

func (n *net) note(format string, args ...any) { n.log = append(n.log, fmt.Sprintf(format, args...)) }

// do lets a member do what it has to do, now or later.
func (n *net) do(i int) {
	if n.undone[i] = n.batches && n.r.IntN(4) == 0; !n.undone[i] {
		n.doNow(i)
	}
}

func (n *net) doNow(i int) {
	n.undone[i] = false
	next := n.m[i].Next()
	if next.Verdict != "" {
		require.Empty(n.t, n.verdict[i], "one verdict")
		n.verdict[i] = next.Verdict
		n.note("member %d has verdict %q", i, next.Verdict)
	}
	for _, s := range next.Send {
		require.NotEqual(n.t, i, s.Over)
		if !n.cut[i][s.Over] {
			n.q[i][s.Over] = append(n.q[i][s.Over], s.Frame)
			if n.sent++; s.Kind == Lost {
				n.lost++
			}
		}
	}
	if next.Claim != "" && !n.storeCut[i] {
		n.claim[i] = next.Claim
	}
}

func (n *net) lose(i, j int) {
	if i != j {
		n.cut[i][j], n.cut[j][i] = true, true
	}
}

// leave lets a member leave. Its farewell goes over links that are not cut.
func (n *net) leave(i int) {
	n.note("member %d leaves", i)
	n.left[i], n.answer[i], n.verdict[i] = true, "", ""
	for k := range n.m {
		n.said[k][i] = n.said[k][i] || !n.cut[k][i]
	}
}

// faults are what may break, each once or more.
func (n *net) fault() {
	i, j := n.r.IntN(len(n.m)), n.r.IntN(len(n.m))
	switch n.r.IntN(9) {
	case 0:
		n.note("member %d dies", i)
		n.dead[i] = true
		n.answer[i], n.verdict[i] = "", ""
		for k := range n.m {
			n.lose(i, k)
		}
	case 1, 2:
		n.note("link %d-%d is cut", i, j)
		n.lose(i, j)
	case 3:
		n.note("host %d is cut off", i)
		for k := range n.m {
			n.lose(i, k)
		}
	case 4:
		n.note("the store dies")
		n.storeDead = true
	case 5:
		n.note("the way of %d to the store is cut", i)
		n.storeCut[i], n.claim[i] = true, ""
	case 7:
		if !n.left[i] {
			n.leave(i)
		}
	case 6:
		n.note("the store is slow for %d", i)
		n.slow[i] = true
	default:
		n.note("member %d is stopped", i)
		n.stopped[i] = true
	}
}

// steps returns everything that may happen next.
func (n *net) steps() (list []func()) {
	for i, m := range n.m {
		if n.claim[i] != "" && !n.storeDead {
			list = append(list, func() {
				if n.cause == "" {
					n.cause = n.claim[i]
				}
				if n.claim[i] = ""; !n.storeCut[i] && !n.dead[i] && !n.left[i] {
					n.answer[i] = n.cause
				}
			})
		}
		if n.dead[i] || n.left[i] {
			continue
		}
		if n.stopped[i] {
			list = append(list, func() { n.stopped[i] = false })
			continue
		}
		if n.undone[i] {
			list = append(list, func() { n.doNow(i) })
		}
		if n.answer[i] != "" {
			list = append(list, func() {
				n.note("member %d hears of the store", i)
				m.Answer(n.answer[i])
				n.answer[i] = ""
				n.do(i)
			})
		}
		if (n.storeDead || n.storeCut[i] || n.slow[i]) && !n.noStore[i] {
			list = append(list, func() {
				n.note("member %d has no store", i)
				n.noStore[i] = true
				m.StoreLost()
				n.do(i)
			})
		}
		for j := range n.m {
			if len(n.q[j][i]) > 0 {
				list = append(list, func() {
					f := n.q[j][i][0]
					n.q[j][i] = n.q[j][i][1:]
					n.note("member %d gets %+v over %d", i, f, j)
					require.NoError(n.t, m.Take(f, j))
					n.do(i)
				})
			}
			if n.said[i][j] && !n.noticed[i][j] && !n.farewell[i][j] && j != i && m.Unsettled() { // else nobody looks
				list = append(list, func() {
					n.note("member %d sees that %d has left", i, j)
					n.farewell[i][j] = true
					m.Left(j)
					n.do(i)
				})
			}
			if n.cut[i][j] && !n.noticed[i][j] {
				list = append(list, func() {
					n.note("member %d has lost its link to %d", i, j)
					n.noticed[i][j] = true
					n.q[j][i] = nil
					m.LinkLost(j)
					if !n.quiet {
						m.Declare(fmt.Sprintf("link %d-%d", i, j))
					}
					n.do(i)
				})
			}
		}
	}
	return list
}

// reached returns the members to which a path of links leads.
func (n *net) reached(i int) map[int]bool {
	to := map[int]bool{i: true}
	for at := []int{i}; len(at) > 0; at = at[1:] {
		for j := range n.m {
			if !n.cut[at[0]][j] && !n.left[j] && !to[j] {
				to[j] = true
				at = append(at, j)
			}
		}
	}
	return to
}

// check requires the failure contract: survivors have one cause, unless neither a path of links nor the store joins them. A store that answers a
// member too late joins it to nobody.
func (n *net) check() {
	for i := range n.m {
		reached := n.reached(i)
		store := func(of map[int]bool) bool {
			for k := range of {
				if !n.storeDead && !n.storeCut[k] && !n.noStore[k] && !n.dead[k] && !n.left[k] {
					return true
				}
			}
			return false
		}
		for j := range i {
			if n.verdict[i] != "" && n.verdict[j] != "" && n.verdict[i] != n.verdict[j] && (reached[j] || store(reached) && store(n.reached(j))) {
				require.Fail(n.t, "two causes", "member %d: %q, member %d: %q\n%v", i, n.verdict[i], j, n.verdict[j], n.log)
			}
		}
	}
}

// play lets faults and everything else happen in an order that is drawn, until nothing happens any more.
func (n *net) play(seed uint64) {
	faults := 1 + n.r.IntN(4)
	n.batches = n.r.IntN(2) == 0
	for i := range n.m {
		if n.r.IntN(3) == 0 {
			n.m[i].Declare(fmt.Sprintf("own %d", i))
			n.do(i)
		}
	}
	for {
		list := n.steps()
		if faults > 0 && (len(list) == 0 || n.r.IntN(8) == 0) {
			faults--
			n.fault()
			continue
		}
		if len(list) == 0 {
			break
		}
		list[n.r.IntN(len(list))]()
		n.check()
	}
	for i, m := range n.m {
		if m.declared != "" && !n.dead[i] && !n.left[i] {
			require.NotEmpty(n.t, n.verdict[i], "seed %d: member %d waits for ever\n%v", seed, i, n.log)
		}
		for j := range n.reached(i) {
			if n.verdict[j] != "" && !n.dead[i] && !n.dead[j] && !n.left[i] {
				require.NotEmpty(n.t, n.verdict[i], "seed %d: member %d has not heard of the verdict\n%v", seed, i, n.log)
			}
		}
	}
}
