package pgbackend

import (
	"fmt"
	"hash/fnv"

	"sagecomm/algo"
	"sagecomm/fusion"
	"sagecomm/internal/coll"
	"sagecomm/internal/env"
)

// selectorKey holds all that a selector depends on: groups with equal keys have equal tables.
type selectorKey struct {
	tuningSettings uint64
	machine, shape string
	found          probeResult
	network        networkOctaves
}

// selector returns the selector of all groups with the same key. They share it because pricing the plans of a large
// group takes tenths of a second.
func (p *Process) selector(shape algo.Shape, machine string, w tuningSettings, found probeResult, network networkOctaves) (*algo.Selector, error) {
	key := selectorKey{w.fingerprint(), machine, fmt.Sprint(shape), found, network}
	// The lock is held while the selector is made, with the tables of the kinds that have rules, because goroutines
	// that wait here often need the same one. The other tables are predicted at the first use of a kind, under
	// Group.compiling.
	p.choosing.Lock()
	defer p.choosing.Unlock()
	if known := p.selectors[key]; known != nil {
		return known, nil
	}
	tune, err := w.forShape(machine, shape)
	if err != nil {
		return nil, err
	}
	made, err := algo.NewSelector(shape, network.scale(algo.DefaultParams().Scaled(found.scale())), tune)
	if err != nil {
		return nil, err
	}
	p.selectors[key] = made
	return made, nil
}

// choose sets the engine of the group's device lane, and its selector. A group over several hosts sets its selector
// anew when its links were measured, and has one until then to find rules that it cannot follow. Requires: g.members
// are known.
func (g *Group) choose() error {
	if err := g.chooseEngine(); err != nil {
		g.final = true
		return err
	}
	if g.apart() {
		return g.chooseAlgorithms(networkOctaves{})
	}
	return g.chooseForLinks(nil)
}

// chooseForLinks sets the selector of the group for what its ranks have told of links (link_probe.go), and what depends
// on it. Requires: choose.
func (g *Group) chooseForLinks(told [][]byte) error {
	if g.apart() {
		g.probed = g.agreeOnLinks(told)
	}
	if err := g.chooseAlgorithms(g.probed.octaves); err != nil {
		return err
	}
	g.chooseFusion()
	return nil
}

// chooseAlgorithms sets the selector of the group.
func (g *Group) chooseAlgorithms(network networkOctaves) (err error) {
	shape := g.shape()
	list := make([]probeResult, g.size)
	for rank, m := range g.members {
		list[rank] = m.Probe
	}
	found := agree(list)
	if g.tuningSettings.probe && g.crowded() {
		found[0] = max(found[0], switching)
	}
	g.selector, err = g.process.selector(shape, g.members[0].Machine, g.tuningSettings, found, network)
	return err
}

// chooseFusion makes the group gather operations if its user wants that.
// Requires: g.selector is set.
func (g *Group) chooseFusion() {
	if g.size > 1 && env.Fusion.Get(g.settings) {
		g.buckets = newBuckets(g, fusion.LimitsFor(g.selector.Predict(coll.AllReduce)))
	}
}

// choicesHash returns a hash of all choices of the group, which is equal on all ranks.
func (g *Group) choicesHash() uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintln(h, g.selector.Fingerprint(), g.deviceEngine.Engine, g.fusionLimits()) // writing to a hash does not fail
	return h.Sum64()
}

// untuned returns a sentence that says for which groups the tuning file has no entry, or "" if it has one for this
// group.
func (g *Group) untuned() string {
	w, shape := g.tuningSettings, g.shape()
	if w.file == nil || w.file.Has(g.members[0].Machine, shape) {
		return ""
	}
	return fmt.Sprintf("%s has no entry for %s on %s of %q: python -m sagecomm tune measures them",
		w.fileName, coll.Count(shape.Size, "rank"), coll.Count(shape.HostCount(), "host"), g.members[0].Machine)
}
