package runner

import (
	"strings"
	"testing"

	"sagecomm/internal/coll"
)

// A program whose message is longer than a place of a channel is refused, on the sending and on the receiving side.
func TestMessagesFitIntoChannels(t *testing.T) {
	whole := func(first, count int) []Region { return []Region{{Space: Output, First: first, Count: count}} }
	channelMessage := int(Short.Message)
	for _, c := range []struct {
		name          string
		chunk, pieces int
		step          SendRecvStep
		fits          bool
	}{
		{"send", channelMessage, 1, SendRecvStep{Op: StepSend, From: whole(0, 1)}, true},
		{"send", channelMessage + 64, 1, SendRecvStep{Op: StepSend, From: whole(0, 1)}, false},
		{"recv", channelMessage, 1, SendRecvStep{Op: StepRecv, To: whole(0, 1)}, true},
		{"recv", channelMessage + 64, 1, SendRecvStep{Op: StepRecv, To: whole(0, 1)}, false},
		{"recv and reduce", channelMessage + 64, 1, SendRecvStep{Op: StepRecvReduce, From: whole(0, 1), To: whole(0, 1)}, false},
		{"several regions", channelMessage / 2, 1, SendRecvStep{Op: StepRecv, To: append(whole(0, 1), whole(0, 1)...)}, true},
		{"several regions", channelMessage/2 + 64, 1, SendRecvStep{Op: StepRecv, To: append(whole(0, 1), whole(0, 1)...)}, false},
		{"the first of two pieces, which is the longer one", 2*channelMessage + 64, 2, SendRecvStep{Op: StepRecv, To: whole(0, 1)}, false},
		{"the second of two pieces", 2*channelMessage + 64, 2, SendRecvStep{Op: StepRecv, To: whole(1, 1)}, true},
		{"a copy, which is no message", 4 * channelMessage, 1, SendRecvStep{Op: StepCopy, From: whole(0, 1), To: whole(0, 1)}, true},
	} {
		p, err := NewSendRecvProgram(SendRecvProgram{Kind: coll.Broadcast, Algorithm: "test", Size: 2, Chunk: c.chunk, Pieces: c.pieces, Sets: 2, Longest: channelMessage,
			Steps: []SendRecvStep{c.step}})
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
