// Package cost counts and prices plans: how many steps, messages and bytes a plan has, and how long a collective takes
// for given costs of memory and links. It builds no plan and chooses none.
//
// For slot plans, [CountSlots] and [PriceSlots] answer for one length and a [SlotPricer] for many; [Memory] holds the
// costs. For sendrecv plans, [Count] counts, [Play] plays all ranks in time, and a [Pricer] answers for many lengths at
// a fraction of a play; [Costs] holds the costs. Prices are whole femtoseconds, so that ranks on different processors
// come to the same choice.
//
// All functions are pure; pricers keep what they have played and serve one goroutine at a time. Start reading at
// slot_pricer.go and play_costs.go.
package cost
