package pgbackend

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/algo/plan"
	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

// The texts of failures are checked here and nowhere else: testdata/failures/*.txt holds scenarios, each with what the
// ranks do and the exact text that they get. Examples of docs/errors.md come from these files (tests/lint).
//
//	go test ./pgbackend -run TestFailureTexts -update     # after a text has changed: writes the files anew
//
// A scenario begins with a line "== NAME". Lines that begin with # explain it. Then come, one a line:
//
//	ranks N                      of the group; 2 without it
//	timeout D                    of its making, and of its operations; behind calls, of those that follow
//	rank R sets NAME=VALUE       an option of the group on that rank; `all set NAME=VALUE` on every rank
//	rank R is absent             it does not create the group
//	all: CALL                    every rank makes the call and waits for it
//	rank R: CALL; CALL           the rank makes the calls, coalesced if there are several, and does not wait yet
//	rank R aborts REASON, destroys, dies, has no memory, panics
//
// A CALL is the name of an operation and, as it needs them: a type, a reduction, the number of elements, `root R`, `to
// R`, `from R`, `from any`, `tag T`, `timeout D`, `device`, `in N,N`, `out N,N` (elements of each block).
//
// What follows is the exception that the user sees, the culprit where that does not depend on which rank looked first,
// and its text. Every rank that lives gets that same failure, or, where a call is refused, the rank that made it. Hosts
// and processes read "host h, pid 12". A scenario with comments alone is that of a test that is written in Go and calls
// [expectScenario].

var update = flag.Bool("update", false, "write the scenarios of failures with the texts that came")

type scenario struct {
	name  string
	steps []string // comments, too
	want  string   // exception and text, a line each
}

func parseScenarios(text string) (list []scenario) {
	for _, part := range strings.Split("\n"+text, "\n== ")[1:] {
		lines := strings.Split(strings.TrimSpace(part), "\n")
		sc := scenario{name: lines[0], steps: lines[1:]}
		for i, line := range sc.steps {
			if exception, _, _ := strings.Cut(line, ","); strings.HasSuffix(exception, "Error") || exceptionNames[exception] {
				sc.want = strings.Join(sc.steps[i:], "\n")
				sc.steps = sc.steps[:i]
				break
			}
		}
		list = append(list, sc)
	}
	return list
}

// inGo reports whether a test in Go causes the failure and checks it by [expectScenario].
func (sc scenario) inGo() bool {
	return !slices.ContainsFunc(sc.steps, func(line string) bool { return !strings.HasPrefix(line, "#") })
}

func (sc scenario) String() string {
	return "== " + sc.name + "\n" + strings.Join(sc.steps, "\n") + "\n" + sc.want + "\n"
}

var exceptionNames = map[string]bool{"PeerFailure": true, "CollectiveTimeout": true, "CollectiveMismatch": true, "Aborted": true}

// exceptionOf returns the exception that the Python package raises for a status.
func exceptionOf(status coll.Status) string {
	switch status {
	case coll.Invalid:
		return "RuntimeError"
	case coll.PeerFailure:
		return "PeerFailure"
	case coll.Timeout:
		return "CollectiveTimeout"
	case coll.Mismatch:
		return "CollectiveMismatch"
	case coll.Aborted:
		return "Aborted"
	}
	return "DistBackendError"
}

func TestFailureTexts(t *testing.T) {
	files, err := filepath.Glob("testdata/failures/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		list := parseScenarios(string(text))
		for i := range list {
			if list[i].inGo() {
				continue
			}
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt")+"/"+list[i].name, func(t *testing.T) {
				got := newPlay(t, list[i]).play()
				if got != list[i].want && !*update {
					t.Errorf("got\n%s\nexpected\n%s", got, list[i].want)
				}
				list[i].want = got
			})
		}
		if *update && !t.Failed() {
			writeScenarios(t, file, list)
		}
	}
}

