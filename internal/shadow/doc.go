// Package shadow keeps shadow blocks true: shared blocks in private memory of this process that stand for ranks of other hosts, so that
// the runner reads their words, channels and fifos as it reads those of a rank of this host (docs/protocol.md, section 16).
//
// For each rank of this process and each remote rank of its group there is a [Pair]. A pump sends what the one publishes, and stores what
// comes from the other: for the reader of a shadow the pump is the writer. Messages of channels, p2p operations, entries of control exchanges,
// goodbyes and the end of use cross, and the state of a rank when it is asked for. The failure word does not: who makes groups decides what a
// lost link means, and takes the frames of the verdict.
//
// There is one pump for each link, a goroutine that sleeps on a bell. Start reading at pair.go, then receive.go; fifo.go has p2p operations, and
// control.go what crosses on the control connection. In large groups links are made at first need: meeting.go.
package shadow
