package cluster

import (
	"fmt"
	"math"
	"slices"

	"sagecomm/algo/plan"
	"sagecomm/algo/sendrecv"
	"sagecomm/internal/coll"
)

// Method is a way to make a prediction.
type Method string

// The methods. Either plays plans up to [MostPlayed] ranks and uses closed forms above; where plans are too long to be
// played, or there is no closed form, it uses the other method.
const (
	Either Method = ""
	Played Method = "simulated"
	Closed Method = "closed form"
)

// Prediction is the predicted performance of one algorithm.
type Prediction struct {
	Algorithm string  `json:"algorithm"`
	Method    Method  `json:"method,omitempty"`
	Seconds   float64 `json:"seconds"`
	Messages  int     `json:"messages"` // sent by the rank that sends most
	Bytes     uint64  `json:"bytes"`    // sent by the rank that sends most
	Bus       float64 `json:"bus_gb_per_s"`
	Chunk     int     `json:"chunk,omitempty"` // bytes, where the buffer goes in several chunks
	Why       string  `json:"why,omitempty"`   // why there is no prediction; then all else is 0
}

// Predict returns the prices of all algorithms of a kind, the fastest one first and those without a prediction last. bytes
// is the length of the buffer or of each block (see plan.Lengths). The root is rank 0.
func (c *Cluster) Predict(kind coll.Kind, bytes uint64, method Method) []Prediction {
	var list []Prediction
	for _, name := range sendrecv.Algorithms(kind) {
		list = append(list, c.One(kind, name, bytes, method))
	}
	slices.SortStableFunc(list, func(a, b Prediction) int {
		switch {
		case (a.Why == "") != (b.Why == ""):
			return map[bool]int{true: -1, false: 1}[a.Why == ""]
		case a.Seconds < b.Seconds:
			return -1
		case a.Seconds > b.Seconds:
			return 1
		}
		return 0
	})
	return list
}

// One prices one algorithm, with the best of the chunks that are tried.
func (c *Cluster) One(kind coll.Kind, algorithm string, bytes uint64, method Method) Prediction {
	plans := c.plans(kind, algorithm)
	best := c.one(plans, bytes, wholeChunk(bytes), method)
	if !pipelined[algorithm] {
		return best
	}
	for chunk := firstChunk(bytes); chunk >= leastChunk; chunk /= 4 {
		next := c.one(plans, bytes, chunk, method)
		if next.Why != "" || best.Why == "" && next.Seconds >= best.Seconds {
			break // smaller chunks have more steps and nothing more to overlap
		}
		next.Chunk = chunk
		best = next
	}
	return best
}

// pipelined lists the algorithms whose ranks pass one chunk on while the next one comes. In other algorithms all ranks
// are busy with a chunk until it is finished, so they use one chunk.
var pipelined = map[string]bool{sendrecv.Chain: true, sendrecv.DoubleTree: true}

// leastChunk is the smallest chunk that is tried: below, the number of steps decides.
const leastChunk = 4 << 10

// wholeChunk returns the length of a chunk that holds all bytes.
func wholeChunk(bytes uint64) int {
	return int((max(bytes, 1) + plan.Unit - 1) / plan.Unit * plan.Unit)
}

// fewestChunks is the least number of chunks that is tried where there are several: fewer make no pipeline.
const fewestChunks = 4

// firstChunk returns the largest chunk that cuts the bytes into fewestChunks or more, or 0 if there is none. A chunk is
// leastChunk times a power of four.
func firstChunk(bytes uint64) int {
	chunk := leastChunk
	for uint64(chunk)*fewestChunks*4 <= bytes {
		chunk *= 4
	}
	if uint64(chunk)*fewestChunks > bytes {
		return 0
	}
	return chunk
}

// one prices an algorithm with one chunk.
func (c *Cluster) one(of *plans, bytes uint64, chunk int, method Method) Prediction {
	p := Prediction{Algorithm: of.algorithm}
	if of.kind == coll.Barrier {
		bytes = 0
	}
	if bytes > math.MaxInt64/MostRanks {
		p.Why = fmt.Sprintf("%d bytes, expected at most %d", bytes, math.MaxInt64/MostRanks)
		return p
	}
	methods := []Method{method}
	if method == Either {
		methods = []Method{Played, Closed}
		if c.Ranks() > MostPlayed {
			methods = []Method{Closed, Played}
		}
	}
	for _, p.Method = range methods {
		err := c.by(&p, of, bytes, chunk)
		if err == nil {
			p.Why = ""
			break
		}
		if p.Why != "" {
			p.Why += "; "
		}
		p.Why += err.Error()
	}
	if p.Why != "" {
		p.Method = Either
	} else if p.Seconds > 0 {
		p.Bus = busShare(of.kind, c.Ranks()) * float64(bytes) / p.Seconds / 1e9
	}
	return p
}

// by fills in a prediction by its method.
func (c *Cluster) by(p *Prediction, of *plans, bytes uint64, chunk int) error {
	if p.Method == Played {
		o, err := of.play(c, bytes, chunk)
		p.Seconds, p.Messages, p.Bytes = o.Time.Seconds(), o.Messages, o.Sent
		return err
	}
	seconds, messages, share, err := c.closed(bytes, chunk).predict(of.kind, of.algorithm)
	p.Seconds, p.Messages, p.Bytes = seconds, messages, uint64(math.Round(share*float64(bytes)))
	return err
}

// predict evaluates the closed form of an algorithm. The rank that sends most sends that many messages, and share times the
// bytes of the buffer or block.
func (f *closed) predict(kind coll.Kind, algorithm string) (seconds float64, messages int, share float64, err error) {
	known, ok := formulas[kind][algorithm]
	if !ok {
		_, err = refuse("none is implemented")
		return 0, 0, 0, err
	}
	if f.P == 1 && (kind != coll.AllToAll || algorithm != sendrecv.Hierarchical) {
		if kind == coll.Broadcast || kind == coll.Barrier {
			return 0, 0, 0, nil
		}
		return f.n * f.copy, 0, 0, nil
	}
	if seconds, err = known.seconds(f); err != nil {
		return 0, 0, 0, err
	}
	messages, share = known.sends(f)
	return seconds, messages, share, nil
}

// busShare returns the factor by which nccl-tests multiply the bytes of a buffer or block, to compare with the rate of
// links (their doc/PERFORMANCE.md).
func busShare(kind coll.Kind, ranks int) float64 {
	others := float64(ranks - 1)
	switch kind {
	case coll.AllReduce:
		return 2 * others / float64(ranks)
	case coll.Broadcast, coll.Reduce:
		return 1
	case coll.Barrier:
		return 0
	}
	return others // (P-1)/P of a block for each rank
}
