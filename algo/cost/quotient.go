package cost

import "sagecomm/algo/plan"

// opposite returns the rank that is as far behind rank 0 as another one is ahead of it.
func opposite(rank int, digits []int) int {
	behind, weight := 0, 1
	for _, radix := range digits {
		behind += (radix - rank%radix) % radix * weight
		rank, weight = rank/radix, weight*radix
	}
	return behind
}

// quotient turns rank 0's plan into the plan of a group of one that takes as long, for a group in which all ranks do
// the same at the same time. What rank 0 receives was sent when rank 0 itself sent to the rank opposite, so in the
// quotient it takes its own messages. Each pair of peer and channel becomes a channel from the rank to itself. There
// are more such pairs than channel numbers in groups of more than 256 ranks of which each sends to all others: those
// then share channels, in the same order at both ends.
func quotient(p plan.SendRecvPlan, digits []int) plan.SendRecvPlan {
	type end struct {
		peer    int
		channel uint8
	}
	numbers := map[end]int{}
	steps := make([]plan.Step, len(p.Steps))
	for i, s := range p.Steps {
		if s.Op <= plan.RecvReduce {
			e := end{s.Peer, s.Channel}
			if s.Op != plan.Send {
				e.peer = opposite(s.Peer, digits)
			}
			if _, known := numbers[e]; !known {
				numbers[e] = len(numbers)
			}
			s.Peer, s.Channel = p.Rank, uint8(numbers[e])
		}
		steps[i] = s
	}
	p.Steps = steps
	return p
}
