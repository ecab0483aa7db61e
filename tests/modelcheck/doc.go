// Package modelcheck checks the protocol in shared memory (docs/protocol.md) by exploring every interleaving of 2 and 3
// ranks over a few collectives, sleeping, waking, failing and leaving included. It also explores which thread of a rank
// drives its collectives and p2p operations, what becomes of those that are queued when its group is taken down, how a run
// and the streams of a device hand units of a buffer over to each other, and the two lanes of a group.
//
// It holds no code that ranks run. What the runner does in C is written here once more, as small programs whose
// instructions are the accesses to shared memory, and [Explore] runs them on a machine whose memory is as weak as the
// language allows where it matters:
//
//   - Every thread has a store buffer. Stores to different words reach memory in any order, a release store not before
//     the stores in front of it. Loads go ahead of buffered stores (and see the own ones); a sequentially consistent
//     load does not go ahead of a sequentially consistent store, any other may. Read-modify-writes empty the buffer.
//   - A load that is neither acquire nor sequentially consistent lets later loads be satisfied before it, and may
//     itself be satisfied after later stores that are not release.
//   - Futexes have no time-outs: a wake-up that is lost is a deadlock here, not a delay of 50 ms. They may return for
//     no reason at any time, but a state that only that can leave counts as a deadlock.
//   - A driver that is blocked at a gate polls: its load is not satisfied before the device has written the word. The
//     streams of a device are threads; their commands are carried out in order, each write behind the copies before it.
//
// Every protection has a [Switch] that takes it out; the tests require that the checker then finds the error that it
// prevents, and that with all of them in place nothing is found.
//
// Hosts, which share no memory, are explored as state machines that exchange frames: hosts.go, links.go, calm.go, pump.go, openings.go, meetings.go
// and verdict.go.
//
// Start reading at [Scenario] and sleep.go. channels.go, engine.go, drain.go, p2p.go, gates.go, lanes.go and marks.go
// write the other programs, machine.go, execute.go and memory.go are the machine, and explore.go is the search. Tests are the
// only callers.
package modelcheck
