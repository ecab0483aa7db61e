package board

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"testing"

	"sagecomm/internal/coll"
)

// The proofs throw away nearly all that they allocate, and the little that is left would have it collected all the
// time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(1000)
	m.Run()
}

// build makes the plans of all ranks.
func build(t testing.TB, kind coll.Kind, algorithm string, size, root int, lane Lane, chunk int) []Plan {
	t.Helper()
	plans := make([]Plan, size)
	for rank := range plans {
		p, err := Build(kind, algorithm, Place{rank, size, root, lane, chunk})
		if err != nil {
			t.Fatal(err)
		}
		plans[rank] = p
	}
	return plans
}

func lanes(f family) []Lane {
	if f.name == TwoShotName || f.kind == coll.AllToAll {
		return []Lane{LargeLane}
	}
	return []Lane{SmallLane, LargeLane}
}

// edges are the byte counts around every edge of a plan's arithmetic, up to more chunks than the lane has slots.
func edges(chunk int, lane Lane) []uint64 {
	c := uint64(chunk)
	return []uint64{0, 1, 63, 64, 65, c - 1, c, c + 1, 2*c + 64, uint64(lane.Slots()+2)*c + 17}
}

func TestEveryAlgorithmIsRight(t *testing.T) {
	sizes := []int{48, 64}
	for size := 1; size <= 33; size++ {
		sizes = append(sizes, size)
	}
	for _, f := range families {
		for _, lane := range lanes(f) {
			t.Run(fmt.Sprintf("%v/%s/%v", f.kind, f.name, lane), func(t *testing.T) {
				t.Parallel()
				for _, size := range sizes {
					if lane == SmallLane && size > 12 && size != 33 {
						continue // the large lane has the same stages and fewer slots
					}
					roots := []int{0}
					if f.kind.Rooted() {
						roots = []int{0, size / 3, size - 1}
						if size <= 6 {
							roots = roots[:0]
							for root := range size {
								roots = append(roots, root)
							}
						}
					}
					for i, root := range roots {
						if i > 0 && root == roots[i-1] {
							continue
						}
						for _, chunk := range []int{64, 192} {
							if chunk == 64 && size > 9 {
								continue // at most one rank has a share
							}
							plans := build(t, f.kind, f.name, size, root, lane, chunk)
							for _, bytes := range edges(chunk, lane) {
								if err := Check(plans, bytes); err != nil {
									t.Fatal(err)
								}
								if f.kind == coll.Barrier {
									break
								}
							}
						}
					}
				}
			})
		}
	}
}

