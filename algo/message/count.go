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
		for i := range p.Steps {
			s := &p.Steps[i]
			bytes := p.moves(s, k, l)
			if s.idle(k, bytes) {
				continue
			}
			switch s.Op {
			case Send:
				t.Sends++
				t.Sent += bytes
			case Recv, RecvReduce:
				t.Recvs++
				t.Received += bytes
			case Copy:
				t.Copied += bytes
			}
			if s.Op == RecvReduce || s.Op == Reduce {
				t.Reduced += bytes
			}
		}
	}
	return t
}
