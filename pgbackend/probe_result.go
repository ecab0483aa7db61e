package pgbackend

import (
	"math"
	"runtime"
	"slices"
	"time"

	"sagecomm/algo"
	"sagecomm/internal/runner"
)

// probeResult holds log2(measured/default) for the costs of a hop, a byte copied, a byte taken from another core and a
// byte reduced. Powers of two keep tables, and so the order of summation, stable on one machine: predictions are not
// much more exact.
type probeResult [4]int8

// scale returns the factors by which the result scales the default parameters.
func (f probeResult) scale() algo.Scale {
	x := func(i int) float64 { return math.Exp2(float64(f[i])) }
	return algo.Scale{Hop: x(0), Copy: x(1), Far: x(2), Reduce: x(3)}
}

// usual is what the probe measures on the machine of algo.DefaultParams, whose two processors are threads of one core:
// medians of 20 processes (docs/measured.md).
var usual = runner.Probe{Hop: 52e-9, Copy: 22e-12, Far: 26e-12, Reduce: 17e-12}

// probeBudget bounds the time that the first group of a process waits for the probe.
const probeBudget = 50 * time.Millisecond

// probe returns the result of the probe, which runs once in a process. It does not measure unless there are two
// processors for each of that many ranks: what two threads measure on one processor says nothing about memory.
func (p *Process) probe(ranks int) probeResult {
	p.probing.Do(func() {
		if runtime.NumCPU() < 2*ranks {
			return
		}
		if found, ok := runner.RunProbe(probeBudget); ok {
			p.found = probeResult{octaves(found.Hop, usual.Hop), octaves(found.Copy, usual.Copy), octaves(found.Far, usual.Far), octaves(found.Reduce, usual.Reduce)}
		}
	})
	return p.found
}

// same is the ratio up to which a measurement counts as equal to the default. Among 20 processes on one machine the hop
// varied from 0.28 to 3.8 times its median, and a byte taken from another core from 0.8 to 3.2 times.
const same = 4

// octaves returns log2(got/by), rounded; 0 for what counts as the same or was not measured. It is equal on all
// processors, because each operation on numbers stands alone: processors may contract several, and then round
// otherwise.
func octaves(got, by float64) int8 {
	if got <= 0 || got < same*by && got > by/same {
		return 0
	}
	fraction, power := math.Frexp(got / by)
	if fraction < math.Sqrt2/2 { // from 1/2 to 1
		power--
	}
	return int8(max(-mostOctaves, min(mostOctaves, power)))
}

// mostOctaves bounds a probe result: machines differ by less, so a larger value is a mistake.
const mostOctaves = 8

// agree returns the result that all ranks use: the lower median of the ranks' results, cost by cost.
func agree(list []probeResult) (out probeResult) {
	for i := range out {
		values := make([]int8, len(list))
		for rank, f := range list {
			values[rank] = max(-mostOctaves, min(mostOctaves, f[i]))
		}
		slices.Sort(values)
		out[i] = values[(len(values)-1)/2]
	}
	return out
}
