package pgbackend

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/engine/cuda"
	"sagecomm/internal/env"
	"sagecomm/internal/runner"
)

// Question asks how an operation is carried out, in a group of this process or in a group that is only described.
type Question struct {
	Op    string `json:"op"`
	Bytes uint64 `json:"bytes"` // length of the buffer, or of each rank's block
	Group uint64 `json:"group"` // handle of a group of this process; 0: a described group of Ranks ranks on Hosts hosts
	Ranks int    `json:"ranks"`
	Hosts int    `json:"hosts"` // 0 means 1; ranks are numbered host by host
	Tune  string `json:"tune"`  // SAGECOMM_TUNE of the described group, where the environment has none
	// Device asks about tensors on devices: the answer has the engine too. A described group has this process for each
	// rank.
	Device bool `json:"device"`
	// Type and Reduce are the names of the type and of the reduction, on which it depends which engine carries out an operation on
	// devices; "" means float32 and SUM.
	Type   string `json:"dtype"`
	Reduce string `json:"reduce"`
	// Overlap, if there is one, asks in how many slices the collective and a computation hide each other best.
	Overlap *overlapQuestion `json:"overlap"`
}

// overlapQuestion describes the computation of an [algo.Overlap].
type overlapQuestion struct {
	Seconds float64 `json:"seconds"` // of the whole computation, on the slowest rank
	Parts   int     `json:"parts"`   // the most slices that it can be cut into
	Threads int     `json:"threads"` // of each rank that compute on processors of the host; 0 if a device computes
}

// overlapAnswer is an [algo.Slicing] with the numbers of processors that led to it.
type overlapAnswer struct {
	Slices     int     `json:"slices"`
	Whole      float64 `json:"whole_seconds"` // without slices
	Seconds    float64 `json:"seconds"`       // with that number of slices
	Busy       int     `json:"busy"`          // processors that compute
	Processors int     `json:"processors"`    // that the ranks may run on
	Why        string  `json:"why"`
}

// Explanation answers a [Question]: the choice, the candidates, and the reasons.
type Explanation struct {
	Op         string      `json:"op"`
	Bytes      uint64      `json:"bytes"`
	Ranks      int         `json:"ranks"`
	Hosts      int         `json:"hosts"`
	Table      string      `json:"table"` // all classes of the collective, in the grammar of SAGECOMM_TUNE
	Candidates []candidate `json:"candidates"`
	// Parameters are those of the prediction, in seconds, under the names of SAGECOMM_TUNE.
	Parameters map[string]float64 `json:"parameters"`
	Probed     *probedLinks       `json:"probed_links,omitempty"` // of a group of this process over several hosts
	Fusion     string             `json:"fusion,omitempty"`       // of an all_reduce in a group that fuses: which ones share collectives

	Overlap *overlapAnswer `json:"overlap,omitempty"`

	// Engine is the one that the group has chosen for tensors on devices, and Carrier the one that carries out such an operation, with
	// CarrierWhy where that is another one. All are empty if the question is not about devices.
	Engine     string            `json:"engine,omitempty"`
	Engines    []engineCandidate `json:"engines,omitempty"`
	Carrier    string            `json:"carrier,omitempty"`
	CarrierWhy string            `json:"carrier_why,omitempty"`
	// OnDevices has the candidates of the engine cuda, if that is the engine, and DeviceTable what it chooses for which
	// lengths.
	OnDevices   []candidate `json:"device_candidates,omitempty"`
	DeviceTable string      `json:"device_table,omitempty"`
	// Links has what the ranks know of the links between their devices, the closest first.
	Links []deviceLinks `json:"device_links,omitempty"`
}

// probedLinks is what the ranks of a group have measured of the links between hosts. Times are in seconds, the highest
// of the pairs of hosts that were measured, and before they are rounded to parameters.
type probedLinks struct {
	Latency  float64 `json:"latency,omitempty"` // the times are absent if no pair was measured
	Step     float64 `json:"step,omitempty"`
	Byte     float64 `json:"byte,omitempty"`
	Pairs    int     `json:"pairs"`
	Measured int     `json:"measured"` // of these pairs; the defaults stand for the others
	// LatencyKnown is of how many of the others the kernel knows a latency that is longer than the default, and counts.
	LatencyKnown int `json:"latency_known,omitempty"`
}

// engineCandidate is an engine of an [Explanation], which has the most preferred one first.
type engineCandidate struct {
	Engine string `json:"engine"`
	Chosen bool   `json:"chosen"`
	Forced bool   `json:"forced"`
	Why    string `json:"why"`
}

