// What a plan moves.

package message

// Traffic is what one rank does in one collective.
type Traffic struct {
	Sends, Recvs   int    // messages
	Sent, Received uint64 // bytes of messages
	Reduced        uint64 // bytes combined with others
	Copied         uint64 // bytes copied inside the rank
}

// Count adds up what a plan does for a collective of these lengths, out of place.
func Count(p Plan, l Lengths) (t Traffic) {
	for k := range p.Chunks(l) {
		for _, s := range p.Steps {
			if p.idle(s, k, l) {
				continue
			}
			to := p.bytes(s.To, k, l)
			switch s.Op {
			case Send:
				t.Sends++
				t.Sent += p.bytes(s.From, k, l)
			case Recv, RecvReduce:
				t.Recvs++
				t.Received += to
			case Copy:
				t.Copied += to
			}
			if s.Op == RecvReduce || s.Op == Reduce {
				t.Reduced += to
			}
		}
	}
	return t
}
