package modelcheck

import (
	"strings"
	"testing"
)

func TestHostsHold(t *testing.T) {
	for _, sc := range HostScenarios {
		t.Run(sc.Name, func(t *testing.T) {
			if sc.Big && (Slow || testing.Short()) {
				t.Skip("too many states for the race detector or -short")
			}
			t.Parallel()
			r := sc.explore(0)
			t.Logf("%d states, %d steps, at most %d deep", r.States, r.Steps, r.Depth)
			if r.Violation != nil {
				report(t, r.Violation)
			}
		})
	}
}

// Each mutation takes one protection between hosts out. With -v, the shortest way to what goes wrong is printed.
func TestEveryProtectionOfHostsIsNeeded(t *testing.T) {
	if testing.Short() {
		t.Skip("mutants are looked at without -short")
	}
	turned := map[HostSwitch]bool{}
	for _, mu := range HostMutations {
		if turned[mu.Switch] {
			t.Errorf("%q: its switch stands in the table twice", mu.What)
		}
		turned[mu.Switch] = true
		t.Run(mu.What, func(t *testing.T) {
			t.Parallel()
			r := findHosts(mu.Scenario).explore(mu.Switch)
			switch v := r.Violation; {
			case v == nil:
				t.Errorf("nothing found in %d states of %q", r.States, mu.Scenario)
			case v.Kind != mu.Finds:
				t.Errorf("expected %s", mu.Finds)
				report(t, v)
			default:
				t.Logf("%s, %s: %s\n  %s", mu.Scenario, v.Kind, v.Text, strings.Join(v.Trace, "\n  "))
			}
		})
	}
	for s := HostSwitch(1); s < lastMeetingSwitch; s++ {
		if !turned[s] && s != lastVerdictSwitch && s != lastLinkSwitch && s != lastFifoSwitch && s != lastDirectSwitch && s != lastPumpSwitch && s != lastCalmSwitch && s != lastOpeningSwitch {
			t.Errorf("switch %d of hosts stands in no table", s)
		}
	}
}
