// Package pgbackend is the heart of the library: groups, the order of their operations, who carries them out, how they
// fail and how that is told. It is the only package that knows all others.
//
// What it is not: it moves no data and spins on no flag (internal/runner), knows no algorithm (algo), no torch and no C
// (export, cshim).
//
// Lock order: Process.mu, then Group.mu; neither is held while the runner or a store is called in a way that blocks.
//
// Start reading at process.go, then create.go and rendezvous.go (how ranks meet), issue.go (how an operation gets its
// program), failure.go (what a failure does) and diagnose.go (who failed, and how it is worded).
package pgbackend
