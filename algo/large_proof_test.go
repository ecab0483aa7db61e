package algo

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/algo/verify"
	"sagecomm/internal/coll"
)

// largeShapes are groups of more ranks than share memory anywhere, on hosts of 8, of which one may have a single rank.
func largeShapes() map[string]Shape {
	uneven := hosts(65, 8)
	uneven[64] = uneven[64][:1]
	return map[string]Shape{
		"513, the last one alone": {Size: 513, Apart: true, Hosts: uneven},
		"1000 on hosts of 8":      {Size: 1000, Apart: true, Hosts: hosts(125, 8)},
		"1024 on hosts of 8":      {Size: MaxSize, Apart: true, Hosts: hosts(MaxSize/8, 8)},
	}
}

// The plans that are chosen in the largest groups are right. Groups of up to 64 ranks prove the builders with all lengths and roots; here each plan
// carries out its collective once, with a unit for each rank. Those are left out whose proof takes seconds, or half a minute: rings of more than 513
// ranks, and blocks for each of as many.
func TestChosenPlansOfTheLargestGroupsAreRight(t *testing.T) {
	if testing.Short() {
		t.Skip("it proves plans of a thousand ranks")
	}
	for name, shape := range largeShapes() {
		began := time.Now()
		s := selectorOf(t, shape, DefaultParams(), "")
		for kind := range coll.KindCount {
			if kind.Collective() {
				s.Boundaries(kind)
			}
		}
		t.Logf("%s: all tables were made in %v", name, time.Since(began))
		for kind := range coll.KindCount {
			if !kind.Collective() {
				continue
			}
			proved := map[string]bool{}
			for _, c := range s.Boundaries(kind) {
				blocks := kind == coll.AllGather || kind == coll.ReduceScatter || kind == coll.AllToAll
				if proved[c.Algorithm] || shape.Size > 513 && (blocks || c.Algorithm == sendrecv.Ring) {
					continue
				}
				proved[c.Algorithm] = true
				t.Run(fmt.Sprintf("%s/%v/%s", name, kind, c.Algorithm), func(t *testing.T) { proveLarge(t, s, kind, c) })
			}
		}
	}
}

func proveLarge(t *testing.T, s *Selector, kind coll.Kind, c Class) {
	t.Helper()
	size, root := s.shape.Size, 0
	if kind.Rooted() {
		root = s.shape.Size / 3
	}
	plans := make([]plan.SendRecvPlan, size)
	for rank := range plans {
		var err error
		plans[rank], err = s.SendRecvPlan(kind, c, rank, root)
		require.NoError(t, err)
		require.NoError(t, plans[rank].Validate())
	}
	l := plan.Lengths{Bytes: 1}
	if plan.IsFlat(kind) {
		l.Bytes = uint64(size*plan.Unit - 3)
	}
	_, err := verify.CheckSendRecvCall(verify.SendRecvCall{Plans: plans, Lengths: l, InPlace: kind != coll.AllToAll}, 1)
	require.NoError(t, err)
}
