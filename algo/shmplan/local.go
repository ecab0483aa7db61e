package shmplan

import (
	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// LocalCopy is every collective of a group of one rank: its result is its input. It uses no slot, ticket or flag and
// copies n bytes, or none in place.
func LocalCopy(kind coll.Kind, at Place) plan.SlotPlan {
	return at.plan(Local, kind, plan.Stage{Action: plan.Local})
}
