package topo

import (
	"slices"
	"strings"
	"testing"
)

func TestLists(t *testing.T) {
	for _, c := range []struct {
		text string
		want CPUSet
		back string
	}{
		{"", nil, ""},
		{"0\n", CPUSet{0}, "0"},
		{"0-3,8", CPUSet{0, 1, 2, 3, 8}, "0-3,8"},
		{"8,0-1,1-2", CPUSet{0, 1, 2, 8}, "0-2,8"},
		{"5-5", CPUSet{5}, "5"},
		{"4,5,7,65535", CPUSet{4, 5, 7, 65535}, "4-5,7,65535"},
	} {
		got, err := ParseCPUSet(c.text)
		if err != nil || !slices.Equal(got, c.want) || got.String() != c.back {
			t.Errorf("%q: %v, %q, %v", c.text, []int(got), got, err)
		}
	}
}

func TestWhatIsNoListIsRefused(t *testing.T) {
	for _, text := range []string{
		",", "0,", "-1", "0-", "3-1", "a", "0x1", "0 1", "+1", "1_0", "0-3:1/2", "65536", "0-4294967295",
		"99999999999999999999",
	} {
		if got, err := ParseCPUSet(text); err == nil || !strings.Contains(err.Error(), "in the list") {
			t.Errorf("%q: %v, %v", text, []int(got), err)
		}
	}
}

func FuzzParseCPUSet(f *testing.F) {
	for _, text := range []string{"", "0-3,8", "8,0-1,1-2", "0-", "65535", "0-99999999999"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		set, err := ParseCPUSet(text)
		if err != nil {
			return
		}
		for i, n := range set {
			if n < 0 || n > maxCPU || i > 0 && n <= set[i-1] {
				t.Fatalf("%q gives %v", text, []int(set))
			}
		}
		if again, err := ParseCPUSet(set.String()); err != nil || !slices.Equal(again, set) {
			t.Fatalf("%q is written as %q, which reads as %v, %v", text, set, []int(again), err)
		}
	})
}
