package runner

import (
	"strings"
	"testing"

	"sagecomm/internal/coll"
)

// A message that is longer than a place of a flow is refused, by who would send it and by who would read beyond the place.
func TestMessagesFitIntoFlows(t *testing.T) {
	whole := func(first, count int) []Region { return []Region{{Space: Output, First: first, Count: count}} }
	for _, c := range []struct {
		name          string
		chunk, pieces int
		step          MessageStep
		fits          bool
	}{
		{"send", FlowMessage, 1, MessageStep{Op: Send, From: whole(0, 1)}, true},
		{"send", FlowMessage + 64, 1, MessageStep{Op: Send, From: whole(0, 1)}, false},
		{"recv", FlowMessage, 1, MessageStep{Op: Recv, To: whole(0, 1)}, true},
		{"recv", FlowMessage + 64, 1, MessageStep{Op: Recv, To: whole(0, 1)}, false},
		{"recv and reduce", FlowMessage + 64, 1, MessageStep{Op: RecvReduce, From: whole(0, 1), To: whole(0, 1)}, false},
		{"several regions", FlowMessage / 2, 1, MessageStep{Op: Recv, To: append(whole(0, 1), whole(0, 1)...)}, true},
		{"several regions", FlowMessage/2 + 64, 1, MessageStep{Op: Recv, To: append(whole(0, 1), whole(0, 1)...)}, false},
		{"the first of two pieces, which is the longer one", 2*FlowMessage + 64, 2, MessageStep{Op: Recv, To: whole(0, 1)}, false},
		{"the second of two pieces", 2*FlowMessage + 64, 2, MessageStep{Op: Recv, To: whole(1, 1)}, true},
		{"a copy, which is no message", 4 * FlowMessage, 1, MessageStep{Op: Copy, From: whole(0, 1), To: whole(0, 1)}, true},
	} {
		p, err := NewMessageProgram(MessageProgram{Kind: coll.Broadcast, Algorithm: "test", Size: 2, Chunk: c.chunk, Pieces: c.pieces, Sets: 2,
			Steps: []MessageStep{c.step}})
		switch {
		case err == nil:
			p.Free()
			if !c.fits {
				t.Errorf("%s, chunk of %d: was taken", c.name, c.chunk)
			}
		case c.fits || !strings.Contains(err.Error(), "at most 65536"):
			t.Errorf("%s, chunk of %d: %v", c.name, c.chunk, err)
		}
	}
}
