package plan

// Geometry of the channels between two ranks. It is the same in every process, because the memory of a group is laid out
// by it.
const (
	// MessageBytes is the length of the longest message, in bytes.
	MessageBytes = 64 << 10
	// ChannelPlaces is how many messages a channel holds.
	ChannelPlaces = 4
	// ChannelsPerPair is how many channels lead from one rank to one other rank.
	ChannelsPerPair = 4
)
