package plan

// Geometry of the channels between two ranks, the same in every process.
const (
	// FlowMessage is the most bytes of a message.
	MessageBytes = 64 << 10
	// FlowPlaces is how many messages a channel holds.
	ChannelPlaces = 4
	// FlowChannels is how many channels lead from one rank to one other.
	ChannelsPerPair = 4
)
