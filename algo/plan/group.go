// The plans of a whole group.

package plan

// Group holds the plans of all ranks of a group for one collective, and what is known of how they resemble one another.
// Only Size and Build are needed.
type Group struct {
	Size  int
	Build func(rank int) SendRecvPlan
	// Turned reports that the plan of rank r is that of rank 0 with r added to each peer, and to each block or, where
	// buffers are flat, to each piece, all of them modulo the size. Then only the plan of rank 0 is built.
	Turned bool
	// Digits, if not nil, are radices such that the plan of rank r is that of rank 0 with r added to each peer, when ranks
	// are written as numbers with these digits, the lowest one first, and added digit by digit without carry. All ranks
	// then do the same at the same time, as long as each chunk has pieces of equal length.
	Digits []int
	// Telling lists ranks among which there is one that sends the longest message and one that sends or takes the most.
	// Nil stands for all ranks.
	Telling []int
}
