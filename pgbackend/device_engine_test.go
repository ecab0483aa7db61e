package pgbackend

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo"
	"sagecomm/internal/coll"
	"sagecomm/internal/device"
	"sagecomm/internal/engine"
	"sagecomm/internal/engine/host"
	"sagecomm/internal/env"
	"sagecomm/internal/runner"
)

// The choice of the engine of the device lane, among engines that take host memory for that of a device.

type namedEngine struct {
	*host.Engine
	name string
}

func (e *namedEngine) Name() string { return e.name }

// testEngines adds engines to the library until the test ends. lacking has, by name, why the ranks do not offer the
// engine; "" is offered. It returns the names of the engines that were opened, by rank.
func testEngines(t *testing.T, lacking map[string][]string) (opened func(rank int) string) {
	before := maps.Clone(deviceEngines)
	t.Cleanup(func() { deviceEngines = before })
	deviceEngines = maps.Clone(before)
	var mu sync.Mutex
	ranks := map[int]string{}
	for name, why := range lacking {
		deviceEngines[name] = registeredEngine{
			captures: before[name].captures,
			absent: func(g *Group) error {
				if text := why[g.rank]; text != "" {
					return errors.New(text)
				}
				return nil
			},
			open: func(g *Group, run *runner.Group) (engine.Engine, error) {
				mu.Lock()
				defer mu.Unlock()
				ranks[g.rank] += name
				return &namedEngine{g.hostEngine(run), name}, nil
			},
		}
	}
	return func(rank int) string {
		mu.Lock()
		defer mu.Unlock()
		return ranks[rank]
	}
}

func TestRanksChooseTheEngineThatAllOffer(t *testing.T) {
	for _, c := range []struct {
		name    string
		lacking map[string][]string
		set     string
		want    string
	}{
		{"all offer the best one", map[string][]string{"nccl": {"", "", ""}, "cuda": {"", "", ""}, "staged": {"", "", ""}}, "", "nccl"},
		{"a rank does not offer it", map[string][]string{"nccl": {"", "no libnccl.so.2", ""}, "cuda": {"", "", ""}, "staged": {"", "", ""}}, "", "cuda"},
		{"each rank lacks another one", map[string][]string{"nccl": {"a", "", ""}, "hccl": {"", "b", ""}, "cuda": {"", "", "c"}, "staged": {"", "", ""}}, "", "staged"},
		{"another one is set", map[string][]string{"nccl": {"", "", ""}, "cuda": {"", "", ""}, "staged": {"", "", ""}}, "cuda", "cuda"},
		{"set in capitals", map[string][]string{"nccl": {"", "", ""}, "staged": {"", "", ""}}, "STAGED", "staged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			opened := testEngines(t, c.lacking)
			o := options{}
			if c.set != "" {
				o["engine"] = c.set
			}
			w := newWorldWith(t, 3, opTimeout, o)
			w.each(func(g *Group) error {
				if f := deviceSum(g, 10); f != nil {
					return f
				}
				stats, err := g.Stats()
				if err != nil {
					return err
				}
				if got := opened(g.rank); got != c.want || g.deviceEngine.Engine != c.want || stats.Lanes[1].Engine != c.want {
					return fmt.Errorf("the engines %q were opened, %q is chosen, and statistics name %q; expected %q", got, g.deviceEngine.Engine, stats.Lanes[1].Engine, c.want)
				}
				if hash := w.groups[0].choicesHash(); g.choicesHash() != hash {
					return fmt.Errorf("the hash of the choices is %016x, that of rank 0 %016x", g.choicesHash(), hash)
				}
				return nil
			})
			e, err := Get().Explain(Question{Op: "all_reduce", Bytes: 8, Group: w.groups[0].Handle(), Device: true})
			require.NoError(t, err)
			require.Equal(t, c.want, e.Engine)
			require.Len(t, e.Engines, len(algo.DeviceEngines()))
			for _, one := range e.Engines {
				require.Equal(t, one.Engine == c.want, one.Chosen, "%+v", one)
				require.Equal(t, one.Chosen && c.set != "", one.Forced, "%+v", one)
				require.NotEmpty(t, one.Why, "%+v", one)
			}
		})
	}
}

// The hash that ranks compare tells engines apart.
func TestTheHashOfChoicesHasTheEngine(t *testing.T) {
	testEngines(t, map[string][]string{"nccl": {"", ""}, "staged": {"", ""}})
	g := newWorld(t, 2).groups[0]
	require.Equal(t, "nccl", g.deviceEngine.Engine)
	hash := g.choicesHash()
	g.deviceEngine.Engine = "staged"
	require.NotEqual(t, hash, g.choicesHash())
}

// All ranks fail when the group is made, with an error that names the rank that lacks the engine.
func TestEngineThatIsSetAndThatARankLacks(t *testing.T) {
	testEngines(t, map[string][]string{"nccl": {"", "", "no libnccl.so.2"}})
	_, errs := tryWorld(t, 3, opTimeout, func(int) options { return options{"engine": "nccl"} })
	for rank, err := range errs {
		require.NoError(t, expectText(err, "SAGECOMM_ENGINE=nccl", "rank 2 does not offer it: no libnccl.so.2", "without it: rank 2 (host ",
			"or auto for the best"), "rank %d", rank)
	}
	delete(deviceEngines, "cuda") // as in an older library
	_, errs = tryWorld(t, 2, opTimeout, func(int) options { return options{"engine": "cuda"} })
	for rank, err := range errs {
		require.NoError(t, expectText(err, "SAGECOMM_ENGINE=cuda", "this library has no such engine", "rank 0 (host ", "rank 1 (host "), "rank %d", rank)
	}
}

