package pgbackend

import (
	"fmt"
	"slices"

	"sagecomm/fusion"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// batches returns the batch of each operation of a coalesced call, or runner.LeftOut. Sends of this rank to itself are
// paired with its recvs from itself where their caller asks for that, as NCCL does it: a call in which they do not pair
// is refused, where it would wait for ever, and so is a pair that does not match. A pair on one piece of memory is left
// out.
func (g *Group) batches(calls []runner.Call, ops []coll.Op) ([]uint32, *coll.Failure) {
	var sends, recvs []int
	for i, op := range ops {
		switch {
		case !op.Paired || op.Root != g.rank:
		case op.Kind == coll.Send:
			sends = append(sends, i)
		case op.Kind == coll.Recv:
			recvs = append(recvs, i)
		}
	}
	if len(sends) != len(recvs) {
		op := ops[append(sends, recvs...)[0]]
		return nil, g.refuse(op, fmt.Errorf("sagecomm: %s: group %q: %s has %d sends to itself and %d recvs from itself in one call: issue a send to the own rank and its recv in the same group call",
			op.Name(), g.title(), g.number(g.rank), len(sends), len(recvs)))
	}
	left := make([]bool, len(ops))
	for k, i := range sends {
		if s, r := ops[i], ops[recvs[k]]; s.Type != r.Type || s.In != r.Out {
			return nil, g.refuse(s, fmt.Errorf("sagecomm: %s: group %q: %s sends itself %d bytes of %v, and its recv for them takes %d bytes of %v: make both the same",
				s.Name(), g.title(), g.number(g.rank), s.In, s.Type, r.Out, r.Type))
		}
		same := slices.Equal(calls[i].In(), calls[recvs[k]].Out())
		left[i], left[recvs[k]] = same, same
	}
	var kept []coll.Op
	for i, op := range ops {
		if !left[i] {
			kept = append(kept, op)
		}
	}
	plan := fusion.Plan(kept)
	all := make([]uint32, len(ops))
	for i := range all {
		if all[i] = runner.LeftOut; !left[i] {
			all[i], plan = plan[0], plan[1:]
		}
	}
	return all, nil
}
