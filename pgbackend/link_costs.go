package pgbackend

import (
	"math"

	"sagecomm/algo"
	"sagecomm/algo/cost"
	"sagecomm/internal/transport/tcp"
)

// linkCosts is what messages between two hosts cost, in whole femtoseconds. All are positive, or all are 0 where
// nothing was measured.
type linkCosts struct {
	Latency int64 `json:"latency"`
	Step    int64 `json:"step"`
	Byte    int64 `json:"byte"`
}

// foundCosts is what a probe has found out of a link.
type foundCosts struct {
	linkCosts
	Part bool `json:"part,omitempty"` // the latency alone, as the kernel knows it: step and byte are the defaults
}

// measured reports whether all three were measured.
func (f foundCosts) measured() bool { return !f.Part && f.linkCosts != linkCosts{} }

// Bounds of what is believed, in femtoseconds.
const (
	mostOfLink = femto // of a latency or step
	mostOfByte = 1e12
	femto      = 1e15 // femtoseconds of a second
)

// costsOf derives the costs of messages from those of frames. Half a round trip has a latency and the steps of both
// ends. A step takes a sixth of the round trip at most, so that a latency is left. Where something was not measured in
// its time, nothing of the bursts counts as measured: what took too long is no measure of the rest either. Where the
// network itself takes longer than the defaults say, that much is known all the same.
func costsOf(c tcp.Costs) foundCosts {
	step := min(c.Frame, c.RoundTrip/6)
	found := linkCosts{
		Latency: int64((c.RoundTrip/2 - 2*step) * femto),
		Step:    int64(step * femto),
		Byte:    int64(c.Byte * femto),
	}.believed()
	if found != (linkCosts{}) {
		return foundCosts{linkCosts: found}
	}
	usual := defaultCosts()
	usual.Latency = max(usual.Latency, int64(c.Network/2*femto)-2*usual.Step)
	if usual == defaultCosts() {
		return foundCosts{}
	}
	return foundCosts{usual, true}.believed()
}

// believed returns the costs, or none if one of them cannot be.
func (c linkCosts) believed() linkCosts {
	within := func(x, most int64) bool { return x > 0 && x <= most }
	if !within(c.Latency, mostOfLink) || !within(c.Step, mostOfLink) || !within(c.Byte, mostOfByte) {
		return linkCosts{}
	}
	return c
}

func (f foundCosts) believed() foundCosts {
	if f.linkCosts = f.linkCosts.believed(); f.linkCosts == (linkCosts{}) {
		f.Part = false
	}
	return f
}

// worst returns the higher costs of two links, one by one.
func (c linkCosts) worst(of linkCosts) linkCosts {
	return linkCosts{max(c.Latency, of.Latency), max(c.Step, of.Step), max(c.Byte, of.Byte)}
}

// link returns the costs in seconds.
func (c linkCosts) link() cost.Link {
	return cost.Link{Latency: float64(c.Latency) / femto, Step: float64(c.Step) / femto, Byte: float64(c.Byte) / femto}
}

// defaultCosts returns what messages between hosts cost if nobody has measured it.
func defaultCosts() linkCosts {
	of := func(seconds float64) int64 { return int64(math.Round(seconds * femto)) }
	n := algo.DefaultParams().Network
	return linkCosts{of(n.Latency), of(n.Step), of(n.Byte)}
}

// networkOctaves holds log2(measured/default) of latency, step and byte between hosts.
type networkOctaves [3]int8

// octaves returns what the costs are rounded to. It is equal on all processors: see octaves.
func (c linkCosts) octaves() networkOctaves {
	d := defaultCosts()
	of := func(got, by int64) int8 { return octaves(float64(got), float64(by)) }
	return networkOctaves{of(c.Latency, d.Latency), of(c.Step, d.Step), of(c.Byte, d.Byte)}
}

// scale returns the parameters with the costs of messages between hosts that the octaves say.
func (r networkOctaves) scale(p algo.Params) algo.Params {
	x := func(i int) float64 { return math.Exp2(float64(r[i])) }
	return p.ScaledNetwork(x(0), x(1), x(2))
}
