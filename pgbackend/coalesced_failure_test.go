package pgbackend

import (
	"sync"
	"testing"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// A call fails with the cause of its group where one of its operations does, also if that is the last one to end and
// all others have succeeded.
func TestTheLastOperationOfACoalescedCallFails(t *testing.T) {
	async := func(kind coll.Kind, peer int) coll.Op {
		op := p2pOp(kind, peer, 0)
		op.Async = true
		return op
	}
	var ready sync.WaitGroup // the send has come, and the recv waits
	ready.Add(2)
	newWorld(t, 3).each(func(g *Group) error {
		switch g.rank {
		case 1:
			defer ready.Done()
			return call(g, p2pOp(coll.Recv, 0, 0), nil, one(make([]byte, 10)))
		case 2:
			ready.Wait()
			g.Abort("the test")
			return nil
		}
		work, f := g.IssueCoalesced([]runner.Coalesced{
			{Op: async(coll.Send, 1), In: one(payload(0, 1, 0, 10))}, // it is short, and so complete at once
			{Op: async(coll.Recv, 2), Out: one(make([]byte, 10))},
		})
		ready.Done()
		if f != nil {
			return f
		}
		return expect(end(work), coll.Aborted, "was aborted by rank 2", "the test")
	})
}
