package pgbackend

import (
	"fmt"
	"maps"
	"strings"

	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/engine"
	"sagecomm/internal/engine/cncl"
	"sagecomm/internal/engine/cuda"
	"sagecomm/internal/engine/hccl"
	"sagecomm/internal/engine/nccl"
	"sagecomm/internal/engine/staged"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/env"
	"sagecomm/internal/runner"
	"sagecomm/internal/shmem"
)

// This file holds the engines of the device lane, and how a group chooses one of them. Every rank tells the others at
// the rendezvous what it offers, so all ranks make the same choice (algo.ChooseEngine), and no operation waits for it.

// registeredEngine is an engine of the device lane.
type registeredEngine struct {
	vendor  string // of the devices that the engine serves, by its name in torch; "": of all vendors
	library bool   // the vendor's library of collectives carries operations out
	// absent returns why this rank of a group cannot use the engine, nil if it can. It is called before the ranks meet.
	absent func(g *Group) error
	// open makes the engine when the lane is opened.
	open func(g *Group, run *runner.Group) (engine.Engine, error)
	// transport is that of the collectives that the engine carries out by external runs (vendor.Engine); "": it has none, and the runner
	// carries out all.
	transport string
	// supports reports whether the engine carries out such operations, and does not leave them to staged; nil: all.
	supports func(op coll.Op) bool
	// captures reports whether a graph can hold the collective if this engine carries it out; nil: it can hold none.
	captures func(op coll.Op) bool
}

// stagedEngine is the engine that every rank offers. cudaEngine is that of ranks with NVIDIA's GPUs who share them, or
// have no NCCL.
const (
	stagedEngine = "staged"
	cudaEngine   = "cuda"
	ncclEngine   = "nccl"
)

// deviceEngines holds the engines of this library by name. algo has the order of preference. Tests add engines of their
// own.
var deviceEngines = map[string]registeredEngine{
	ncclEngine: vendorLibrary("cuda", func() (nccl.Library, error) {
		if err := nccl.Blocks(runner.Environ()); err != nil {
			return nccl.Library{}, err
		}
		return nccl.Open()
	}),
	"hccl": vendorLibrary("npu", hccl.Open),
	"cncl": vendorLibrary("mlu", cncl.Open),
	cudaEngine: {
		vendor: "cuda",
		absent: func(*Group) error { return cuda.Present() },
		open: func(g *Group, run *runner.Group) (engine.Engine, error) {
			return g.cudaEngine(run, g.stagedEngine(run)), nil
		},
		transport: "device",
		supports:  collectivesOf(cuda.New(nil, cuda.Links{})),
		captures:  cuda.New(nil, cuda.Links{}).Supports,
	},
	stagedEngine: {
		absent: func(*Group) error { return nil },
		open: func(g *Group, run *runner.Group) (engine.Engine, error) {
			return g.stagedEngine(run), nil
		},
	},
}

// vendorLibrary is an engine that leaves collectives to a vendor's library. Where the ranks cannot use it, the next
// engine that all of them offer does.
func vendorLibrary[L vendor.Library](of string, library func() (L, error)) registeredEngine {
	method := vendor.Calls(*new(L)) // what it supports does not depend on the copy that is opened
	e := registeredEngine{
		vendor:    of,
		library:   true,
		transport: "library",
		supports:  collectivesOf(method),
		absent:    func(*Group) error { _, err := library(); return err },
		open: func(g *Group, run *runner.Group) (engine.Engine, error) {
			l, err := library()
			others := g.stagedEngine(run)
			without := engine.Engine(others)
			if c, _ := g.deviceEngine.Candidate(cudaEngine); len(c.Lacking) == 0 && env.Engine.Get(g.settings) == algo.AutoEngine {
				without = g.cudaEngine(run, others)
			}
			return g.vendorEngine(vendor.Calls(l), run, others, without), err
		},
	}
	if _, graphs := any(*new(L)).(vendor.GraphLibrary); graphs {
		e.captures = method.Supports
	}
	return e
}

// collectivesOf returns what a method carries out: it leaves p2p operations to staged.
func collectivesOf(m vendor.Method) func(op coll.Op) bool {
	return func(op coll.Op) bool { return op.Kind.Collective() && vendor.Carries(m, op) }
}

// deviceTransports returns the transports of the engines that have one of their own. Of a vendor's library it is "library", which alone
// knows how it moves bytes, and of the engine cuda "device": memory of devices, which the ranks map from each other.
func deviceTransports() map[string]string {
	list := map[string]string{}
	for name, e := range deviceEngines {
		if e.transport != "" {
			list[name] = e.transport
		}
	}
	return list
}

