package plan

// Group gives the sendrecv plans of all ranks of a group for one collective, and describes how they resemble one
// another. Only Size and Build are required; the other fields make it cheap to price large groups.
type Group struct {
	Size  int
	Build func(rank int) SendRecvPlan
	// Turned reports that the plan of rank r is that of rank 0 with r added, modulo the size, to each peer and to each
	// block (to each piece, where buffers are flat). Then only the plan of rank 0 is built.
	Turned bool
	// Digits, if not nil, are the radices of a number system, the lowest digit first. The plan of rank r is then that of
	// rank 0 with r added to each peer, digit by digit without carry. All ranks therefore do the same at the same time,
	// as long as the pieces of each chunk are equally long. Where the product of the radices is less than the size, ranks
	// are alike only if the rest of their numbers is the same.
	Digits []int
	// Telling lists a few ranks whose plans suffice for bounds: among them are the rank with the longest message and the
	// rank that sends or takes the most bytes. Nil means all ranks.
	Telling []int
}
