package runner

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

type testPair struct{ pushed int }

func (p *testPair) Push()       { p.pushed++ }
func (p *testPair) Poll() bool  { return p.pushed > 0 }
func (p *testPair) Wake()       {}
func (p *testPair) Detach()     {}
func (p *testPair) Attend(bool) {}

func (p *testPair) Send(Payload) bool   { return false }
func (p *testPair) Expect(Payload) bool { return false }
func (p *testPair) Forget(int)          {}

// Numbers of pairs are used again, and a number that is not used calls nothing.
func TestNumbersOfPairs(t *testing.T) {
	a, b := &testPair{}, &testPair{}
	first, second := AddPair(a), AddPair(b)
	if first == 0 || second == 0 || first == second {
		t.Fatal(first, second)
	}
	RemovePair(first)
	if pairAt(first) != nil || pairAt(second) != b || pairAt(second+100) != nil || pairAt(0) != nil {
		t.Error("the wrong pair")
	}
	if again := AddPair(a); again != first || pairAt(again) != a || pairAt(second) != b {
		t.Error(again)
	}
	RemovePair(first)
	RemovePair(second)
}

// A process of large groups has tens of thousands of pairs, in several blocks. Each costs as much as the first one.
func TestManyPairs(t *testing.T) {
	const many = 3 * pairsOfABlock
	list, numbers := make([]testPair, many), make([]uint64, many)
	var before, behind runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range list {
		numbers[i] = AddPair(&list[i])
	}
	runtime.ReadMemStats(&behind)
	require.Less(t, behind.TotalAlloc-before.TotalAlloc, uint64(200*many))
	for i, n := range numbers {
		require.Same(t, &list[i], pairAt(n))
	}
	for i := range numbers {
		if i%2 == 0 {
			RemovePair(numbers[i])
		}
	}
	for i, n := range numbers {
		require.Equal(t, i%2 == 0, pairAt(n) == nil)
	}
	for i := range numbers {
		if i%2 == 0 {
			numbers[i] = AddPair(&list[i])
		}
	}
	for i, n := range numbers {
		require.LessOrEqual(t, n, uint64(many+pairsOfABlock), "numbers are used again")
		require.Same(t, &list[i], pairAt(n))
		RemovePair(n)
	}
	require.Nil(t, pairAt(mostBlocks*pairsOfABlock))
}
