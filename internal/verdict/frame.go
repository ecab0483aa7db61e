package verdict

import "fmt"

// Kind is the kind of a frame.
type Kind uint8

// The kinds.
const (
	Declare Kind = iota + 1
	Collect
	Promise
	Cause
	Lost
	Want
)

// String implements fmt.Stringer.
func (k Kind) String() string {
	if names := [...]string{"", "DECLARE", "COLLECT", "PROMISE", "CAUSE", "LOST", "WANT"}; int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprint(uint8(k))
}

// Frame is a frame between two members, which are numbered from 0.
type Frame struct {
	Kind     Kind
	From, To int    // of LOST, From is the end of the link that has noticed it
	Hops     int    // that it may still take
	Ballot   int    // of COLLECT, PROMISE and CAUSE
	Record   string // of DECLARE, COLLECT and CAUSE; of PROMISE: the verdict of its sender, if it has one
	Ends     [2]int // of LOST: the members that the link has joined
}

// Sent is a frame to be sent over the link to a member, which need not be the one that the frame is for.
type Sent struct {
	Over int
	Frame
}

// Check returns an error unless a member of a group of so many sends such a frame.
func (f Frame) Check(members int) error {
	ranks := []int{f.From, f.To}
	if f.Kind == Lost {
		ranks = append(ranks, f.Ends[:]...)
	}
	for _, i := range ranks {
		if i < 0 || i >= members {
			return fmt.Errorf("a frame of the verdict names member %d of %d", i, members)
		}
	}
	least, most, record := 0, members, true // the ballot, and whether there is a record
	switch f.Kind {
	case Declare:
		most = 0
	case Collect:
		least = 1
	case Promise:
		least, record = 1, f.Record != ""
	case Cause:
	case Want:
		most, record = 0, false
	case Lost:
		most, record = 0, false
		if f.Ends[0] == f.Ends[1] {
			return fmt.Errorf("a frame of the verdict names a link from member %d to itself", f.Ends[0])
		}
		if f.From != f.Ends[0] && f.From != f.Ends[1] {
			return fmt.Errorf("a frame of the verdict says that member %d has noticed the loss of the link from member %d to %d", f.From, f.Ends[0], f.Ends[1])
		}
	default:
		return fmt.Errorf("a frame of the verdict has the unknown kind %d", f.Kind)
	}
	switch {
	case f.Ballot < least || f.Ballot > most:
		return fmt.Errorf("a frame %v of the verdict has the ballot %d: expected %d to %d", f.Kind, f.Ballot, least, most)
	case record != (f.Record != ""):
		return fmt.Errorf("a frame %v of the verdict has a record of %d bytes", f.Kind, len(f.Record))
	case f.Kind != Lost && (f.From == f.To || f.Hops < 1 || f.Hops > members):
		return fmt.Errorf("a frame %v of the verdict from member %d to %d has %d hops left", f.Kind, f.From, f.To, f.Hops)
	}
	return nil
}