// candidate is one row of an [Explanation].
type candidate struct {
	Algorithm string  `json:"algorithm"`
	Transport string  `json:"transport"`
	Chunk     int     `json:"chunk"`
	Seconds   float64 `json:"seconds"` // predicted
	Steps     int     `json:"steps"`   // number of steps of the rank with most steps
	Bytes     uint64  `json:"bytes"`   // bytes that the busiest rank moves to or from others
	Longest   int     `json:"longest"` // longest possible chunk, in bytes
	Even      bool    `json:"even"`    // needs blocks of equal length
	Chosen    bool    `json:"chosen"`
	Forced    bool    `json:"forced"`
	Why       string  `json:"why"`
}

func candidatesOf(from []algo.Candidate) (list []candidate) {
	for _, c := range from {
		list = append(list, candidate{c.Algorithm, c.Transport.String(), c.Chunk, c.Predicted.Seconds(), c.Steps, c.Bytes, c.Longest, c.Even, c.Chosen, c.Forced, c.Why})
	}
	return list
}

// mostBytes bounds the bytes of a question: no process can address more, and sums of them fit into 64 bits.
const mostBytes = 1 << 48

// Explain answers a question. Candidates are in the order of their predicted times.
func (p *Process) Explain(q Question) (*Explanation, error) {
	kind, ok := coll.ParseKind(q.Op)
	if !ok || !kind.Collective() && !q.Device {
		return nil, fmt.Errorf("explain: %q is no collective: there are %s; of p2p operations only the engine on devices is chosen", q.Op, collectives())
	}
	op, err := q.operation(kind)
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	if q.Bytes > mostBytes {
		return nil, fmt.Errorf("explain: %d bytes: expected at most %d", q.Bytes, uint64(mostBytes))
	}
	chosen, err := p.choicesFor(q)
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	selector, shape := chosen.selector, chosen.shape
	out := &Explanation{Op: q.Op, Bytes: q.Bytes, Ranks: shape.Size, Hosts: shape.HostCount(), Candidates: []candidate{},
		Parameters: selector.Params().ByName(), Probed: chosen.probed}
	if kind.Collective() {
		out.Table, out.Candidates = selector.Describe(kind), candidatesOf(selector.Explain(kind, q.Bytes))
	}
	if kind == coll.AllReduce && chosen.fusion != fusionOff {
		out.Fusion = chosen.fusion
	}
	if q.Overlap != nil {
		if !kind.Collective() {
			return nil, fmt.Errorf("explain: overlap: %q is no collective", q.Op)
		}
		if out.Overlap, err = q.Overlap.answer(selector, kind, q.Bytes, shape, p.processorsFor(q)); err != nil {
			return nil, fmt.Errorf("explain: %w", err)
		}
	}
	if q.Device {
		out.Engine, out.Links = chosen.engines.Engine, describeLinks(selector.LinkDevices(chosen.link))
		out.Carrier, out.CarrierWhy = carrierOf(out.Engine, op)
		if d := chosen.forDevices(); d != nil && kind.Collective() {
			out.OnDevices, out.DeviceTable = candidatesOf(d.Explain(kind, q.Bytes)), d.Describe(kind)
		}
		for _, c := range chosen.engines.Candidates {
			out.Engines = append(out.Engines, engineCandidate{c.Engine, c.Chosen, c.Forced, c.Why})
		}
	}
	return out, nil
}

// operation returns the operation of a question.
func (q *Question) operation(kind coll.Kind) (op coll.Op, err error) {
	op = coll.Op{Kind: kind, Type: coll.Float32, Reduce: coll.Sum}
	if q.Type != "" {
		if op.Type, err = byName("type", q.Type, coll.Sparse); err != nil { // what Sparse stands for is no type of a tensor
			return op, err
		}
	}
	if q.Reduce == "" {
		return op, nil
	}
	if op.Reduce, err = byName("reduction", q.Reduce, coll.ReduceOpCount); err != nil {
		return op, err
	}
	if !kind.Reduces() {
		return op, fmt.Errorf("%v has no reduction", kind)
	}
	return op, coll.Defined(op.Reduce, op.Type)
}

// byName returns the value below a count that has a name.
func byName[T interface {
	~uint8
	fmt.Stringer
}](what, name string, count T) (T, error) {
	var names []string
	for v := range count {
		if v.String() == name {
			return v, nil
		}
		names = append(names, v.String())
	}
	return 0, fmt.Errorf("%q is no %s: there are %s", name, what, strings.Join(names, ", "))
}

// longestCompute bounds the time of a computation in a question, in seconds, so that sums of times fit into 64 bits.
const longestCompute = 1e6

