package algo

import (
	"slices"
	"testing"
)

func TestEngineThatAllRanksOffer(t *testing.T) {
	nccl, staged := Offers{"nccl": "", "staged": ""}, Offers{"staged": ""}
	cuda := Offers{"nccl": "no libnccl.so.2", "cuda": "", "staged": ""}
	unlike := Offers{"nccl": "no GPU", "hccl": ""}
	for _, c := range []struct {
		name  string
		ranks []Offers
		set   string
		want  string // the choice
		whys  map[string]string
	}{
		{"the most preferred", []Offers{nccl, nccl}, AutoEngine, "nccl", map[string]string{
			"nccl": "the most preferred of those that all ranks offer", "hccl": "this library has no such engine", "staged": "nccl is preferred"}},
		{"a rank without it", []Offers{nccl, staged, nccl}, AutoEngine, "staged", map[string]string{
			"nccl": "rank 1 does not offer it: its library has no such engine"}},
		{"reasons of ranks", []Offers{cuda, nccl, cuda, staged}, AutoEngine, "staged", map[string]string{
			"nccl": "ranks 0, 2 do not offer it: no libnccl.so.2, rank 3 does not offer it: its library has no such engine",
			"cuda": "ranks 1, 3 do not offer it: its library has no such engine"}},
		{"one reason of all", []Offers{cuda, cuda}, AutoEngine, "cuda", map[string]string{
			"nccl": "no rank offers it: no libnccl.so.2", "staged": "cuda is preferred"}},
		{"set", []Offers{nccl, nccl}, "staged", "staged", map[string]string{"nccl": "not what is set", "staged": "set by SAGECOMM_ENGINE"}},
		{"set and not offered", []Offers{nccl, cuda}, "nccl", "", map[string]string{"nccl": "rank 1 does not offer it: no libnccl.so.2", "staged": "not what is set"}},
		{"none", []Offers{nccl, unlike}, AutoEngine, "", map[string]string{"hccl": "rank 0 does not offer it: its library has no such engine"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			choice := ChooseEngine(c.ranks, c.set)
			if choice.Engine != c.want {
				t.Errorf("%q is chosen, expected %q", choice.Engine, c.want)
			}
			var names []string
			for _, one := range choice.Candidates {
				names = append(names, one.Engine)
				if one.Chosen != (one.Engine == c.want) || one.Forced != (one.Chosen && c.set != AutoEngine) {
					t.Errorf("%+v", one)
				}
			}
			if !slices.Equal(names, DeviceEngines()) {
				t.Errorf("candidates %v", names)
			}
			for name, why := range c.whys {
				if one, _ := choice.Candidate(name); one.Why != why {
					t.Errorf("%s: %q, expected %q", name, one.Why, why)
				}
			}
		})
	}
}

func TestEngineChoiceInWords(t *testing.T) {
	ranks := []Offers{{"nccl": "", "staged": ""}, {"nccl": "no libnccl.so.2", "hccl": "", "staged": ""}}
	for set, want := range map[string]string{
		AutoEngine: "staged (the most preferred of those that all ranks offer; not nccl: rank 1 does not offer it: no libnccl.so.2; " +
			"not hccl: rank 0 does not offer it: its library has no such engine; not cncl: this library has no such engine; " +
			"not cuda: this library has no such engine)",
		"staged": "staged (set by SAGECOMM_ENGINE; not nccl: rank 1 does not offer it: no libnccl.so.2; " +
			"not hccl: rank 0 does not offer it: its library has no such engine; not cncl: this library has no such engine; " +
			"not cuda: this library has no such engine)",
	} {
		if got := ChooseEngine(ranks, set).Describe(); got != want {
			t.Errorf("%s\nexpected\n%s", got, want)
		}
	}
}
