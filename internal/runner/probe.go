package runner

/*
#include "runner.h"
*/
import "C"

import "time"

// Probe is what memory costs on this machine, in seconds: the least of many trials. What is between two cores is 0 where
// this process may use one only, or a second thread did not get to run.
type Probe struct {
	Copy   float64 // per byte copied in memory that a core has at hand
	Reduce float64 // per byte of each operand reduced
	Hop    float64 // from storing a flag until another core has seen it
	Far    float64 // per byte taken that another core has just written
	Claim  float64 // per byte stored, more than Copy, where another core has read
}

// RunProbe measures with a second thread, for a few milliseconds and so long at most. False: no memory, or no thread.
func RunProbe(budget time.Duration) (Probe, bool) {
	var p C.scr_probe
	if !C.scr_probe_run(C.int64_t(budget), &p) {
		return Probe{}, false
	}
	return Probe{Copy: float64(p.copy_ns) / 1e9, Reduce: float64(p.reduce_ns) / 1e9, Hop: float64(p.hop_ns) / 1e9,
		Far: float64(p.far_ns) / 1e9, Claim: float64(p.claim_ns) / 1e9}, true
}
