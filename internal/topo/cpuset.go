package topo

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// CPUSet is a set of numbers of cpus or nodes, in ascending order without repetition. In JSON it is a list in the kernel's
// format, "0-3,8".
type CPUSet []int

// maxCPU bounds the memory that a list of cpus can take. Linux has fewer than 2^13 cpus and 2^10 nodes.
const maxCPU = 1<<16 - 1

// ParseCPUSet reads a list in the kernel's format: numbers and ranges, separated by commas. The empty text is the empty set.
func ParseCPUSet(text string) (CPUSet, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	seen := map[int]bool{}
	for _, part := range strings.Split(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		first, err := parseCPU(low)
		if err != nil {
			return nil, fmt.Errorf("%q in the list %q: %w", part, text, err)
		}
		last, err := parseCPU(high)
		if err != nil {
			return nil, fmt.Errorf("%q in the list %q: %w", part, text, err)
		}
		if last < first {
			return nil, fmt.Errorf("%q in the list %q runs backwards", part, text)
		}
		for n := first; n <= last; n++ {
			seen[n] = true
		}
	}
	set := make(CPUSet, 0, len(seen))
	for n := range seen {
		set = append(set, n)
	}
	return set.sorted(), nil
}

func parseCPU(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n > maxCPU {
		return 0, fmt.Errorf("want numbers up to %d", maxCPU)
	}
	return int(n), nil
}

// String returns the list that [ParseCPUSet] reads.
func (s CPUSet) String() string {
	var b strings.Builder
	for i := 0; i < len(s); {
		last := i
		for last+1 < len(s) && s[last+1] == s[last]+1 {
			last++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(s[i]))
		if last > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(s[last]))
		}
		i = last + 1
	}
	return b.String()
}

// MarshalText returns the text of String, for JSON.
func (s CPUSet) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the text as [ParseCPUSet] does, for JSON.
func (s *CPUSet) UnmarshalText(text []byte) (err error) {
	*s, err = ParseCPUSet(string(text))
	return err
}

func (s CPUSet) contains(n int) bool {
	_, found := slices.BinarySearch(s, n)
	return found
}

func (s CPUSet) sorted() CPUSet {
	slices.Sort(s)
	return slices.Compact(s)
}
