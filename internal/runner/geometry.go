package runner

/*
#include "p2p.h"
#include "shared_block.h"
*/
import "C"

// Numbers of channels, from shared_block.h.
const (
	ChannelPlaces = 4 // messages that a channel holds
	Channels      = 4 // channels from one rank to another
)

// Geometry is how long the messages of a group's channels may be, and how long the fifos are that lead to ranks of other hosts, in bytes. All ranks
// of a group have the same.
type Geometry struct{ Message, Fifo uint64 }

// The geometries. A group on one host has Short.
var (
	Short = Geometry{C.SCR_CHANNEL_BYTES, C.SCR_FIFO_BYTES}
	Long  = Geometry{C.SCR_LONG_CHANNEL_BYTES, C.SCR_LONG_FIFO_BYTES}
)

// ChannelBytes returns how much of the writer's arena a channel takes.
func (g Geometry) ChannelBytes() int64 {
	return C.sizeof_scr_channel + ChannelPlaces*int64(C.scr_channel_stride(C.uint64_t(g.Message)))
}

// FifoMemory returns how much memory a fifo takes.
func (g Geometry) FifoMemory() int64 { return C.sizeof_scr_fifo + int64(g.Fifo) }

// PieceBytes returns the length of the longest piece of a p2p operation.
func (g Geometry) PieceBytes() uint64 { return uint64(C.scr_piece_bytes(C.uint64_t(g.Fifo))) }
