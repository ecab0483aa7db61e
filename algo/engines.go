package algo

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// deviceEngines lists the engines of the device lane, the most preferred first: vendor libraries, then copies between the devices
// of one host, then staging through host memory, which any device takes.
var deviceEngines = []string{"nccl", "hccl", "cncl", "cuda", "staged"}

// DeviceEngines returns the names of all engines of the device lane, the most preferred first.
func DeviceEngines() []string { return slices.Clone(deviceEngines) }

// engineName is the variable with which users set the engine.
const engineName = "SAGECOMM_ENGINE"

// AutoEngine is the setting that leaves the choice of an engine to [ChooseEngine].
const AutoEngine = "auto"

// Offers holds the engines of one rank by name: "" if the rank offers the engine, else why it does not.
type Offers map[string]string

// EngineCandidate is an engine that the device lane of a group could use.
type EngineCandidate struct {
	Engine  string
	Lacking []int // ranks that do not offer it
	Chosen  bool
	Forced  bool   // chosen by the user
	Why     string // why it is chosen, or not
}

// EngineChoice is the choice of an engine for the device lane of a group. Ranks with the same arguments of [ChooseEngine] make
// the same choice.
type EngineChoice struct {
	Engine     string            // "": all ranks offer none of them
	Candidates []EngineCandidate // all engines, the most preferred first
}

// ChooseEngine chooses the most preferred engine that all ranks offer, or the one that the user has set. ranks has the offers by
// rank; set is the user's setting. The choice has no engine if a rank does not offer the one that is set, or if all ranks offer
// none.
func ChooseEngine(ranks []Offers, set string) (choice EngineChoice) {
	for _, name := range deviceEngines {
		c := EngineCandidate{Engine: name}
		c.Lacking, c.Why = lacking(ranks, name)
		offered := len(c.Lacking) == 0
		switch {
		case offered && set == name:
			c.Chosen, c.Forced, c.Why = true, true, "set by "+engineName
		case offered && set != AutoEngine:
			c.Why = "not what is set"
		case offered && choice.Engine != "":
			c.Why = choice.Engine + " is preferred"
		case offered:
			c.Chosen, c.Why = true, "the most preferred of those that all ranks offer"
		}
		if c.Chosen {
			choice.Engine = name
		}
		choice.Candidates = append(choice.Candidates, c)
	}
	return choice
}

// Candidate returns the candidate of a name.
func (c EngineChoice) Candidate(name string) (EngineCandidate, bool) {
	i := slices.IndexFunc(c.Candidates, func(one EngineCandidate) bool { return one.Engine == name })
	if i < 0 {
		return EngineCandidate{}, false
	}
	return c.Candidates[i], true
}

// Describe returns the choice, and why it is not a more preferred engine.
func (c EngineChoice) Describe() string {
	var others []string
	for _, one := range c.Candidates {
		if one.Chosen {
			return one.Engine + describeOthers(one.Why, others)
		}
		others = append(others, "not "+one.Engine+": "+one.Why)
	}
	return "none" + describeOthers("all ranks offer none", others)
}

func describeOthers(why string, others []string) string {
	return " (" + strings.Join(append([]string{why}, others...), "; ") + ")"
}

// notThere is the reason of a rank whose library does not have an engine.
const notThere = "its library has no such engine"

// lacking returns the ranks that do not offer an engine, and a text with their reasons.
func lacking(ranks []Offers, engine string) (list []int, why string) {
	var reasons []string
	by := map[string][]int{}
	for rank, offers := range ranks {
		reason, known := offers[engine]
		if known && reason == "" {
			continue
		}
		if !known {
			reason = notThere
		}
		if by[reason] == nil {
			reasons = append(reasons, reason)
		}
		by[reason] = append(by[reason], rank)
		list = append(list, rank)
	}
	if len(reasons) == 1 && len(list) == len(ranks) {
		if reasons[0] == notThere {
			return list, "this library has no such engine"
		}
		return list, "no rank offers it: " + reasons[0]
	}
	texts := make([]string, len(reasons))
	for i, reason := range reasons {
		texts[i] = fmt.Sprintf("%s not offer it: %s", ranksDo(by[reason]), reason)
	}
	return list, strings.Join(texts, ", ")
}

// ranksDo names ranks, as the subject of a sentence in the negative: "rank 1 does", "ranks 1, 2 do".
func ranksDo(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d does", ranks[0])
	}
	names := make([]string, len(ranks))
	for i, rank := range ranks {
		names[i] = strconv.Itoa(rank)
	}
	return "ranks " + strings.Join(names, ", ") + " do"
}