func TestEngineSettingsThatDiffer(t *testing.T) {
	_, errs := tryWorld(t, 2, opTimeout, func(rank int) options {
		return options{"engine": []string{"auto", "staged"}[rank]}
	})
	for rank, err := range errs {
		require.NoError(t, expectText(err, `ranks 0 and 1 are set up differently: SAGECOMM_ENGINE is "auto" on rank 0 and "staged" on rank 1`), "rank %d", rank)
	}
}

// Without an engine in common, ranks use the CPU: an operation on a device is refused on each of them, and the group
// goes on.
func TestRanksWithoutAnEngineInCommon(t *testing.T) {
	testEngines(t, map[string][]string{"nccl": {"no libnccl.so.2", ""}, "staged": {"", "out of pinned memory"}})
	w := newWorld(t, 2)
	list := w.eachFailure(func(g *Group) *coll.Failure {
		if f := sum(g, 10); f != nil {
			return f
		}
		refused := deviceSum(g, 10)
		if f := sum(g, 10); f != nil {
			return f
		}
		return refused
	})
	for rank, f := range list {
		require.NoError(t, expect(f, coll.Invalid, "all_reduce", "no engine for devices in common", "rank 0 does not offer it: no libnccl.so.2",
			"rank 1 does not offer it: out of pinned memory"), "rank %d", rank)
	}
}

// The variable accepts what algo can choose among, and nothing else.
func TestEngineNamesOfTheVariable(t *testing.T) {
	for _, name := range append(algo.DeviceEngines(), algo.AutoEngine) {
		s, err := env.Resolve(nil, options{"engine": name})
		require.NoError(t, err, name)
		require.Equal(t, name, env.Engine.Get(s))
	}
	require.Contains(t, string(env.DescribeJSON(nil)), "one of auto, "+strings.Join(algo.DeviceEngines(), ", "))
	for name := range deviceEngines {
		_, known := algo.ChooseEngine(nil, algo.AutoEngine).Candidate(name)
		require.True(t, known, "%s is never chosen", name)
	}
}

func TestExplainEnginesOfADescribedGroup(t *testing.T) {
	testEngines(t, map[string][]string{"nccl": {"", "", "", ""}, "cuda": {"no GPU", "no GPU", "no GPU", "no GPU"}})
	for _, c := range []struct {
		set, want, why string
	}{{"", "nccl", "the most preferred of those that all ranks offer"}, {"staged", "staged", "set by SAGECOMM_ENGINE"}} {
		t.Setenv(env.Engine.Name(), c.set)
		e, err := Get().Explain(Question{Op: "all_reduce", Bytes: 8, Ranks: 4, Device: true})
		require.NoError(t, err)
		require.Equal(t, c.want, e.Engine)
		for _, one := range e.Engines {
			if one.Chosen && one.Why != c.why || one.Engine == "cuda" && one.Why != "no rank offers it: no GPU" {
				t.Errorf("%+v", one)
			}
		}
	}
	e, err := Get().Explain(Question{Op: "all_reduce", Bytes: 8, Ranks: 4})
	require.NoError(t, err)
	require.Empty(t, e.Engine, "of host memory")
	require.Nil(t, e.Engines)
}

// Where a graph could hold a collective with another engine that all ranks offer, the refusal names it. NCCL has no
// reductions of bits.
func TestRefusalInACaptureNamesAnEngine(t *testing.T) {
	real := openAccess
	t.Cleanup(func() { openAccess = real })
	openAccess = func(runner.Call, coll.Op) (device.Access, error) { return nil, device.ErrCaptured }
	with := func(name string) string {
		return ", or set SAGECOMM_ENGINE=" + name + " on all ranks: a graph can hold collectives of that engine"
	}
	sum := coll.Op{Kind: coll.AllReduce, Type: coll.Int32, Device: aDevice}
	bits, p2p := sum, coll.Op{Kind: coll.Send, Type: coll.Uint8, Root: 1, Device: aDevice}
	bits.Reduce = coll.BAnd
	for _, c := range []struct {
		set        string
		nccl, cuda []string
		ofSum      string // the end of the refusal
		ofBits     string
	}{
		{"staged", []string{"", ""}, []string{"", ""}, with("cuda"), with("cuda")},
		{"staged", []string{"", ""}, []string{"", "no GPU"}, with("nccl"), ""},
		{"nccl", []string{"", ""}, []string{"", ""}, with("cuda"), with("cuda")},
		{"nccl", []string{"", ""}, []string{"", "no GPU"}, "", ""},
		{"staged", []string{"no GPU", "no GPU"}, []string{"no GPU", ""}, "", ""},
	} {
		testEngines(t, map[string][]string{"nccl": c.nccl, "cuda": c.cuda})
		chosen := deviceEngines[c.set]
		chosen.open = deviceEngines[stagedEngine].open
		deviceEngines[c.set] = chosen
		g := newWorldWith(t, 2, opTimeout, options{"engine": c.set}).groups[0]
		for _, one := range []struct {
			op   coll.Op
			ends string
		}{{sum, c.ofSum}, {bits, c.ofBits}, {p2p, ""}} { // no graph holds p2p operations
			in := [][]byte{make([]byte, 4)}
			out := in
			if !one.op.Kind.Collective() {
				out = nil
			}
			_, f := g.Issue(one.op, in, out)
			require.NoError(t, expect(f, coll.Invalid, "call it outside of the capture"))
			require.True(t, strings.HasSuffix(f.Message, "call it outside of the capture"+one.ends),
				"%s with nccl %q, cuda %q and %s set: %s", one.op.Name(), c.nccl, c.cuda, c.set, f.Message)
		}
	}
}
