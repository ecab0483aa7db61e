package algo

import (
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

// Predicted is the policy that takes the algorithm with the shortest predicted time. It is the default.
const Predicted = "predicted"

// policy is a named set of rules for a group. These rules override predictions, and a user's own rules override them.
type policy struct {
	name  string
	rules func(Shape) []Rule
}

// policies lists all policies.
var policies = []policy{
	{Predicted, func(Shape) []Rule { return nil }},
	{"thresholds", thresholds},
}

// thresholds chooses the algorithm of an all_reduce by fixed lengths, whatever links cost. Below 1 MB (10^6 bytes) it
// takes recursive doubling where the number of ranks is a power of two, else a ring. From 1 MB on it takes a ring where
// all ranks are on one host, else a double tree. Libraries for devices are often set up like this, so the policy allows
// a comparison with predictions.
func thresholds(s Shape) []Rule {
	const short = 1_000_000
	rule := func(from, to uint64, algorithm string) Rule {
		r := Rule{Kind: coll.AllReduce, From: from, To: to, Algorithm: algorithm, from: "policy thresholds"}
		r.text = r.String()
		return r
	}
	below, above := sendrecv.Ring, sendrecv.DoubleTree
	if s.Size&(s.Size-1) == 0 {
		below = sendrecv.RecursiveDoubling
	}
	if s.sharesMemory() {
		above = sendrecv.Ring
	}
	return []Rule{rule(0, short-1, below), rule(short-1, NoLimit, above)}
}

// findPolicy returns the policy of a name; "" is the default.
func findPolicy(name string) (policy, bool) {
	for _, p := range policies {
		if p.name == name || name == "" && p.name == Predicted {
			return p, true
		}
	}
	return policy{}, false
}

// Policies returns the names of all policies.
func Policies() []string {
	names := make([]string, len(policies))
	for i, p := range policies {
		names[i] = p.name
	}
	return names
}
