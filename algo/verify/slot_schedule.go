package verify

import (
	"fmt"
	"math/rand/v2"
)

// schedule is an order in which ranks take steps.
type schedule struct {
	name    string
	order   func() []int
	burst   func(place int) int // largest number of steps of the rank at that place of the order
	restart bool                // begin the order again after a step of any rank but the first
}

// asFarAsItGoes is more steps than any rank has.
const asFarAsItGoes = 1 << 30

// schedules returns some schedules: one step of each rank in turn; the first, the middle or the last rank as far ahead as it
// gets; and random ones. Large groups get fewer, because one would be enough, see [CheckSlotCalls].
func schedules(size int) []schedule {
	inTurn := func(first int) func() []int {
		order := make([]int, size)
		for i := range order {
			order[i] = (first + i) % size
		}
		return func() []int { return order }
	}
	list := []schedule{{name: "round-robin", order: inTurn(0), burst: func(int) int { return 1 }}}
	ahead, seeds := []int{0, size / 2, size - 1}, uint64(2)
	if size > 16 {
		ahead, seeds = ahead[2:], 1
	}
	for i, first := range ahead {
		if i > 0 && first <= i-1 {
			continue // in small groups this schedule is in the list already
		}
		list = append(list, schedule{
			name: fmt.Sprintf("rank %d ahead", first), order: inTurn(first), restart: true,
			burst: func(place int) int {
				if place == 0 {
					return asFarAsItGoes
				}
				return 1
			},
		})
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, uint64(size)))
		list = append(list, schedule{
			name: fmt.Sprintf("random order with seed %d", seed), burst: func(int) int { return 1 + rng.IntN(4) },
			order: func() []int { return rng.Perm(size) },
		})
	}
	return list
}
