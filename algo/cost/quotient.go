package cost

import "sagecomm/algo/plan"

// quotient stands for a group in which some ranks do the same at the same time. Of all ranks that are alike it has one,
// the player. What a player receives from another rank is what the player of that rank sends, at that time, to the rank
// that lies from it as the receiver lies from the other rank. So the play of the players alone takes exactly as long as
// that of all ranks.
type quotient struct {
	digits  []digit
	players []int   // in the order of ranks
	player  []int32 // number of each rank's player
}

// digit is a digit of a rank's number. Ranks are alike that differ in it by a multiple of step, which divides the
// radix.
type digit struct{ weight, radix, step int }

// quotientOf returns the quotient of a group, or nil if each rank would be a player.
//
// Plans that are alike along a digit (see [plan.Group.Digits]) take equally long if their messages go over links of the
// same class. So a step along a digit must lead the ranks of a host to the ranks of one host again: in a ring over hosts
// of q ranks that is a step of q, in a hypercube any step.
func quotientOf(g plan.Group, c Costs) *quotient {
	if g.Digits == nil || c.Route != nil || len(c.Links) > 1 && c.RanksPerHost == 0 {
		return nil
	}
	q := &quotient{player: make([]int32, g.Size)}
	weight := 1
	for _, radix := range g.Digits {
		d := digit{weight, radix, 1}
		for d.step < radix && (radix%d.step != 0 || len(c.Links) > 1 && !d.keepsHosts(g.Size, c.RanksPerHost)) {
			d.step++
		}
		q.digits = append(q.digits, d)
		weight *= radix
	}
	for rank := range g.Size {
		if first := q.first(rank); first < rank {
			q.player[rank] = q.player[first]
			continue
		}
		q.player[rank] = int32(len(q.players))
		q.players = append(q.players, rank)
	}
	if len(q.players) == g.Size {
		return nil
	}
	return q
}

// of returns the digit of a rank.
func (d digit) of(rank int) int { return rank / d.weight % d.radix }

// move returns a rank with something added to the digit, without carry.
func (d digit) move(rank, by int) int {
	value := d.of(rank)
	return rank + ((value+by)%d.radix-value)*d.weight
}

// keepsHosts reports whether a step leads the ranks of each host to the ranks of one host.
func (d digit) keepsHosts(size, ranksPerHost int) bool {
	for rank := range size {
		host := rank - rank%ranksPerHost
		if d.move(rank, d.step)/ranksPerHost != d.move(host, d.step)/ranksPerHost {
			return false
		}
	}
	return true
}

// first returns the lowest rank that is like another one.
func (q *quotient) first(rank int) int {
	for _, d := range q.digits {
		value := d.of(rank)
		rank -= (value - value%d.step) * d.weight
	}
	return rank
}

// sentTo returns the rank to which the player of a sender sends where the sender itself sends to a receiver.
func (q *quotient) sentTo(receiver, sender int) int {
	for _, d := range q.digits {
		value := d.of(sender)
		receiver = d.move(receiver, d.radix-(value-value%d.step))
	}
	return receiver
}