func TestSharesOfManyRanksAreRight(t *testing.T) {
	for _, size := range []int{2, 3, 5, 8, 17, 33, 64} {
		for _, kind := range []coll.Kind{coll.AllReduce, coll.Reduce} {
			chunk := 64*size + 128
			if err := Check(build(t, kind, TwoShotName, size, size-1, LargeLane, chunk), uint64(3*chunk-63)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestBlocksMayDifferInLength(t *testing.T) {
	const seed = 20260901
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const chunk = 64
	for _, kind := range []coll.Kind{coll.AllGather, coll.ReduceScatter, coll.AllToAll} {
		for size := 1; size <= 9; size++ {
			plans := build(t, kind, OneShotName, size, 0, LargeLane, chunk)
			for round := range 30 {
				blocks := make([]uint64, size)
				if kind == coll.AllToAll {
					blocks = make([]uint64, size*size)
				}
				for i := range blocks {
					longest := []int{0, 10, plans[0].Head + 1, plans[0].Head + chunk*7}[rng.IntN(4)]
					blocks[i] = uint64(rng.IntN(longest + 1))
				}
				if round == 0 {
					clear(blocks)
				}
				if err := CheckBlocks(plans, 0, blocks); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

func TestARankAloneCopies(t *testing.T) {
	for kind := range coll.KindCount {
		if !kind.Collective() {
			continue
		}
		for _, bytes := range []uint64{0, 1, 1000} {
			if err := Check(build(t, kind, LocalName, 1, 0, LargeLane, 128), bytes); err != nil {
				t.Error(err)
			}
		}
	}
}

// Slots pass from one collective to the next without a barrier in between, whatever the two are.
func TestCollectivesFollowOneAnother(t *testing.T) {
	for _, size := range []int{1, 2, 3, 5, 9} {
		for _, first := range families {
			for _, second := range families {
				var calls []Call
				for i, f := range []family{first, second, first, second, second, first} {
					lane := LargeLane
					if f.name == OneShotName && f.kind != coll.AllToAll && i%3 == 0 {
						lane = SmallLane
					}
					calls = append(calls, Call{
						Plans: build(t, f.kind, f.name, size, i%size, lane, 64), Bytes: uint64(i*150) % 400, InPlace: i%2 == 0,
					})
				}
				if err := CheckSequence(calls...); err != nil {
					t.Fatalf("%v %s, %v %s: %v", first.kind, first.name, second.kind, second.name, err)
				}
			}
		}
	}
}

// reject runs plans, or a machine that change has spoiled, and wants an error that holds every text, from every single
// schedule: the verdict must not hang on the order in which ranks happen to run.
func reject(t *testing.T, plans []Plan, bytes uint64, slots int, inPlace bool, spoil func(*machine), want ...string) {
	t.Helper()
	for _, s := range schedules(len(plans)) {
		m, err := newMachine([2]int{slots, slots}, Call{Plans: plans, Bytes: bytes, InPlace: inPlace})
		if err != nil {
			t.Fatal(err)
		}
		if spoil != nil {
			spoil(m)
		}
		err = m.check([]schedule{s})
		if err == nil {
			t.Errorf("%s: accepted", s.name)
			continue
		}
		for _, text := range want {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v\nlacks %q", s.name, err, text)
			}
		}
	}
}

// with applies a change to the stages of all ranks, or of one.
func with(plans []Plan, rank int, change func([]Stage) []Stage) []Plan {
	for i := range plans {
		if rank < 0 || i == rank {
			plans[i].Stages = change(plans[i].Stages)
		}
	}
	return plans
}

func TestBrokenPlansAreRejected(t *testing.T) {
	const all = -1
	oneShot := func() []Plan { return build(t, coll.AllReduce, OneShotName, 4, 0, LargeLane, 256) }
	twoShot := func() []Plan { return build(t, coll.AllReduce, TwoShotName, 4, 0, LargeLane, 256) }
	drop := func(i int) func([]Stage) []Stage {
		return func(s []Stage) []Stage { return append(append([]Stage{}, s[:i]...), s[i+1:]...) }
	}
	edit := func(i int, f func(*Stage)) func([]Stage) []Stage {
		return func(s []Stage) []Stage { s = append([]Stage{}, s...); f(&s[i]); return s }
	}
	// A few chunks, fewer than the slots: nothing here is about reuse.
	const bytes = 700
	for _, c := range []struct {
		name  string
		plans []Plan
		slots int
		bytes uint64
		want  []string
	}{
		{"a stage is missing: collect", with(twoShot(), all, drop(2)), 4, bytes,
			[]string{"rank 0, at the end of the call", "bytes [64, 256) of the output were never written"}},
		{"a stage is missing: fold", with(twoShot(), all, drop(1)), 4, bytes,
			[]string{"deadlock: rank 0, chunk 0, stage 1 (collect) waits for rank 1's reduced of chunk 0"}},
		{"a stage is missing: publish on one rank", with(oneShot(), 2, drop(0)), 4, bytes,
			[]string{"rank 2, chunk 0, stage 0 (fold): reads bytes [0, 256) of rank 2's slot 0, which nobody has written"}},
		{"a stage is missing: publish on the rank that does not read", with(build(t, coll.Reduce, OneShotName, 4, 0, LargeLane, 256), 2,
			func([]Stage) []Stage { return []Stage{{Action: Await}} }), 4, bytes,
			[]string{"deadlock: rank 0, chunk 0, stage 1 (fold) waits for rank 2's filled of chunk 0"}},
		{"a stage is missing: fold on one rank", with(oneShot(), 3, drop(1)), 4, bytes,
			[]string{"rank 3, at the end of the call", "bytes [0, 700) of the output were never written"}},
		{"wrong part: a share is taken for the whole", with(oneShot(), all, edit(1, func(s *Stage) { s.Part = Share })), 4, bytes,
			[]string{"rank 0, at the end of the call: bytes [64, 256) of the output were never written"}},
		{"wrong part: the whole goes to the slots", with(twoShot(), 1, edit(1, func(s *Stage) { s.Part = Whole })), 4, bytes,
			[]string{"rank 1, chunk 0, stage 1 (fold): reads bytes [", "without waiting for rank ", "chunk 0, stage 1 (fold), which writes them"}},
		{"wrong source: own contribution left out", with(oneShot(), 2, edit(1, func(s *Stage) { s.From = Others })), 4, bytes,
			[]string{"rank 2, at the end", "hold {0@0 + 1@0 + 3@0}, expected {0@0 + 1@0 + 2@0 + 3@0}"}},
		{"wrong source: own share read before it is reduced", with(twoShot(), all, edit(2, func(s *Stage) { s.From = Nobody })), 4, bytes,
			[]string{"rank 0, at the end", "bytes [64, 256) of the output were never written"}},
		{"wrong target: the result goes back to nobody", with(twoShot(), 3, edit(1, func(s *Stage) { s.Back = Nobody })), 4, bytes,
			[]string{"deadlock: rank 0, chunk 0, stage 2 (collect) waits for rank 3's reduced of chunk 0"}},
		{"wrong target: the result goes back to the root only", with(twoShot(), 3, edit(1, func(s *Stage) { s.Back = FromRoot })), 4, bytes,
			[]string{"rank 1, at the end of the call", "hold {1@192}, expected {0@192 + 1@192 + 2@192 + 3@192}"}},
		{"wrong target: the result stays out of the output", with(twoShot(), 1, edit(1, func(s *Stage) { s.ToOutput = false })), 4, bytes,
			[]string{"rank 1, at the end of the call: bytes [64, 128) of the output were never written"}},
		{"wrong lag: collect before fold", with(twoShot(), all, edit(2, func(s *Stage) { s.Lag = 0 })), 4, bytes,
			[]string{"deadlock: rank 0, chunk 0, stage 2 (collect) waits for rank 1's reduced of chunk 0"}},
		{"wrong lag: fold before publish", with(oneShot(), all, edit(0, func(s *Stage) { s.Lag = 2 })), 4, bytes,
			[]string{"deadlock: rank 0, chunk 0, stage 1 (fold) waits for rank 1's filled of chunk 0"}},
		{"wrong lag: as large as the slots are many", with(oneShot(), all, edit(1, func(s *Stage) { s.Lag = 4 })), 4, 256 * 6,
			[]string{"deadlock: rank 0, chunk 4, stage 0 (publish) waits for rank 1's consumed of chunk 0"}},
		{"too few slots", twoShot(), 2, bytes,
			[]string{"deadlock: rank 0, chunk 2, stage 0 (publish) waits for rank 1's consumed of chunk 0"}},
		{"wrong order: fold before publish of the same chunk", with(oneShot(), all, func(s []Stage) []Stage {
			return []Stage{{Action: Fold, From: Everybody, ToOutput: true}, s[0]}
		}), 4, bytes, []string{"deadlock: rank 0, chunk 0, stage 0 (fold)"}},
		{"alone: fold before publish", with(build(t, coll.AllReduce, OneShotName, 1, 0, LargeLane, 256), all, func(s []Stage) []Stage {
			return []Stage{{Action: Fold, From: Everybody, ToOutput: true}, s[0]}
		}), 4, bytes, []string{"rank 0, chunk 0, stage 0 (fold): reads bytes [0, 256) of rank 0's slot 0, which nobody has written"}},
		{"broadcast: the root reads, too", with(build(t, coll.Broadcast, OneShotName, 3, 1, LargeLane, 256), 2, edit(0, func(s *Stage) { s.From = Everybody })), 4, bytes,
			[]string{"deadlock: rank 2, chunk 0, stage 0 (read) waits for rank 0's filled of chunk 0"}},
		{"all_gather: own block left out", with(build(t, coll.AllGather, OneShotName, 3, 0, LargeLane, 256), 1, edit(1, func(s *Stage) { s.From = FromRoot })), 4, bytes,
			[]string{"rank 1, at the end of the call: bytes [700, 1400) of the output were never written"}},
		{"reduce: another rank than the root has the result", with(build(t, coll.Reduce, TwoShotName, 3, 0, LargeLane, 256), 2, edit(1, func(s *Stage) { s.ToOutput = true })), 4, bytes,
			[]string{"rank 2, at the end of the call: a rank that is not the root wrote its output"}},
		{"reduce_scatter: a share is taken for the block", with(build(t, coll.ReduceScatter, OneShotName, 3, 0, LargeLane, 256), 1, edit(1, func(s *Stage) { s.From = Others })), 4, bytes,
			[]string{"rank 1, at the end of the call", "hold {0@700 + 2@700}, expected {0@700 + 1@700 + 2@700}"}},
		{"all_to_all: heads are not read", with(build(t, coll.AllToAll, OneShotName, 3, 0, LargeLane, 256), 1, edit(1, func(s *Stage) { s.From = Nobody })), 4, bytes,
			[]string{"rank 1, at the end of the call", "were never written"}},
		{"gather: the root's own block is left out", with(build(t, coll.Gather, OneShotName, 3, 1, LargeLane, 256), 1, edit(0, func(s *Stage) { s.From = Everybody })), 4, bytes,
			[]string{"rank 1, chunk 0, stage 0 (read): reads bytes [0, 256) of rank 1's slot 0, which nobody has written"}},
		{"scatter: the root keeps nothing", with(build(t, coll.Scatter, OneShotName, 3, 1, LargeLane, 256), 1, drop(1)), 4, bytes,
			[]string{"rank 1, at the end of the call: bytes [0, 700) of the output were never written"}},
		{"barrier: nobody waits", with(build(t, coll.Barrier, OneShotName, 3, 0, SmallLane, 64), all, drop(1)), 4, 0,
			[]string{"rank 0, at the end of the call: it may leave before rank 1 has entered"}},
		{"barrier: one rank does not wait", with(build(t, coll.Barrier, OneShotName, 3, 0, SmallLane, 64), 2, drop(1)), 4, 0,
			[]string{"rank 2, at the end of the call: it may leave before rank 0 has entered"}},
	} {
		t.Run(c.name, func(t *testing.T) { reject(t, c.plans, c.bytes, c.slots, false, nil, c.want...) })
	}
}

// The waits themselves: without any one kind of them some access is not ordered, and that is found under every
// schedule, also under those in which it happens to come out right.
func TestEveryWaitIsNeeded(t *testing.T) {
	without := func(a Action) func(*machine) {
		return func(m *machine) {
			for _, steps := range m.steps {
				for i := range steps {
					if steps[i].Action == a {
						steps[i].Waits = nil
					}
				}
			}
		}
	}
	const bytes = 256*6 + 9
	for _, c := range []struct {
		kind      coll.Kind
		algorithm string
		action    Action
		want      string
	}{
		// A two-shot alone orders its publishes by its other waits: what it collects lies in its own slots. Its waits
		// for consumed are for what other collectives have left in the lane; see below.
		{coll.AllReduce, OneShotName, Fold, "(fold): reads bytes"},
		{coll.AllReduce, TwoShotName, Fold, "(fold): reads bytes"},
		{coll.AllReduce, TwoShotName, Collect, "(collect): reads bytes"},
		{coll.Broadcast, OneShotName, Read, "(read): reads bytes"},
		{coll.Broadcast, OneShotName, Publish, "(publish): writes bytes"},
		{coll.Reduce, OneShotName, Publish, "(publish): writes bytes"},
		{coll.Reduce, TwoShotName, Collect, "(collect): reads bytes"},
		{coll.Barrier, OneShotName, Await, "may leave before"},
		{coll.ReduceScatter, OneShotName, Fold, "(fold): reads bytes"},
		{coll.AllToAll, OneShotName, Read, "(read): reads bytes"},
		{coll.Gather, OneShotName, Read, "(read): reads bytes"},
		{coll.Gather, OneShotName, Publish, "(publish): writes bytes"},
		{coll.Scatter, OneShotName, Read, "(read): reads bytes"},
		{coll.Scatter, OneShotName, Publish, "(publish): writes bytes"},
	} {
		plans := build(t, c.kind, c.algorithm, 4, 0, LargeLane, 256)
		for _, s := range schedules(4) {
			m, err := newMachine([2]int{4, 4}, Call{Plans: plans, Bytes: bytes})
			if err != nil {
				t.Fatal(err)
			}
			without(c.action)(m)
			err = m.check([]schedule{s})
			// A race may also show as its consequence, another ticket's data or none at all, or, where the reader
			// came first, from the writer's side.
			if err == nil {
				t.Errorf("%v %s without the waits of %v, %s: accepted", c.kind, c.algorithm, c.action, s.name)
			} else if s.name == "round-robin" && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v %s without the waits of %v: %v\nlacks %q", c.kind, c.algorithm, c.action, err, c.want)
			}
		}
	}
}

// A slot that a broadcast has filled is still being read when the next collective, a two-shot, wants it.
func TestTwoShotWaitsForTheCollectiveBefore(t *testing.T) {
	calls := []Call{
		{Plans: build(t, coll.Broadcast, OneShotName, 3, 1, LargeLane, 256), Bytes: 256 * 4},
		{Plans: build(t, coll.AllReduce, TwoShotName, 3, 0, LargeLane, 256), Bytes: 256},
	}
	for _, s := range schedules(3) {
		m, err := newMachine([2]int{4, 4}, calls...)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.check([]schedule{s}); err != nil {
			t.Fatal(err)
		}
		for _, steps := range m.steps {
			for i := range steps {
				if steps[i].call == 1 && steps[i].Action == Publish {
					steps[i].Waits = nil
				}
			}
		}
		if err := m.check([]schedule{s}); err == nil {
			t.Errorf("without the waits for consumed, %s: accepted", s.name)
		}
	}
}

// In place, an input that is read after its place has been overwritten by the result is seen in the values.
func TestInPlaceOrderMatters(t *testing.T) {
	plans := build(t, coll.AllReduce, OneShotName, 2, 0, LargeLane, 64)
	reject(t, plans, 192, 4, true, func(m *machine) {
		for i, in := range m.steps[0] {
			if in.Action == Publish && in.Chunk == 2 {
				m.steps[0][i].Moves[0].From[0].Off = 0 // chunk 0, folded one position ago
			}
		}
	}, "in place", "bytes [128, 192) of the output hold {0@0 + 1@0 + 1@128}, expected {0@128 + 1@128}")
}

func TestWrongBytesAreSeen(t *testing.T) {
	plans := build(t, coll.AllReduce, OneShotName, 2, 0, LargeLane, 64)
	publish := func(chunk int64, change func(*Step)) func(*machine) {
		return func(m *machine) {
			for i := range m.steps[0] {
				if s := &m.steps[0][i].Step; s.Action == Publish && s.Chunk == chunk {
					change(s)
				}
			}
		}
	}
	reject(t, plans, 192, 4, false, publish(2, func(s *Step) { s.Moves[0].From[0].Off = 0 }),
		"bytes [128, 192) of the output hold {0@0 + 1@128}, expected {0@128 + 1@128}")
	reject(t, plans, 64*6, 4, false, publish(4, func(s *Step) { s.Moves = nil }),
		"chunk 4, stage 1 (fold): reads bytes [0, 64) of rank 0's slot 0, which hold ticket 0 instead of 4")
}

// Where every rank reads from every other, the fold of later chunks implies what publish waits for: the checker knows
// orders that follow from others. In a broadcast nothing does.
func TestAWaitThatFollowsFromOthersIsNotMissed(t *testing.T) {
	m, err := newMachine([2]int{4, 4}, Call{Plans: build(t, coll.AllReduce, OneShotName, 3, 0, LargeLane, 64), Bytes: 640})
	if err != nil {
		t.Fatal(err)
	}
	for _, steps := range m.steps {
		for i := range steps {
			if steps[i].Action == Publish {
				steps[i].Waits = nil
			}
		}
	}
	if err := m.check(schedules(3)); err != nil {
		t.Error(err)
	}
}

func TestPlansThatDoNotGoTogether(t *testing.T) {
	plans := func() []Plan { return build(t, coll.AllReduce, OneShotName, 3, 0, LargeLane, 64) }
	other := plans()
	other[1].Chunk = 128
	swapped := plans()
	swapped[0], swapped[1] = swapped[1], swapped[0]
	invalid := plans()
	invalid[2].Chunk = 65
	for _, c := range []struct {
		calls []Call
		want  string
	}{
		{nil, "nothing to check"},
		{[]Call{{Plans: other}}, "the plan of rank 1 (all_reduce one_shot, size 3, root 0, large lane, chunk 128) does not go with"},
		{[]Call{{Plans: swapped}}, "the plan in place 0 is that of rank 1"},
		{[]Call{{Plans: invalid}}, "chunk of 65 bytes"},
		{[]Call{{Plans: plans()}, {Plans: plans()[:2]}}, "call 1 has 2 plans, the first one 3"},
	} {
		if err := CheckSequence(c.calls...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	if err := Check(other, 64); err == nil {
		t.Error("Check accepts plans that do not go together")
	}
	p2p := plans()
	for i := range p2p {
		p2p[i].Kind = coll.Send
	}
	if err := Check(p2p, 64); err == nil || !strings.Contains(err.Error(), "send is no collective") {
		t.Errorf("a plan for send: %v", err)
	}
}

func TestErrorsOfASequenceNameTheCall(t *testing.T) {
	good := build(t, coll.AllReduce, OneShotName, 7, 0, LargeLane, 64)
	bad := build(t, coll.Broadcast, OneShotName, 7, 2, LargeLane, 64)
	bad[2].Stages[0] = Stage{Action: Await, From: Others}
	err := CheckSequence(Call{Plans: good, Bytes: 64}, Call{Plans: bad, Bytes: 64})
	for _, want := range []string{"2 calls, 7 ranks", "rank 0, call 1 (broadcast), chunk 0, stage 0 (read) waits for rank 2's filled", "and 3 ranks more"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}

func TestBarrierInTheMiddleOfASequence(t *testing.T) {
	ok := Call{Plans: build(t, coll.Barrier, OneShotName, 3, 0, SmallLane, 64)}
	bad := Call{Plans: build(t, coll.Barrier, OneShotName, 3, 0, SmallLane, 64)}
	bad.Plans = with(bad.Plans, 1, func(s []Stage) []Stage { return s[:1] })
	if err := CheckSequence(ok, ok, ok); err != nil {
		t.Error(err)
	}
	// Having met before says nothing about this barrier.
	if err := CheckSequence(ok, bad, ok); err == nil || !strings.Contains(err.Error(), "rank 1, at the end of the call: it may leave") {
		t.Errorf("got %v", err)
	}
}
