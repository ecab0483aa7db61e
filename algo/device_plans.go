package algo

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"sagecomm/algo/cost"
	"sagecomm/algo/plan"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

const (
	// shortestOnDevices is the shortest length at which plans on devices are compared. Shorter ones get the class of this one.
	shortestOnDevices = 256
	// slotsOnDevices is the number of slots of the longest length that is priced. Longer ones get the algorithm of that length.
	slotsOnDevices = 16
	// finestOnDevices is the part of a slot that the shortest chunk takes, in groups of at most fewOnDevices ranks. Larger groups would
	// take a second to price all of them.
	finestOnDevices = 4
	fewOnDevices    = 16
)

// DeviceChoices are the choices for collectives whose slots lie in the memory of the ranks' devices. They follow from the links between
// the devices alone, which all ranks know alike. Any goroutine may use them.
type DeviceChoices struct {
	size, slot int
	links      DeviceLinks
	taking     []int // by rank: how many ranks use its device

	mu     sync.Mutex
	tables map[rooted][]Class // made at the first use
}

// rooted is a kind with its root, for the links of a root may be others than those of another one.
type rooted struct {
	kind coll.Kind
	root int
}

// ChooseOnDevices returns the choices for slots of slot bytes each, by what the links between the devices cost. between returns the link of
// the ranks a and b, where a < b, from data that is the same on all ranks.
func (s *Selector) ChooseOnDevices(slot int, between func(a, b int) DeviceLink) *DeviceChoices {
	return NewDeviceChoices(s.shape.Size, slot, s.LinkDevices(between))
}

// NewDeviceChoices returns the choices of a group of ranks, whose slots are slot bytes long.
func NewDeviceChoices(size, slot int, links DeviceLinks) *DeviceChoices {
	d := &DeviceChoices{size: size, slot: slot, links: links, tables: map[rooted][]Class{}}
	for a := range size {
		taking := 1
		for b := range size {
			if a != b && links.Kinds[links.Costs.Class(a, b)].Class == SameDevice {
				taking++
			}
		}
		d.taking = append(d.taking, taking)
	}
	return d
}

// Choose returns the class of a length: of the buffer, or of the longest block. All ranks with the same arguments get the same one.
func (d *DeviceChoices) Choose(kind coll.Kind, root int, bytes uint64) Class {
	table := d.table(kind, root)
	return table[sort.Search(len(table)-1, func(i int) bool { return bytes <= table[i].UpTo })]
}

