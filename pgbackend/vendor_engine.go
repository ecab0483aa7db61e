package pgbackend

import (
	"fmt"
	"maps"

	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/env"
	"sagecomm/internal/runner"
)

// vendorEngine returns an engine that leaves collectives to a vendor's library.
func (g *Group) vendorEngine(library vendor.Library, run *runner.Group) *vendor.Engine {
	return vendor.New(library, vendor.Group{Run: run, Rank: g.rank, Size: g.size, Host: g.members[g.rank].Host, Timeout: g.timeout,
		Exchange: func(purpose string, mine []byte) ([][]byte, error) { return g.exchangeFor(topicEngine, purpose, mine) },
		Unique: func(mine []byte) ([][]byte, error) {
			return g.exchangeFor(topicUniqueID, "unique id of "+library.Name(), mine)
		},
		Without: func(reasons []string) error { return g.without(library.Name(), reasons) },
		Fail: func(err error) {
			g.fail(&coll.Failure{Status: coll.System, Rank: g.rank, OnDevice: true,
				Message: fmt.Sprintf("sagecomm: group %q: a communicator of %s failed: %v", g.title(), g.who(g.rank), err)})
		},
	}, g.stagedEngine(run), g.process.vendors, openAccess)
}

func (g *Group) exchangeFor(t topic, purpose string, mine []byte) ([][]byte, error) {
	all, failure := g.exchange(t, purpose, mine, g.timeout())
	if failure != nil {
		return nil, failure
	}
	return all, nil
}

// without chooses another engine because ranks cannot use one that they had offered. All ranks call it with the same reasons.
func (g *Group) without(engine string, reasons []string) error {
	offers := make([]algo.Offers, g.size)
	for rank, m := range g.members {
		offers[rank] = maps.Clone(m.Engines)
		if reasons[rank] != "" {
			offers[rank][engine] = reasons[rank]
		}
	}
	choice := algo.ChooseEngine(offers, env.Engine.Get(g.settings))
	if err := g.lacksEngine(choice); err != nil {
		return err
	}
	g.laterEngines.Store(&choice)
	if g.rank == 0 {
		g.info("engine of operations on devices: %s", choice.Describe())
	}
	return nil
}
