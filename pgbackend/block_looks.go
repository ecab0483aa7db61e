package pgbackend

import "slices"

// blockLooks are looks at the blocks of external all_to_alls between this rank and those of other hosts, which no
// third rank can compare (docs/protocol.md, section 16). A look asks a few ranks, and each next look others, so that
// a group of hundreds of ranks does not send as many states at once. followRemotes() has one for its group.
type blockLooks struct {
	told uint64 // how many all_to_alls this rank had told of when open was filled
	open []int  // ranks that are to be asked, in that order; no neighbors, which each look asks
}

// askedInALook bounds how many ranks a look asks beside the neighbors.
const askedInALook = 8

// next takes the ranks out that the next look asks. New calls put all ranks behind those that are left over. A rank
// that has told its blocks since it was asked is compared without a question. One that has answered, and has made
// fewer calls, is not asked again: it asks this one when it makes them. Requires: the group is acquired.
func (r *blockLooks) next(d diagnosis) (ranks []int) {
	if told := d.run.BlocksTold(d.rank); told != r.told {
		r.told = told
		r.open = append(r.open, d.toAsk(r.open, told)...)
	}
	r.open = slices.DeleteFunc(r.open, func(rank int) bool {
		told := d.run.BlocksTold(rank) >= r.told
		if told {
			d.compareWith(rank)
		}
		return told || !d.answers(rank)
	})
	n := min(askedInALook, len(r.open))
	ranks = slices.Clone(r.open[:n])
	r.open = slices.Delete(r.open, 0, n)
	return ranks
}

// toAsk returns the ranks of other hosts that have told this one the blocks of fewer external all_to_alls, but the
// neighbors and those that are to be asked already. Of others the driver compares what they have told when it starts
// an all_to_all. The list begins behind the own rank, so the first ones are not the same for all.
func (g diagnosis) toAsk(already []int, told uint64) (list []int) {
	skip := make([]bool, g.size)
	for _, rank := range slices.Concat(already, g.neighbors()) {
		skip[rank] = true
	}
	for i := range g.size {
		if rank := (g.rank + i) % g.size; !skip[rank] && g.isRemote(rank) && g.run.BlocksTold(rank) < told {
			list = append(list, rank)
		}
	}
	return list
}

// look compares the calls of this rank with those of the neighbors and of some other ranks. It reports whether a
// neighbor has not answered, and whether ranks answer that are still to be asked. Requires: the group is acquired,
// and a vendor's library carries the calls out.
func (r *blockLooks) look(d diagnosis) (neighborMissing, more bool) {
	neighbors, some := d.neighbors(), r.next(d)
	answered := len(some)
	for _, rank := range d.compare(slices.Concat(neighbors, some)) {
		if slices.Contains(neighbors, rank) {
			neighborMissing = true
			continue
		}
		r.open = append(r.open, rank)
		answered--
	}
	return neighborMissing, answered > 0 && len(r.open) > 0
}