func (d *DeviceChoices) table(kind coll.Kind, root int) []Class {
	key := rooted{kind, 0}
	if kind.Rooted() && len(d.links.Kinds) > 1 { // if all links are alike, so are all roots
		key.root = root
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	table, made := d.tables[key]
	if !made {
		table = d.predict(key)
		d.tables[key] = table
	}
	return table
}

// predict prices all classes at powers of two. Each range between two powers gets the class of its longest length.
func (d *DeviceChoices) predict(key rooted) []Class {
	classes := d.classes(key.kind)
	if len(classes) == 1 {
		return classes
	}
	var pricers []*cost.DeviceSlots
	for _, c := range classes {
		pricers = append(pricers, d.pricer(key, c))
	}
	var table []Class
	for upTo, longest := uint64(shortestOnDevices), uint64(slotsOnDevices*d.slot); upTo <= longest; upTo *= 2 {
		best, least := Class{}, cost.Never
		for i, c := range classes {
			if c.Chunk < d.slot && (upTo <= uint64(c.Chunk) || upTo == longest) {
				continue // it is one chunk with whole slots too; and long ones have the chunks with the fewest commands
			}
			if t := pricers[i].Price(upTo); best.Algorithm == "" || t < least {
				best, least = c, t
			}
		}
		best.UpTo = upTo
		if upTo == longest {
			best.UpTo = NoLimit
		}
		if n := len(table); n > 0 && table[n-1].same(best) {
			table[n-1].UpTo = best.UpTo
		} else {
			table = append(table, best)
		}
	}
	return table
}

// classes returns all classes that a kind can have, the simplest first. Where each rank has a part of a slot for every other rank,
// that part is a chunk.
func (d *DeviceChoices) classes(kind coll.Kind) (list []Class) {
	add := func(algorithm string, chunk int) {
		list = append(list, Class{UpTo: NoLimit, Algorithm: algorithm, Transport: Slots, Slots: plan.LargeSlots, Chunk: chunk})
	}
	switch kind {
	case coll.Barrier, coll.ReduceScatter, coll.Scatter, coll.AllToAll:
		if d.size > 1 {
			add(shmplan.OneShot, d.slot)
			return list
		}
	}
	if d.size == 1 {
		add(shmplan.Local, d.slot)
		return list
	}
	finest := d.slot
	if d.size <= fewOnDevices {
		finest /= finestOnDevices
	}
	for _, name := range shmplan.Algorithms(kind) {
		for chunk := d.slot; chunk >= finest; chunk /= 2 {
			add(name, chunk)
		}
	}
	return list
}

// pricer returns the pricer of a class.
func (d *DeviceChoices) pricer(key rooted, c Class) *cost.DeviceSlots {
	plans := make([]plan.SlotPlan, d.size)
	for rank := range plans {
		plans[rank] = shmplan.Make(key.kind, c.Algorithm, shmplan.Place{Rank: rank, Size: d.size, Root: key.root, Slots: c.Slots, Chunk: c.Chunk})
	}
	return cost.NewDeviceSlots(plans, d.links.Costs, DeviceLink{Class: SameDevice}.cost(Params{}), d.taking)
}

// Describe returns the classes of a kind in the grammar of [ParseTune]; for a rooted kind those of root 0.
func (d *DeviceChoices) Describe(kind coll.Kind) string {
	var parts []string
	from := "0"
	for _, c := range d.table(kind, 0) {
		to := "inf"
		if c.UpTo != NoLimit {
			to = strconv.FormatUint(c.UpTo, 10)
		}
		parts = append(parts, fmt.Sprintf("%s-%s:%s@chunk=%d", from, to, c.Algorithm, c.Chunk))
		from = to
	}
	return fmt.Sprintf("%v: %s", kind, strings.Join(parts, ", "))
}

// Explain returns the chosen class of a length and, of each other algorithm, the one with the best chunk, each with its predicted
// time, the fastest first; for a rooted kind those of root 0.
func (d *DeviceChoices) Explain(kind coll.Kind, bytes uint64) (list []Candidate) {
	chosen := d.Choose(kind, 0, bytes)
	if d.size == 1 {
		return []Candidate{{Algorithm: chosen.Algorithm, Chunk: chosen.Chunk, Chosen: true, Why: "the only one"}}
	}
	explained := func(c Class) Candidate {
		return Candidate{Algorithm: c.Algorithm, Transport: Slots, Slots: c.Slots, Chunk: c.Chunk, Longest: d.slot,
			Predicted: d.pricer(rooted{kind, 0}, c).Price(bytes).Duration()}
	}
	first := explained(chosen)
	first.Chosen, first.Why = true, "predicted"
	list = append(list, first)
	best := map[string]Candidate{}
	for _, c := range d.classes(kind) {
		if one := explained(c); c.Algorithm != chosen.Algorithm && (best[c.Algorithm].Algorithm == "" || one.Predicted < best[c.Algorithm].Predicted) {
			best[c.Algorithm] = one
		}
	}
	for _, name := range shmplan.Algorithms(kind) {
		if one, ok := best[name]; ok {
			one.Why = fmt.Sprintf("%s as long as %s", times(one.Predicted, first.Predicted), first.Algorithm)
			if one.Predicted < first.Predicted {
				one.Why = "cheaper here, but not at the lengths at which classes are compared"
			}
			list = append(list, one)
		}
	}
	slices.SortStableFunc(list, func(a, b Candidate) int { return int(a.Predicted-b.Predicted) / int(time.Nanosecond) })
	return list
}
