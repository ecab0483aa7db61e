// Package pgbackend makes process groups and manages them until they are destroyed: the rendezvous of ranks, the program that
// carries out each operation, the diagnosis of failures and the texts of errors. It owns the process's shared memory, its
// progress engine and the watch over the processes of peers.
//
// It moves no data and spins on no flag; internal/runner does both. The algorithms are in algo, the C ABI is in export, and
// the interface to torch is in cshim. internal/observe shows groups to users (statistics, flight recorder, log lines) and
// reads them through the view in view.go.
//
// Any goroutine may call the exported functions. The runner calls [Process] through runner.Handler on the threads of its
// callers. Every function that C calls, and every goroutine of this package, recovers from panics (panic.go).
//
// A group is in one of the states of lifetime.go, which has the table of all moves. A call touches the memory of a group only
// between acquire and release; memory is freed only after the last release.
//
// Locks, in the order in which they are taken:
//
//  1. controlTopic.mu, held during a control exchange, for as long as its timeout. Only callers of exchange take it, and they
//     hold no other lock. An exchange ends when the group fails or is destroyed; who does that takes none of these locks.
//  2. Process.choosing, held while tables are predicted, and Group.compiling, held while a program is made. Both may be held
//     for tenths of a second.
//  3. Process.mu, which guards the lists of groups and of peers.
//  4. memory.bells, held while an arena is made or removed.
//  5. progressEngine.mu, lifetime.mu and failureCallback.mu. Nothing else is taken while one of these is held.
//
// The locks of the runner are C's; internal/runner/group.h has their order. No Go lock is taken while one of them is held.
//
// No lock is held while the runner or a store is called in a way that blocks, or while an observer is called; so an exchange
// declares its failure when it has released the lock of its topic.
//
// Start reading at process.go, then create.go and rendezvous.go (how ranks meet), issue.go (how an operation gets its
// program), peers.go (how the death of a rank is noticed), failure.go (what a failure does), diagnose.go (which rank is the
// culprit, and how that is worded), lifetime.go (the states of a group), destroy.go, and control.go (how ranks agree on
// something later).
package pgbackend
