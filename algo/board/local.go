package board

import "sagecomm/internal/coll"

// LocalCopy is any collective of a rank alone: the input is the result. No slot, no ticket, no flag; n bytes copied,
// none in place.
func LocalCopy(kind coll.Kind, at Place) Plan {
	return at.plan(LocalName, kind, Stage{Action: Local})
}