// expectScenario checks a failure that a test causes in Go, the same one on every rank. The scenario with the test's
// name has the text, and comments in place of steps.
func expectScenario(t *testing.T, file, name string, list []*coll.Failure) {
	t.Helper()
	path := filepath.Join("testdata/failures", file+".txt")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	all := parseScenarios(string(text))
	i := slices.IndexFunc(all, func(sc scenario) bool { return sc.name == name })
	if i < 0 {
		t.Fatalf("there is no scenario %q in %s", name, path)
	}
	for rank, f := range list {
		if f == nil {
			t.Fatalf("rank %d has not failed", rank)
		}
		got := describeFailure(t, f)
		if *update && rank == 0 {
			all[i].want = got
			writeScenarios(t, path, all)
		}
		if got != all[i].want {
			t.Errorf("rank %d got\n%s\nexpected\n%s", rank, got, all[i].want)
		}
	}
}

func writeScenarios(t *testing.T, path string, list []scenario) {
	t.Helper()
	var written []string
	for _, sc := range list {
		written = append(written, sc.String())
	}
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(written, "\n")), 0o644))
}

// play is a scenario that is being carried out.
type play struct {
	t        *testing.T
	scenario scenario
	size     int
	timeout  time.Duration
	options  []options // of each rank
	absent   map[int]bool
	silent   map[int]bool // ranks that died or destroyed the group
	groups   []*Group
	works    [][]runner.Work // of each rank, not waited for
	refused  *coll.Failure
}

func newPlay(t *testing.T, sc scenario) *play {
	withDevices(t)
	withoutLinger(t)
	return &play{t: t, scenario: sc, size: 2, timeout: opTimeout, absent: map[int]bool{}, silent: map[int]bool{}}
}

// play carries out the steps and returns the outcome in the form of the scenario.
func (p *play) play() string {
	for _, line := range p.scenario.steps {
		if strings.HasPrefix(line, "#") {
			continue
		}
		if err := p.step(line); err != nil {
			p.t.Fatalf("%s: %v", line, err)
		}
	}
	if p.groups == nil {
		p.create()
	}
	return p.outcome()
}

func (p *play) step(line string) error {
	words := strings.Fields(line)
	var err error
	switch {
	case words[0] == "ranks":
		p.size, err = strconv.Atoi(words[1])
		return err
	case words[0] == "timeout":
		p.timeout, err = time.ParseDuration(words[1])
		for _, g := range p.groups {
			if err == nil && g != nil {
				err = g.SetTimeout(p.timeout)
			}
		}
		return err
	case words[0] == "all:" || words[0] == "all":
		for rank := range p.size {
			if err := p.stepOf(rank, strings.TrimPrefix(strings.TrimPrefix(line, "all"), ":")); err != nil {
				return err
			}
		}
		return p.waitForAll()
	case words[0] == "rank" && len(words) > 2:
		number, _ := strings.CutSuffix(words[1], ":")
		rank, err := strconv.Atoi(number)
		if err != nil {
			return err
		}
		return p.stepOf(rank, strings.TrimPrefix(strings.TrimPrefix(line, "rank "+number), ":"))
	}
	return errors.New("this is no step")
}

func (p *play) stepOf(rank int, action string) error {
	verb, rest, _ := strings.Cut(strings.TrimSpace(action), " ")
	if verb == "sets" || verb == "set" || verb == "is" {
		return p.prepare(rank, rest)
	}
	if p.groups == nil {
		p.create()
	}
	g := p.groups[rank]
	if g == nil {
		return errors.New("the rank has no group")
	}
	switch verb {
	case "aborts":
		g.Abort(rest)
	case "destroys":
		p.silent[rank] = true
		return g.Destroy()
	case "dies":
		p.silent[rank] = true
		p.groups[(rank+1)%p.size].peerDied(rank)
	case "has":
		return p.atCompiling(rank, func() error { return errors.New("shmem: no memory, for the test") })
	case "panics":
		return p.atCompiling(rank, func() error { panic("a fault for the test") })
	default:
		return p.call(rank, strings.TrimSpace(action))
	}
	return nil
}