// carrierOf returns the engine that carries out an operation on devices in a group that has chosen an engine, and why it is another one.
func carrierOf(engine string, op coll.Op) (carrier, why string) {
	e := deviceEngines[engine]
	if e.supports == nil || e.supports(op) {
		return engine, ""
	}
	what := fmt.Sprintf("%v of %v", op.Kind, op.Type)
	switch {
	case !op.Kind.Collective():
		what = "p2p operations"
	case op.Kind.Reduces():
		what = fmt.Sprintf("%v (%v) of %v", op.Kind, op.Reduce, op.Type)
	}
	return stagedEngine, fmt.Sprintf("%s does not carry out %s: they go through host memory", engine, what)
}

func (g *Group) stagedEngine(run *runner.Group) *staged.Engine {
	return staged.New(g.hostEngine(run), run, g.rank, g.size, g.process.staging, openAccess)
}

func (g *Group) cudaEngine(run *runner.Group, others *staged.Engine) engine.Engine {
	var methods []shmem.Method
	for _, m := range env.ShmAttach.Get(g.settings) {
		if method := shmem.Method(m); method != shmem.File { // an inbox is a memfd
			methods = append(methods, method)
		}
	}
	return g.vendorEngine(cuda.New(methods, cuda.Links{Place: g.process.placeOn, Choose: g.chooseOnDevices}), run, others, others)
}

// engineOffers returns what this rank offers.
func (g *Group) engineOffers() algo.Offers {
	offers := algo.Offers{}
	for name, e := range deviceEngines {
		offers[name] = ""
		if err := e.absent(g); err != nil {
			offers[name] = err.Error()
		}
	}
	return offers
}

// chooseEngine chooses the engine of the device lane. It returns an error if the user has set one that a rank does not
// offer. Requires: g.members are known.
func (g *Group) chooseEngine() error {
	offers := make([]algo.Offers, g.size)
	for rank, m := range g.members {
		offers[rank] = g.offersHere(m.Engines)
	}
	g.deviceEngine = algo.ChooseEngine(offers, env.Engine.Get(g.settings))
	return g.lacksEngine(g.deviceEngine)
}

// offersHere returns which of the engines that a rank offers can serve this group. An engine with memory that all ranks
// map reaches one host only.
func (g *Group) offersHere(all algo.Offers) algo.Offers {
	offers := algo.Offers{} // a rank may have told none
	maps.Copy(offers, all)
	if g.apart() && offers[cudaEngine] == "" {
		offers[cudaEngine] = "the ranks are on several hosts"
	}
	return offers
}

// lacksEngine returns an error if the user has set an engine that a rank does not offer.
func (g *Group) lacksEngine(choice algo.EngineChoice) error {
	set := env.Engine.Get(g.settings)
	c, _ := choice.Candidate(set)
	if len(c.Lacking) == 0 {
		return nil
	}
	var who []string
	for i, rank := range c.Lacking {
		if i == mostNamed {
			who = append(who, fmt.Sprintf("%d more", len(c.Lacking)-i))
			break
		}
		who = append(who, g.who(rank))
	}
	return fmt.Errorf("sagecomm: group %q: %s=%s, but %s; without it: %s; set an engine that all ranks offer, or %s for the best of those",
		g.name, env.Engine.Name(), set, c.Why, strings.Join(who, ", "), algo.AutoEngine)
}

// engines returns the choice that holds now. Once the ranks know each other's devices they may have to do without the
// engine that they had chosen, on the devices of their newest first collective.
func (g *Group) engines() algo.EngineChoice {
	if later := g.laterEngines.Load(); later != nil {
		return *later
	}
	return g.deviceEngine
}

// throughLibrary reports whether a vendor's library carries out collectives on devices.
func (g *Group) throughLibrary() bool { return deviceEngines[g.engines().Engine].library }

// logEngine logs which engine carries out operations on devices, and how to do without it.
func (g *Group) logEngine(choice algo.EngineChoice) {
	text := choice.Describe()
	if choice.Engine != stagedEngine && choice.Engine != "" {
		text += fmt.Sprintf("; %s=%s does without it", env.Engine.Name(), stagedEngine)
	}
	g.info("engine of operations on devices: %s", text)
}

// mostNamed bounds how many ranks an error names.
const mostNamed = 8

// noEngine returns the error for an operation on a device where the ranks have no engine in common.
func (g *Group) noEngine(op coll.Op) error {
	return fmt.Errorf("sagecomm: %s: rank %d: buffers on %v: the ranks have no engine for devices in common: %s; copy the tensors to the CPU, or install what is missing on all ranks",
		op.Name(), g.rank, op.Device, g.engines().Describe())
}

// openEngine makes the engine that the group has chosen.
func (g *Group) openEngine(run *runner.Group) (engine.Engine, error) {
	return deviceEngines[g.deviceEngine.Engine].open(g, run)
}
