package runner

/*
#include "runner.h"
*/
import "C"

import "time"

// Probe holds what memory costs on this machine, in seconds, each the least of many trials. The costs between two cores are 0 if
// this process may use one core only, or if a second thread did not run.
type Probe struct {
	Copy   float64 // per byte copied within the caches of one core
	Reduce float64 // per byte of each operand reduced
	Hop    float64 // from storing a flag until another core has seen it
	Far    float64 // per byte read that another core has just written
	Claim  float64 // per byte written that another core has just read, in addition to Copy
}

// RunProbe measures with a second thread, for a few milliseconds and at most for the given time. It returns false without memory
// or without a thread.
func RunProbe(budget time.Duration) (Probe, bool) {
	var p C.scr_probe
	if !C.scr_probe_run(C.int64_t(budget), &p) {
		return Probe{}, false
	}
	return Probe{Copy: float64(p.copy_ns) / 1e9, Reduce: float64(p.reduce_ns) / 1e9, Hop: float64(p.hop_ns) / 1e9,
		Far: float64(p.far_ns) / 1e9, Claim: float64(p.claim_ns) / 1e9}, true
}