// answer returns the number of slices for a collective beside the computation.
func (q *overlapQuestion) answer(s *algo.Selector, kind coll.Kind, bytes uint64, shape algo.Shape, processors int) (*overlapAnswer, error) {
	if !(q.Seconds >= 0 && q.Seconds <= longestCompute) || q.Parts < 1 || q.Threads < 0 || q.Threads > math.MaxInt/shape.Size {
		return nil, fmt.Errorf("overlap: %g s, %d parts, %d threads: expected 0 to %g seconds, 1 part or more, 0 threads or more",
			q.Seconds, q.Parts, q.Threads, longestCompute)
	}
	compute := time.Duration(q.Seconds * float64(time.Second))
	busy := shape.Size * q.Threads
	chosen := s.Slices(kind, bytes, algo.Overlap{Compute: compute, Parts: q.Parts, Busy: busy, Processors: processors})
	return &overlapAnswer{chosen.Slices, chosen.Whole.Seconds(), chosen.Predicted.Seconds(), busy, processors, chosen.Why}, nil
}

// processorsFor returns the number of processors that the ranks of a question's group may run on. Each host of a
// described group has those of this process.
func (p *Process) processorsFor(q Question) int {
	if g := p.Group(q.Group); q.Group != 0 && g != nil {
		return g.processors()
	}
	return len(processors()) * max(1, q.Hosts)
}

// choices are what a group has chosen, and what it has chosen from.
type choices struct {
	selector *algo.Selector
	shape    algo.Shape
	engines  algo.EngineChoice // for devices
	fusion   string            // its limits
	probed   *probedLinks      // nil: of one host, or only described
	link     func(a, b int) algo.DeviceLink
	// onDevices holds the choices of the engine cuda for the devices that the ranks use; nil: they have not told each
	// other.
	onDevices *algo.DeviceChoices
}

// forDevices returns the choices of the engine cuda, nil if the group does without it. It serves groups of a host, of
// so many ranks.
func (c choices) forDevices() *algo.DeviceChoices {
	switch {
	case c.engines.Engine != cudaEngine || c.shape.Apart || c.shape.Size > cuda.MostRanks:
		return nil
	case c.onDevices != nil:
		return c.onDevices
	}
	return expectedChoices(c.selector, c.link)
}

// choicesFor returns the choices of the group that a question is about.
func (p *Process) choicesFor(q Question) (c choices, err error) {
	if q.Group != 0 {
		g := p.Group(q.Group)
		if g == nil {
			return c, errors.New("the group was destroyed")
		}
		return choices{g.selector, g.shape(), g.engines(), g.fusionLimits(), g.probedLinks(), g.deviceLink, g.deviceChoices.Load()}, nil
	}
	shape, err := q.shape()
	if err != nil {
		return c, err
	}
	options := map[string]string{}
	if q.Tune != "" {
		options["tune"] = q.Tune
	}
	settings, err := env.Resolve(runner.Environ(), options)
	if err != nil {
		return c, err
	}
	w, err := readTuningSettings(settings)
	if err != nil {
		return c, err
	}
	var found probeResult
	if w.probe {
		found = p.probe(q.Ranks)
		if q.Ranks/max(1, q.Hosts) > len(processors()) { // assumes that the described hosts are like this one
			found[0] = max(found[0], switching)
		}
	}
	s, err := p.selector(shape, w.machine, w, found, networkOctaves{})
	if err != nil {
		return c, err
	}
	described := Group{size: q.Ranks, settings: settings, selector: s}
	described.chooseFusion()
	return choices{s, shape, p.describedEngines(q.Ranks, settings), described.fusionLimits(), nil, p.describedLink(shape), nil}, nil
}

// describedEngines returns the choice of a group whose ranks all offer what this process offers.
func (p *Process) describedEngines(ranks int, settings *env.Settings) algo.EngineChoice {
	offers := make([]algo.Offers, ranks)
	for rank := range offers {
		offers[rank] = (&Group{process: p, rank: rank, size: ranks, settings: settings}).engineOffers()
	}
	return algo.ChooseEngine(offers, env.Engine.Get(settings))
}

// shape returns the shape of the described group.
func (q *Question) shape() (algo.Shape, error) {
	shape := algo.Shape{Size: q.Ranks}
	if err := algo.ValidSize(q.Ranks); err != nil { // before a list of that length is made
		return shape, err
	}
	if q.Hosts < 0 {
		return shape, fmt.Errorf("%d hosts: expected 1 or more", q.Hosts)
	}
	if q.Hosts > 1 {
		if q.Ranks%q.Hosts != 0 {
			return shape, fmt.Errorf("%s on %s: there must be as many on each", coll.Count(q.Ranks, "rank"), coll.Count(q.Hosts, "host"))
		}
		shape.Apart = true
		for rank := range q.Ranks {
			if rank%(q.Ranks/q.Hosts) == 0 {
				shape.Hosts = append(shape.Hosts, nil)
			}
			last := &shape.Hosts[len(shape.Hosts)-1]
			*last = append(*last, rank)
		}
	}
	return shape, nil
}

// collectives returns the names of all collectives, for messages.
func collectives() string {
	var names []string
	for kind := range coll.KindCount {
		if kind.Collective() {
			names = append(names, kind.String())
		}
	}
	return strings.Join(names, ", ")
}
