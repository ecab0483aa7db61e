package plan

// Geometry of the channels between two ranks. All processes of a group must use the same values, because the layout of
// the group's memory follows from them.
const (
	// MessageBytes is the length of the longest message, in bytes, in a group on one host.
	MessageBytes = 64 << 10
	// LongMessageBytes is that in a group of few ranks of which no two share memory: a connection takes few long messages faster than many short
	// ones.
	LongMessageBytes = 512 << 10
	// ChannelPlaces is how many messages a channel holds.
	ChannelPlaces = 4
	// ChannelsPerPair is how many channels lead from one rank to one other rank.
	ChannelsPerPair = 4
)
