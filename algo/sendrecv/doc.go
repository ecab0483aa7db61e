// Package sendrecv builds sendrecv plans: collectives carried out by messages between pairs of ranks, through channels
// in shared memory or between hosts. Each builder makes one rank's plan from its place in the group; the comment above
// it gives the steps, the formula with its source, and the case that the algorithm is for. [Build] makes one rank's
// plan, [Plans] those of a whole group, and compose.go makes plans of smaller plans, such as hierarchical ones.
//
// The package owns the list of sendrecv algorithms and their symmetries. What a plan is stands in the package plan, its
// proof in verify, its price in cost. All functions are pure and any goroutine may call them.
//
// Start reading at all_reduce_ring.go, then build.go, which has the list. testdata/plans.txt shows all plans for 4 and 5
// ranks. docs/adding-an-algorithm.md says how to add an algorithm.
package sendrecv
