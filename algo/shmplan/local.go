package shmplan

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// LocalCopy is any collective of a rank alone: the input is the result. No slot, no ticket, no flag; n bytes copied,
// none in place.
func LocalCopy(kind coll.Kind, at Place) plan.SlotPlan {
	return at.plan(Local, kind, plan.Stage{Action: plan.Local})
}
