package plan

// Group holds the sendrecv plans of all ranks of a group for one collective, and what is known about how they resemble
// one another. Only Size and Build are required; the other fields make prices of large groups cheap.
type Group struct {
	Size  int
	Build func(rank int) SendRecvPlan
	// Turned reports that the plan of rank r is that of rank 0 with r added to each peer, and to each block or, where
	// buffers are flat, to each piece, all of them modulo the size. Then only the plan of rank 0 is built.
	Turned bool
	// Digits, if not nil, are radices such that the plan of rank r is that of rank 0 with r added to each peer, where
	// ranks are written as numbers with these digits, the lowest one first, and added digit by digit without carry. All
	// ranks then do the same at the same time, as long as the pieces of each chunk are equally long.
	Digits []int
	// Telling lists ranks of which one sends the longest message and one sends or takes the most. Nil means all ranks.
	Telling []int
}
