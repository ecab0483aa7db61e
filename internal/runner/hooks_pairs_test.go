package runner

import "testing"

type testPair struct{ pushed int }

func (p *testPair) Push()       { p.pushed++ }
func (p *testPair) Poll() bool  { return p.pushed > 0 }
func (p *testPair) Wake()       {}
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

// polledPair counts polls, and threads that attend it.
type polledPair struct {
	testPair
	polls, attended, most, began int
}

func (p *polledPair) Poll() bool { p.polls++; return false }

func (p *polledPair) Attend(on bool) {
	if !on {
		p.attended--
		return
	}
	p.attended++
	p.began++
	p.most = max(p.most, p.attended)
}

// A thread that waits for many ranks of other hosts, one after the other, polls for few of them, whatever their numbers are. Of a wait for any rank all
// have their turn.
func TestPollsOfManyPairs(t *testing.T) {
	const size, rounds = 100, 1000
	for name, c := range map[string]struct {
		waits       func(round int) int32
		most, least int // polls of a rank
		began       int // times that one is attended
	}{
		"one":            {func(int) int32 { return 80 }, rounds, rounds, 1},
		"two in turn":    {func(n int) int32 { return int32(80 + n%2) }, rounds, rounds - 1, 1},
		"all in turn":    {func(n int) int32 { return int32(1 + n%(size-1)) }, 11 * 4, 10 * 4, 11},
		"any":            {func(int) int32 { return -1 }, rounds, rounds / 25, 1},
		"one, and local": {func(n int) int32 { return int32(80 * (n % 2)) }, rounds, rounds / 2, 1},
	} {
		numbers, pairs := make([]uint64, size), make([]*polledPair, size)
		for rank := 1; rank < size; rank++ { // rank 0 is one of this host
			pairs[rank] = &polledPair{}
			numbers[rank] = AddPair(pairs[rank])
		}
		ranks := make([]int32, rounds)
		for n := range ranks {
			ranks[n] = c.waits(n)
		}
		if !testPolls(numbers, ranks) {
			t.Fatal("no memory")
		}
		all, waited := 0, 0
		for rank := 1; rank < size; rank++ {
			p := pairs[rank]
			RemovePair(numbers[rank])
			all += p.polls
			if p.attended != 0 || p.most > 1 {
				t.Errorf("%s: rank %d is attended %d times at the end, and %d at once", name, rank, p.attended, p.most)
			}
			if p.polls == 0 {
				continue
			}
			waited++
			if p.polls < c.least || p.polls > c.most || p.began > c.began {
				t.Errorf("%s: %d polls for rank %d, which was attended %d times", name, p.polls, rank, p.began)
			}
		}
		if waited == 0 || all > 8*rounds || name == "any" && waited != size-1 {
			t.Errorf("%s: %d polls for %d ranks", name, all, waited)
		}
	}
}
