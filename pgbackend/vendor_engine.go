package pgbackend

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/engine"
	"sagecomm/internal/engine/staged"
	"sagecomm/internal/engine/vendor"
	"sagecomm/internal/env"
	"sagecomm/internal/observe"
	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// vendorEngine returns an engine that carries out collectives by a method, and leaves the others to staged. Where the
// ranks cannot use the method, without carries out the collectives.
func (g *Group) vendorEngine(method vendor.Method, run *runner.Group, others *staged.Engine, without engine.Engine) *vendor.Engine {
	return vendor.New(method, vendor.Group{Run: run, Rank: g.rank, Size: g.size, Host: g.members[g.rank].Host, Timeout: g.timeout,
		Exchange: func(purpose string, mine []byte) ([][]byte, error) { return g.exchangeFor(topicEngine, purpose, mine) },
		Unique: func(mine []byte) ([][]byte, error) {
			return g.exchangeFor(topicUniqueID, "unique id of "+method.Name(), mine)
		},
		Settled: func(reasons []string, failed bool) error { return g.settled(method.Name(), reasons, failed) },
		Failed:  func() bool { return g.run.FirstCause() != nil },
		Cut:     func() { g.declareCut(method.Name()) },
		Left:    g.peersLeft,
		Fail: func(err error) {
			f := &coll.Failure{Status: coll.System, Rank: g.rank, OnDevice: true,
				Message: fmt.Sprintf("sagecomm: group %q: a communicator of %s failed: %s: %v", g.title(), method.Name(), g.who(g.rank), err)}
			if errors.Is(err, vendor.ErrInterrupted) {
				f.Status = coll.Aborted
				f.Message = fmt.Sprintf("sagecomm: group %q: %s cannot end an operation that it has announced to the others: %v", g.title(), g.who(g.rank), err)
			}
			g.fail(f)
		},
		ReportWait: g.reportWait(),
		Info:       func(text string) { g.info("%s", text) },
		Warn:       func(err error) { observe.Warn("group %q: %v", g.title(), err) },
		Guard:      g.lastingGuard(),
	}, others, without, g.process.vendors, openAccess)
}

// reportWait returns how long an error of a vendor's library waits for a failure that explains it. In a group over
// several hosts, a death is noticed after noticedAfter at the latest, and deathWait later it is the cause of this rank.
// On one host the kernel closes the connections of a process that dies, by which a library notices that, before it reports
// the death. So the death is the cause localReportWait after the error at the latest.
func (g *Group) reportWait() time.Duration {
	if g.apart() {
		timing := tcp.DefaultTiming
		timing.Unacked = env.LinkTimeout.Get(g.settings)
		return noticedAfter(timing) + deathWait + reportSpare
	}
	return localReportWait
}

// An error of the library that comes before the death that it tells of would name the wrong rank. reportSpare is for a
// process that is late. On a busy machine of two processors survivors raised a death on their host 0.2 to 0.6 s after it.
const (
	reportSpare     = 200 * time.Millisecond
	localReportWait = time.Second
)

// noticedAfter returns when a link whose other end is dead counts as lost at the latest: Beat and a look until a
// heartbeat, the wait and a look, two of which are a Beat.
func noticedAfter(t tcp.Timing) time.Duration { return 2*t.Beat + t.Unacked }

// withoutEngine notes whether ranks have reasons to do without an engine, and returns the choice that holds now.
func (g *Group) withoutEngine(engine string, reasons []string, usable bool) algo.EngineChoice {
	g.choosing.Lock()
	defer g.choosing.Unlock()
	if g.refusals == nil {
		g.refusals = map[string][]string{}
	}
	g.refusals[engine] = reasons
	if usable {
		delete(g.refusals, engine)
	}
	offers := make([]algo.Offers, g.size)
	for rank, m := range g.members {
		offers[rank] = g.offersHere(m.Engines)
		for name, list := range g.refusals {
			if list[rank] != "" {
				offers[rank][name] = list[rank]
			}
		}
	}
	choice := algo.ChooseEngine(offers, env.Engine.Get(g.settings))
	g.laterEngines.Store(&choice)
	return choice
}

func (g *Group) exchangeFor(t topic, purpose string, mine []byte) ([][]byte, error) {
	all, failure := g.exchange(t, purpose, mine, g.timeout())
	if failure != nil {
		return nil, failure
	}
	return all, nil
}

// settled notes whether the ranks use a vendor's engine, which all have offered, on the devices that they use now;
// where reasons has a text, they do not. All ranks call it with the same reasons. A rank that has failed to join is
// worth a warning.
func (g *Group) settled(engine string, reasons []string, failed bool) error {
	culprit := slices.IndexFunc(reasons, func(why string) bool { return why != "" })
	choice := g.withoutEngine(engine, reasons, culprit < 0)
	if culprit < 0 {
		return nil
	}
	if err := g.lacksEngine(choice); err != nil {
		return err
	}
	if failed && g.rank == 0 {
		observe.Warn("group %q does without the engine %s, which %s cannot use: %s; %s=%s avoids the attempt", g.title(), engine, g.who(culprit), reasons[culprit],
			env.Engine.Name(), choice.Engine)
	}
	if g.rank == 0 {
		g.logEngine(choice)
	}
	return nil
}
