// Package shmplan builds slot plans: collectives of ranks that share memory, where each rank publishes chunks in its
// slots and reads or reduces the slots of others. Each builder makes one rank's plan from its place in the group; the
// comment above it gives the pipeline, the steps and bytes, and the formula with its source.
//
// The package owns the list of slot algorithms and nothing else: the package plan defines plans, verify proves
// them, and cost prices them. All functions are pure and any goroutine may call them.
//
// Start reading at TwoShotAllReduce in all_reduce.go, then build.go, which has the list. docs/adding-an-algorithm.md
// says how to add an algorithm.
package shmplan
