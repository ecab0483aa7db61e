package modelcheck

import (
	"strings"
	"testing"
)

func report(t *testing.T, v *Violation) {
	t.Helper()
	t.Errorf("%s: %s\n  %s", v.Kind, v.Text, strings.Join(v.Trace, "\n  "))
}

func TestProtocolHolds(t *testing.T) {
	for _, sc := range Scenarios {
		t.Run(sc.Name, func(t *testing.T) {
			if sc.Big && (Slow || testing.Short()) {
				t.Skip("too many states for the race detector or -short")
			}
			t.Parallel()
			r := Explore(sc, Intact)
			t.Logf("%d states, %d steps, at most %d deep", r.States, r.Steps, r.Depth)
			if r.Violation != nil {
				report(t, r.Violation)
			}
		})
	}
}

// Each mutation takes one protection out. With -v, the shortest way to what goes wrong is printed.
func TestEveryProtectionIsNeeded(t *testing.T) {
	if testing.Short() {
		t.Skip("mutants are looked at without -short")
	}
	for _, mu := range Mutations {
		t.Run(mu.What, func(t *testing.T) {
			t.Parallel()
			sc, ok := find(mu.Scenario)
			if !ok {
				t.Fatalf("there is no scenario %q", mu.Scenario)
			}
			r := Explore(sc, mu.Switch)
			switch v := r.Violation; {
			case v == nil:
				t.Errorf("nothing found in %d states of %q: %s protects from nothing, or the model does not see it", r.States, sc.Name, mu.Where)
			case v.Kind != mu.Finds:
				t.Errorf("expected %s", mu.Finds)
				report(t, v)
			default:
				t.Logf("%s, %s: %s\n  %s", sc.Name, v.Kind, v.Text, strings.Join(v.Trace, "\n  "))
			}
		})
	}
}

// What the protocol may do in several ways. If one of these fails, the model has become stricter than the prose.
func TestHarmlessChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("mutants are looked at without -short")
	}
	for _, mu := range Harmless {
		t.Run(mu.What, func(t *testing.T) {
			t.Parallel()
			for _, sc := range Scenarios {
				if sc.Ranks > 2 {
					continue
				}
				if r := Explore(sc, mu.Switch); r.Violation != nil {
					report(t, r.Violation)
				}
			}
		})
	}
}

// A switch that no test turns would be a protection that nothing checks.
func TestEverySwitchIsTurned(t *testing.T) {
	turned := map[Switch]bool{Intact: true}
	for _, mu := range append(append([]Mutation(nil), Mutations...), Harmless...) {
		if turned[mu.Switch] {
			t.Errorf("%q: its switch stands in the tables twice", mu.What)
		}
		turned[mu.Switch] = true
	}
	for s := range switches {
		if !turned[s] {
			t.Errorf("switch %d stands in neither table", s)
		}
	}
}

// The memory of the model must be as weak as it claims: both loads of two threads that store first may miss the stores,
// unless all are sequentially consistent (store buffering, the litmus test behind section 5 of the protocol).
func TestMemoryIsWeak(t *testing.T) {
	litmus := func(stores, loads order) Result {
		thread := func(mine, other string) func(*builder) {
			return func(b *builder) {
				saw := b.label()
				b.store(b.sc.word("%s", mine), 1, stores)
				b.load(b.sc.word("%s", other), loads, equals, 0, saw)
				b.store(b.sc.word("%s missed", mine), 1, seqCst)
				b.load(b.sc.word("%s missed", other), seqCst, expect, 0, 0) // wrong data if the other has missed, too
				b.place(saw)
			}
		}
		return Explore(Scenario{Name: "store buffering", Ranks: 2, Slots: 1,
			parts: []func(*builder){thread("y", "x"), thread("x", "y")}}, Intact)
	}
	for _, c := range []struct {
		stores, loads order
		both          bool
	}{{relaxed, relaxed, true}, {release, acquire, true}, {seqCst, acquire, true}, {release, seqCst, true}, {seqCst, seqCst, false}} {
		r := litmus(c.stores, c.loads)
		got := r.Violation != nil && r.Violation.Kind == WrongData
		if got != c.both {
			t.Errorf("stores%s, loads%s: both loads may miss: %v, want %v", c.stores, c.loads, got, c.both)
		}
	}
}

// The seeds of hashes differ, the reachable states do not.
func TestCountsDoNotDependOnTheSeed(t *testing.T) {
	sc, _ := find("one-shot, 1 slot")
	if a, b := Explore(sc, Intact), Explore(sc, Intact); a != b {
		t.Errorf("two explorations of %q differ: %+v, %+v", sc.Name, a, b)
	}
}

func find(name string) (Scenario, bool) {
	for _, sc := range Scenarios {
		if sc.Name == name {
			return sc, true
		}
	}
	return Scenario{}, false
}
