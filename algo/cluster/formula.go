package cluster

import (
	"fmt"
	"math"
	"math/bits"
	"sort"

	"sagecomm/algo/plan"
	"sagecomm/internal/coll"
)

// closed evaluates closed forms for one collective. They extend those of Hockney's model, a + n b for a message of n
// bytes (Hockney 1994; Chan et al., "Collective communication: theory, practice, and experience", CCPE 2007; Thakur,
// Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005), to two classes of
// links and to NICs and switches that ranks share.
type closed struct {
	c     *Cluster
	P     int     // ranks
	q, H  int     // ranks of a host, hosts
	n     float64 // bytes, of the buffer or of a block
	in    hop
	out   hop     // between hosts
	gamma float64 // seconds per byte reduced
	copy  float64
	chunk float64 // bytes
}

// hop is a class of links.
type hop struct{ alpha, beta, o float64 }

// message returns the time of n bytes from the moment at which a rank sends them until another one has taken them.
func (h hop) message(n float64) float64 { return h.o + h.alpha + n*h.beta + h.o }

func (c *Cluster) closed(bytes uint64, chunk int) *closed {
	links := c.links()
	class := func(l Link) hop { m := l.Cost(); return hop{m.Latency, m.Byte, m.Step} }
	f := &closed{
		c: c, P: c.Ranks(), q: c.RanksPerHost, H: c.Hosts, n: float64(bytes), gamma: perByte(c.Reduce), copy: perByte(c.Copy),
		chunk: float64(chunk),
	}
	f.in, f.out = class(links[0]), class(links[0])
	if f.H > 1 {
		f.out = class(links[1])
		f.out.beta = max(f.out.beta, perByte(links[1].nic()))
	}
	return f
}

// formula holds what is known about an algorithm: the time, and the messages and bytes of the rank that sends most.
type formula struct {
	// seconds returns the time, or the reason why there is none.
	seconds func(*closed) (float64, error)
	// sends returns the number of messages, and of bytes for each byte of the buffer or block.
	sends func(*closed) (messages int, share float64)
}

// refuse returns an error that says why a closed form does not hold.
func refuse(format string, args ...any) (float64, error) {
	return 0, fmt.Errorf("no closed form: "+format, args...)
}

// lg returns the logarithm to base 2, rounded up.
func lg(n int) int { return bits.Len(uint(n - 1)) }

// isPower reports whether n is a power of two.
func isPower(n int) bool { return n&(n-1) == 0 }

// piece returns the length of the longest piece of n bytes that are cut into pieces: a multiple of the unit, or n if
// that is less.
func piece(n float64, pieces int) float64 {
	units := math.Ceil(n / plan.Unit)
	return min(n, math.Ceil(units/float64(pieces))*plan.Unit)
}

// sharing returns how many of a host's ranks share a NIC.
func (f *closed) sharing() int { return f.q / f.c.NICs }

// levels reports whether, for each distance that is a power of two, either all pairs of ranks at that distance are on
// one host or none is.
func (f *closed) levels() bool { return f.H == 1 || isPower(f.q) }

// plain reports whether nobody waits for a link that ranks share, uniform whether in addition there is one class of
// links only.
func (f *closed) plain() bool { return f.H == 1 || f.c.Oversubscription == 1 && !f.c.sharesNICs() }

func (f *closed) uniform() bool { return f.H == 1 || f.q == 1 && f.plain() }

// few reports whether there are several hosts of several ranks, but fewer hosts than the given number. Then the first and the
// last messages of each host decide the time, which no formula here models.
func (f *closed) few(hosts int) bool { return f.H > 1 && f.q > 1 && f.H < hosts }

// one returns the class of links where there is one only.
func (f *closed) one() hop {
	if f.H == 1 {
		return f.in
	}
	return f.out
}

// at returns the class of links over a distance that is a power of two.
func (f *closed) at(distance int) hop {
	if distance < f.q || f.H == 1 {
		return f.in
	}
	return f.out
}

// rails tracks the time of the ranks that share a NIC or a switch, from one exchange to the next, where all ranks of all
// hosts do the same. The first to come goes first, so ranks keep their order, and a link works for one rank while others
// wait for latencies.
type rails struct {
	*closed
	at    []float64 // of each rank
	nics  []float64 // when each is free; ranks that are equally far have different ones
	spine float64   // when the link to other switches is free
}

