package modelcheck

import (
	"fmt"
	"hash/maphash"
	"slices"
)

// The part of the protocol between hosts (docs/protocol.md, section 16). Words cross as frames on connections here, and what may come
// in any order are frames of different connections, losses and deaths, not stores of one processor: those are the pump's, which is a
// writer like any other. So hosts are explored as state machines, whose steps are to send, to deliver, to lose and to notice.

// HostSwitch takes one protection out, as [Switch] does.
type HostSwitch int

// HostMutation is a protection taken out, where the checker looks for the consequence, and what that is.
type HostMutation struct {
	Switch   HostSwitch
	What     string // that is changed
	Scenario string
	Finds    Kind
}

// HostScenario is a small world of hosts. explore visits all of its states.
type HostScenario struct {
	Name    string
	Big     bool
	explore func(off HostSwitch) Result
}

// More kinds of what is found.
const (
	TwoCauses  Kind = "two causes"
	FalseAlert Kind = "a frame that no peer sends"
)

// hostStep is a step to another state. wrong, if not nil, is what is wrong with it.
type hostStep[S comparable] struct {
	to    S
	text  string
	wrong *violation
}

// world is what exploreHosts needs to know of a kind of states.
type world[S comparable] struct {
	start  S
	steps  func(S) []hostStep[S]
	atRest func(S) *violation // of a state that nothing leaves
}

// exploreHosts visits every state, breadth first, and stops at the first violation.
func exploreHosts[S comparable](w world[S]) Result {
	type origin struct {
		from uint32
		text string
	}
	var r Result
	seed, seen := maphash.MakeSeed(), newSet()
	seen.add(maphash.Comparable(seed, w.start))
	origins := []origin{{}}
	level, next := []S{w.start}, []S(nil)
	base := uint32(0)
	report := func(v *violation, at uint32, last string) {
		r.States = len(origins)
		r.Violation = &Violation{Kind: v.kind, Text: v.text}
		for ; at != 0; at = origins[at].from {
			r.Violation.Trace = append(r.Violation.Trace, origins[at].text)
		}
		slices.Reverse(r.Violation.Trace)
		if last != "" {
			r.Violation.Trace = append(r.Violation.Trace, last)
		}
	}
	for len(level) > 0 {
		for i, s := range level {
			at := base + uint32(i)
			steps := w.steps(s)
			if len(steps) == 0 {
				if v := w.atRest(s); v != nil {
					report(v, at, "")
					return r
				}
			}
			for _, st := range steps {
				r.Steps++
				if st.wrong != nil {
					report(st.wrong, at, st.text)
					return r
				}
				if seen.add(maphash.Comparable(seed, st.to)) {
					next = append(next, st.to)
					origins = append(origins, origin{at, st.text})
				}
			}
		}
		base += uint32(len(level))
		level, next = next, level[:0]
		if len(level) > 0 {
			r.Depth++
		}
	}
	r.States = len(origins)
	return r
}

// HostScenarios lists the scenarios of hosts.
var HostScenarios = slices.Concat(linkScenarios, answersScenarios, calmScenarios, pumpScenarios, fifoScenarios, directScenarios, verdictScenarios, openingScenarios, meetingScenarios)

// HostMutations are all protections between hosts.
var HostMutations = slices.Concat(linkMutations, calmMutations, pumpMutations, fifoMutations, directMutations, verdictMutations, openingMutations, meetingMutations)

func findHosts(name string) HostScenario {
	for _, sc := range HostScenarios {
		if sc.Name == name {
			return sc
		}
	}
	panic(fmt.Sprintf("there is no scenario %q of hosts", name))
}
