// Package shmplan builds slot plans: collectives of ranks that share memory, where each rank publishes chunks in its
// slots and reads or reduces the slots of others. Each builder makes one rank's plan from its place in the group; the
// comment above it gives the pipeline, the steps and bytes, and the formula with its source. In these comments P is the
// number of ranks and k a chunk.
//
// The package also has the list of slot algorithms. The package plan defines plans, verify proves them, and cost prices
// them. All functions are pure, and any goroutine may call them.
//
// Start reading at [TwoShotAllReduce], then at build.go, which has the list. docs/adding-an-algorithm.md explains how
// to add an algorithm.
package shmplan