func (f *closed) rails(begin float64) *rails {
	nics := 1
	if f.H > 1 && f.c.Oversubscription > 1 {
		nics = f.c.NICs * f.c.HostsPerSwitch
	}
	r := &rails{closed: f, at: make([]float64, f.sharing()*nics), nics: make([]float64, nics)}
	for i := range r.at {
		r.at[i] = begin
	}
	return r
}

// exchange has each rank send n bytes to the host at that distance, take equally many and reduce them. Either all hosts
// of a switch go beyond it, or none does.
func (r *rails) exchange(n, gamma float64, hosts int) {
	nic, passes := perByte(r.c.links()[1].nic()), r.c.Oversubscription > 1 && hosts >= r.c.HostsPerSwitch
	for i, t := range r.at {
		free := &r.nics[i%len(r.nics)]
		begins := max(t+r.out.o, *free)
		*free = begins + n*nic
		arrives := max(begins+n*r.out.beta, *free)
		if passes {
			begins = max(begins, r.spine)
			r.spine = begins + n*r.c.switchByte()
			arrives = max(arrives, begins+n*r.out.beta, r.spine)
		}
		r.at[i] = arrives + r.out.alpha + r.out.o + n*gamma
	}
	sort.Float64s(r.at)
}

// end returns when the last rank is done.
func (r *rails) end() float64 { return r.at[len(r.at)-1] }

// ring returns the time of some steps around a ring of consecutive ranks, the first of which reduce what comes. One
// rank of each host sends to the next host. Either a piece travels on, over all links in turn, or it waits at a link
// between hosts. That link takes pieces one after the other; channels, and cells for what is sent on, bound how many
// are on the way.
func (f *closed) ring(steps, reducing, ranks int, n float64, cells bool) float64 {
	if steps == 0 {
		return 0
	}
	inside, between := f.in.message(n), f.out.message(n)
	if ranks <= f.q || f.H == 1 {
		return float64(steps)*inside + float64(reducing)*n*f.gamma
	}
	busy, gamma := n*f.out.beta, n*f.gamma
	if f.c.Oversubscription > 1 && ranks > f.c.HostsPerSwitch*f.q {
		busy = max(busy, n*f.c.switchByte())
	}
	crossing := float64((steps+f.q-1)/f.q) / float64(steps) // the part of the steps of a piece that cross to another host
	t, small := 0., max(busy, f.out.o+f.other())
	for _, phase := range []struct{ steps, gamma float64 }{{float64(reducing), gamma}, {float64(steps - reducing), 0}} {
		travels := crossing*between + (1-crossing)*inside + phase.gamma
		t += phase.steps * max(travels, busy, f.out.o+f.other()+phase.gamma)
	}
	reduced := gamma * float64(reducing) / float64(steps)
	t = max(t, f.queue(steps, small, between+reduced, 0, f.c.Capacity))
	if cells {
		t = max(t, f.queue(steps-1, small, between+gamma, f.other()+gamma, ringCells))
	}
	return t
}

// ringCells is the number of cells of a ring reduce-scatter of blocks, for what it sends on.
const ringCells = 2

// other returns the time that a rank with a link between hosts spends on its other link, which lies inside the host if the
// host has several ranks.
func (f *closed) other() float64 {
	if f.q == 1 {
		return f.out.o
	}
	return f.in.o
}

// queue returns when the last of some messages arrives that follow one another on one link, small apart. Each takes
// whole, and the message capacity places behind it can start only after that.
func (f *closed) queue(messages int, small, whole, after float64, capacity int) float64 {
	if messages < 1 {
		return 0
	}
	turns, rest := (messages-1)/capacity, (messages-1)%capacity
	return whole + max(float64(messages-1)*small, float64(turns)*(whole+after)+float64(rest)*small)
}

// formulas holds the closed forms of all algorithms that have one.
var formulas = map[coll.Kind]map[string]formula{
	coll.AllReduce:     allReduceFormulas,
	coll.AllGather:     allGatherFormulas,
	coll.ReduceScatter: reduceScatterFormulas,
	coll.Broadcast:     broadcastFormulas,
	coll.Reduce:        reduceFormulas,
	coll.AllToAll:      allToAllFormulas,
	coll.Gather:        gatherFormulas,
	coll.Scatter:       scatterFormulas,
	coll.Barrier:       barrierFormulas,
}
