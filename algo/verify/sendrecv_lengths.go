package verify

import "sagecomm/algo/plan"

// units returns the number of units of that many bytes, the last one possibly short.
func units(bytes uint64) uint64 { return (bytes + plan.Unit - 1) / plan.Unit }

// sameUnits reports whether two lists of regions are cut alike in chunk k: they have equally many bytes, divided into
// units at the same places. Units are whole but for the last unit of a block.
func sameUnits(p *plan.SendRecvPlan, a []plan.Region, q *plan.SendRecvPlan, b []plan.Region, k uint64, l plan.Lengths) bool {
	next := func(p *plan.SendRecvPlan, regions *[]plan.Region, at *uint64) (end bool) {
		for len(*regions) > 0 {
			_, n := p.Extent((*regions)[0], k, l)
			*regions, *at = (*regions)[1:], *at+n
			if n%plan.Unit != 0 {
				return false
			}
		}
		return true
	}
	for m, n := uint64(0), uint64(0); ; {
		over, also := next(p, &a, &m), next(q, &b, &n)
		if m != n || over != also {
			return false
		}
		if over {
			return true
		}
	}
}

// longest returns the length of the longest block that some regions are a part of. Messages carry this length beside
// their own.
func longest(p *plan.SendRecvPlan, regions []plan.Region, l plan.Lengths) (longest uint64) {
	for _, r := range regions {
		longest = max(longest, p.BlockBytes(l, r))
	}
	return longest
}
