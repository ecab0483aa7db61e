// Package pgbackend makes process groups and manages them until they are destroyed: the rendezvous of ranks, the
// program that carries out each operation, the diagnosis of failures and the texts of errors. It owns the process's
// shared memory, its progress engine and the watch over the processes of peers.
//
// It moves no data and spins on no flag; internal/runner does both. The algorithms are in algo, the C ABI is in export,
// and the interface to torch is in cshim. internal/observe shows groups to users (statistics, flight recorder, log
// lines) and reads them through the view in view.go.
//
// Any goroutine may call the exported functions. The runner calls [Process] through runner.Handler on the threads of
// its callers. Every function that C calls, and every goroutine of this package, recovers from panics (panic.go).
//
// A group is in one of the states of lifetime.go, which has the table of all moves. A call touches the memory of a
// group only between acquire and release; memory is freed only after the last release.
//
// Locks, in the order in which they are taken:
//
//  1. controlTopic.mu, held during a control exchange, for as long as its timeout. Only callers of exchange take it, and they
//     hold no other lock. An exchange ends when the group fails or is destroyed; who does that takes none of these locks.
//  2. Group.opening, held while the device lane is opened.
//  3. buckets.mu, held while operations are held, carried and proposed, which may compile a program.
//  4. Process.choosing, held while a selector is made, and Group.compiling, held while a program is made and while the table
//     of a kind is predicted (in a sync.Once of the selector). Both may be held for tenths of a second.
//  5. Process.mu, which guards the lists of groups and of peers.
//  6. memory.bells, held while an arena is made or removed.
//  7. progressEngine.mu, lifetime.mu, failureCallback.mu, Group.replacing and arbiter.mu. Nothing else is taken while one of these
//     is held.
//
// The locks of the runner are C's; internal/runner/group.h has their order. No Go lock is taken while one of them is
// held.
//
// No lock is held while a peer or a store is waited for, or while an observer is called, except that of the topic of a
// control exchange, which declares its failure when it has released that lock, and Group.opening by who opens the
// device lane in vain: in a group over several hosts it waits for the verdict, for a second at most. The locks of
// internal/shmem, of internal/observe and of internal/runner/stats.go are leaves, except for Observers.mu, which comes
// before Process.mu because observers read the groups.
//
// Start reading at process.go, then create.go and rendezvous.go (how ranks meet), issue.go (how an operation gets its
// program), peers.go (how the death of a rank is noticed), failure.go (what a failure does; over several hosts with
// arbiter.go), diagnose.go (which rank is the culprit, and how that is worded), lifetime.go (the states of a group),
// destroy.go, and control.go (how ranks agree on something later).
package pgbackend
