// Package shadow keeps shadow blocks true: shared blocks in the arena of this process that stand for ranks of other hosts, so that
// the runner reads their words and channels as it reads those of a rank of this host (docs/protocol.md, section 16).
//
// For each rank of this process and each remote rank of its group there is a [Pair]. A pump sends what the one publishes, and stores what
// comes from the other: for the reader of a shadow the pump is the writer. Messages of channels, p2p operations, goodbyes and the end of use
// cross. The failure word does not: who makes groups decides what a lost link means.
//
// There is one pump for each link, a goroutine that sleeps on a bell in the arena. Start reading at pair.go; fifo.go has p2p operations.
package shadow
