// Package tcp makes the links between processes that share no memory (docs/protocol.md, section 16). A link is one control connection
// and a few data connections, which all groups of the two processes share. Frames of a connection arrive in order.
//
// A [Node] is this process's end of all links: it listens, dials and admits, and notices when a link is lost. A [Link] sends frames.
// What comes goes to the [Receiver], which checks each header against what it has posted, before a byte of the payload is read, and
// says where the payload goes.
//
// The package knows what a frame may look like and nothing of what frames mean: groups, channels, credits and the verdict are its
// user's. It keeps no frame and makes no link again that was lost.
//
// Any goroutine may call it. Start reading at frame.go, then node.go (how links come about), conn.go (who reads), read.go and send.go (frames) and
// health.go (how a loss is noticed).
package tcp
