package cost

// Memory holds the costs of slots in shared memory, in seconds.
type Memory struct {
	Hop    float64 // from storing a flag until a rank that waits for it has seen it
	Flag   float64 // looking at one peer's flag that is already set
	Step   float64 // carrying out a stage on a chunk, without the cost of its bytes
	Copy   float64 // per byte copied between memories in this core's caches
	Far    float64 // per byte read from a slot that another core has just written
	Claim  float64 // per byte stored into a slot that other cores have read since the last store, on top of Copy
	Reduce float64 // per byte of each operand of a reduction, on top of Far for operands in others' slots
	Store  float64 // per byte stored to each target of a reduction after the first
}

// DefaultMemory returns the costs of a server processor (Sapphire Rapids class, two virtual cores, 2 MiB of second-level
// cache each). They were fitted to the time of all_reduce on two pinned ranks, less the time in a group of one rank:
//
//	bytes                8     8 KiB   16 KiB   64 KiB   256 KiB   1 MiB
//	one-shot  measured   1.6   3.4     6.3      11.7     43        172    us
//	          predicted  0.9   2.2     3.5      11.6     44        176
//	two-shot  measured   1.8   4.5     5.1      8.2      28        108    us
//	          predicted  1.5   2.3     3.1      8.1      29        115
//
// Predicted times hold for the machine that the parameters come from. On a processor with a faster path between cores
// (Zen 5: 1 MiB in 25 us) all terms shrink, so the choices stay close while the times do not. Memory beyond the caches
// is not modelled: from 4 MiB on it adds about a quarter, to all candidates alike. If ranks share a core, a hop takes until
// the kernel has switched between them; the caller must set Hop to that time.
func DefaultMemory() Memory {
	return Memory{
		Hop:    250e-9,
		Flag:   25e-9,
		Step:   300e-9,
		Copy:   20e-12,
		Far:    55e-12,
		Claim:  48e-12,
		Reduce: 20e-12,
		Store:  14e-12,
	}
}

// femtoMemory is Memory in femtoseconds.
type femtoMemory struct{ hop, flag, step, copy, far, claim, reduce, store Femto }

func (l Memory) femto() femtoMemory {
	return femtoMemory{toFemto(l.Hop), toFemto(l.Flag), toFemto(l.Step), toFemto(l.Copy), toFemto(l.Far), toFemto(l.Claim),
		toFemto(l.Reduce), toFemto(l.Store)}
}

// price returns the time of some traffic.
func (l femtoMemory) price(t SlotTraffic) Femto {
	return Femto(t.Steps)*l.step + Femto(t.Flags)*l.flag +
		Femto(t.Near)*l.copy + Femto(t.Far)*l.far + Femto(t.Claims)*l.claim + Femto(t.Reduced)*l.reduce + Femto(t.Stored)*l.store
}
