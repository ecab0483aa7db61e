package cost

import "sagecomm/algo/plan"

// Traffic counts what one rank does in a sendrecv plan.
type Traffic struct {
	Sends, Recvs   int    // messages
	Sent, Received uint64 // bytes of messages
	Reduced        uint64 // bytes combined with others
	Copied         uint64 // bytes copied inside the rank
}

// Count counts the work of a plan for a collective of these lengths, out of place.
func Count(p plan.SendRecvPlan, l plan.Lengths) (t Traffic) {
	for k := range p.Chunks(l) {
		for i := range p.Steps {
			s := &p.Steps[i]
			bytes := p.Moved(s, k, l)
			if s.Idle(k, bytes) {
				continue
			}
			switch s.Op {
			case plan.Send:
				t.Sends++
				t.Sent += bytes
			case plan.Recv, plan.RecvReduce:
				t.Recvs++
				t.Received += bytes
			case plan.Copy:
				t.Copied += bytes
			}
			if s.Op == plan.RecvReduce || s.Op == plan.Reduce {
				t.Reduced += bytes
			}
		}
	}
	return t
}

// join adds other times times, or subtracts it if times is negative.
func (t *Traffic) join(other Traffic, times int) {
	n := uint64(times) // modulo 2^64, as the sums are
	t.Sends += times * other.Sends
	t.Recvs += times * other.Recvs
	t.Sent += n * other.Sent
	t.Received += n * other.Received
	t.Reduced += n * other.Reduced
	t.Copied += n * other.Copied
}