// prepare changes the configuration with which a rank creates its group.
func (p *play) prepare(rank int, what string) error {
	for len(p.options) < p.size {
		p.options = append(p.options, options{})
	}
	name, value, found := strings.Cut(what, "=")
	if found {
		p.options[rank][name] = value
	} else {
		p.absent[rank] = true
	}
	return nil
}

// atCompiling lets the next plan that a rank compiles end in f.
func (p *play) atCompiling(rank int, f func() error) error {
	var once atomic.Bool
	before := lower
	p.t.Cleanup(func() { lower = before })
	lower = func(of plan.SlotPlan, op coll.Op) (runner.Compiled, error) {
		if of.Rank == rank && once.CompareAndSwap(false, true) {
			return runner.Compiled{}, f()
		}
		return before(of, op)
	}
	return nil
}

func (p *play) create() {
	p.groups, p.works = make([]*Group, p.size), make([][]runner.Work, p.size)
	store := bootstrap.NewMemStore()
	errs := make([]error, p.size)
	ranksOf(p.t, p.size, func(rank int) error {
		if p.absent[rank] {
			return nil
		}
		c := Config{Rank: rank, Size: p.size, Name: "0", Timeout: p.timeout, Store: store}
		if p.options != nil {
			c.Options = p.options[rank]
		}
		p.groups[rank], errs[rank] = Get().Create(c)
		return nil
	})
	p.t.Cleanup((&world{p.t, p.groups}).destroy)
	for _, err := range errs {
		if err != nil && p.refused == nil {
			p.refused = CreateFailure("0", err)
		}
	}
}

// call makes a rank's calls. A refusal is the outcome of the scenario.
func (p *play) call(rank int, text string) error {
	var calls []runner.Coalesced
	for _, one := range strings.Split(text, ";") {
		c, err := parseCall(strings.Fields(one), rank, p.size)
		if err != nil {
			return err
		}
		calls = append(calls, c)
	}
	var work runner.Work
	var f *coll.Failure
	if len(calls) == 1 {
		work, f = p.groups[rank].Issue(calls[0].Op, calls[0].In, calls[0].Out)
	} else {
		work, f = p.groups[rank].IssueCoalesced(calls)
	}
	if f == nil {
		p.works[rank] = append(p.works[rank], work)
	} else if p.refused == nil && f.Status == coll.Invalid {
		p.refused = f
	}
	return nil
}

// waitForAll waits for all issued operations, which must succeed.
func (p *play) waitForAll() error {
	for rank := range p.works {
		for _, w := range p.works[rank] {
			f := finish(w)
			w.Release()
			if f != nil {
				return f
			}
		}
		p.works[rank] = nil
	}
	return nil
}

// outcome is the failure that all ranks agree on.
func (p *play) outcome() string {
	if p.refused != nil {
		return describeFailure(p.t, p.refused)
	}
	var first string
	for rank, g := range p.groups {
		if p.silent[rank] {
			continue
		}
		f := p.failureOf(rank, g)
		if f == nil {
			p.t.Fatalf("rank %d has not failed", rank)
		}
		if text := describeFailure(p.t, f); first == "" {
			first = text
		} else if text != first {
			p.t.Errorf("ranks say different things:\n%s\n%s", first, text)
		}
	}
	return first
}

// toldWithin is far longer than a rank without operations takes to learn of a failure.
const toldWithin = 20 * time.Second

// failureOf waits until a rank fails: in its own call, or, if its call needs no other rank, because the group has
// failed.
func (p *play) failureOf(rank int, g *Group) (f *coll.Failure) {
	for _, w := range p.works[rank] {
		if got := finish(w); f == nil {
			f = got
		}
		w.Release()
	}
	for until := time.Now().Add(toldWithin); f == nil && time.Now().Before(until); time.Sleep(time.Millisecond) {
		f = g.failed()
	}
	return f
}
