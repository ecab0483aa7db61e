package runner

import "testing"

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
