package sendrecv

import (
	"testing"

	"sagecomm/algo/plan"
	"sagecomm/algo/verify"
)

// The lags of a double tree prevent a deadlock. A chunk takes 2d messages up and down a tree, but with lags of 2d, two ranks
// that are each other's parents, one in either tree, block each other over channels that hold one message. Larger channels
// would avoid that too.
func TestADoubleTreeNeedsItsLags(t *testing.T) {
	const size = 48
	plans := make([]plan.SendRecvPlan, size)
	for rank := range plans {
		plans[rank] = DoubleTreeAllReduce(Place{Rank: rank, Size: size, Chunk: 2 * plan.Unit})
		for i := range plans[rank].Steps {
			s := &plans[rank].Steps[i]
			if s.Lag > 0 {
				s.Lag = 2 * double(rank, size)[s.Channel].depth
			}
			s.After = nil
		}
		plan.AddDependencies(&plans[rank])
	}
	l := plan.Lengths{Bytes: 40 * 2 * plan.Unit}
	rejected(t, verify.CheckSendRecv(plans, l), "deadlock: ")
	rejected(t, verify.CheckSendRecv(plans, plan.Lengths{Bytes: 2 * 2 * plan.Unit}), "deadlock: rank 18, chunk 1, step 6 (send) waits for room in channel 0 to rank 17; ")
	if _, err := verify.CheckSendRecvCall(verify.SendRecvCall{Plans: plans, Lengths: l}, 2); err != nil {
		t.Error(err)
	}
}
