package cluster

import (
	"fmt"

	"sagecomm/algo/cost"
	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

// MostPlayed is the number of ranks up to which plans are played. Above, closed forms come first.
const MostPlayed = 4096

// mostBuilt bounds the steps of the plans that are built for one play, and the regions that these steps name, of all
// ranks where each rank has a plan of its own. Building that many takes some ten seconds, and 1 GB where all are steps.
const mostBuilt = 40 << 20

// stepCost is the effort to build a step, in regions.
const stepCost = 4

// mostBeats bounds the steps that are played, of all ranks and chunks, which take some ten seconds. For more than
// MostPlayed ranks the bound is a quarter of it.
const mostBeats = 96 << 20

// links returns the two classes of links: inside hosts and between them.
func (c *Cluster) links() [2]Link {
	// Both were checked when the description was parsed. With one host the second is not used.
	inside, _ := c.link("inside", c.Inside)
	between, _ := c.link("between", c.Between)
	return [2]Link{inside, between}
}

// costs returns the costs of the cluster as [cost.Play] takes them.
func (c *Cluster) costs() cost.Costs {
	links := c.links()
	width := c.RanksPerHost
	costs := cost.Costs{
		Links: []cost.Link{links[0].Cost()}, Reduce: perByte(c.Reduce), Copy: perByte(c.Copy), Capacity: c.Capacity,
	}
	if c.Hosts == 1 {
		return costs
	}
	costs.Links = append(costs.Links, links[1].Cost())
	costs.Class = func(from, to int) int {
		if from/width == to/width {
			return 0
		}
		return 1
	}
	if !c.sharesNICs() && c.Oversubscription == 1 {
		return costs
	}
	// The shared links are the uplinks of NICs, their downlinks, and then those of switches.
	nics, switches := c.Hosts*c.NICs, c.Hosts/c.HostsPerSwitch
	costs.Shared = make([]float64, 2*nics+2*switches)
	for i := range costs.Shared {
		costs.Shared[i] = perByte(links[1].nic())
		if i >= 2*nics {
			costs.Shared[i] = c.switchByte()
		}
	}
	perNIC, perSwitch := width/c.NICs, c.HostsPerSwitch*width
	costs.Route = func(from, to int, via []int) []int {
		if from/width == to/width {
			return via
		}
		up, down := from/perSwitch, to/perSwitch
		via = append(via, from/perNIC)
		if up != down && c.Oversubscription > 1 {
			via = append(via, 2*nics+up, 2*nics+switches+down)
		}
		return append(via, nics+to/perNIC)
	}
	return costs
}

// sharesNICs reports whether ranks may wait for a NIC. They never wait if each rank has a NIC to itself that is as fast as the
// rank.
func (c *Cluster) sharesNICs() bool {
	between := c.links()[1]
	return c.NICs < c.RanksPerHost || between.nic() < between.Rate
}

// switchByte returns the seconds per byte of the link from a switch to other switches.
func (c *Cluster) switchByte() float64 {
	return perByte(c.links()[1].nic()) * c.Oversubscription / float64(c.HostsPerSwitch*c.NICs)
}

// plans holds the plans of one algorithm on clusters of one shape. They are built when they are first played.
type plans struct {
	kind      coll.Kind
	algorithm string
	at        sendrecv.Place
	prepared  *cost.Prepared
	steps     int // of rank 0
	err       error
}

// plans returns the plans of an algorithm, not built yet.
func (c *Cluster) plans(kind coll.Kind, algorithm string) *plans {
	p := &plans{kind: kind, algorithm: algorithm, at: sendrecv.Place{Size: c.Ranks(), Chunk: plan.Unit}}
	if algorithm == sendrecv.Hierarchical {
		p.at.Hosts = c.hosts() // only for hierarchical algorithms, because checking hosts takes time
	}
	return p
}

// build builds the plans of all ranks, unless they are too long.
func (p *plans) build() {
	var group plan.Group
	if group, p.err = sendrecv.Plans(p.kind, p.algorithm, p.at); p.err != nil {
		return
	}
	first := group.Build(0)
	p.steps = len(first.Steps)
	built := stepCost * p.steps
	for _, step := range first.Steps {
		built += len(step.From) + len(step.To)
	}
	if !group.Turned {
		built *= p.at.Size
	}
	if built > mostBuilt {
		p.err = fmt.Errorf("plans of %d steps for each of %d ranks are too long to be built", p.steps, p.at.Size)
		return
	}
	p.prepared = cost.Prepare(group)
}

// play predicts what the plans take on a cluster, with chunks of so many bytes.
func (p *plans) play(c *Cluster, bytes uint64, chunk int) (cost.Outcome, error) {
	if p.prepared == nil && p.err == nil {
		p.build()
	}
	if p.err != nil {
		return cost.Outcome{}, p.err
	}
	chunks := max(1, (bytes+uint64(chunk)-1)/uint64(chunk))
	beats, most := float64(p.steps)*float64(p.at.Size)*float64(chunks), float64(mostBeats)
	if p.at.Size > MostPlayed {
		most /= 4
	}
	if beats > most {
		return cost.Outcome{}, fmt.Errorf("%.0f steps in all chunks, of which at most %.0f are played", beats, most)
	}
	return p.prepared.Play(chunk, bytes, c.costs())
}
