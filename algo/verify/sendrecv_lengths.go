package verify

import "sagecomm/algo/plan"

func units(bytes uint64) uint64 { return (bytes + plan.Unit - 1) / plan.Unit }

// sameUnits says whether two lists of regions are cut alike in chunk k: as many bytes, and the same ones in the same
// unit. Units are whole but for the last one of a block.
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

// longest is the length of the longest block that regions are a part of, which messages tell beside their own.
func longest(p *plan.SendRecvPlan, regions []plan.Region, l plan.Lengths) (longest uint64) {
	for _, r := range regions {
		longest = max(longest, p.BlockBytes(l, r))
	}
	return longest
}
