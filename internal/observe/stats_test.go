package observe_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/internal/observe"
	"sagecomm/internal/runner"
	"sagecomm/pgbackend"
)

// There is a row for each kind, type, size class and algorithm, and the rows add up to the calls that were made.
func TestStatsRows(t *testing.T) {
	w := newWorld(t, 2, nil)
	w.each(func(g *pgbackend.Group) error {
		for range 3 {
			if f := sum(g, 2); f != nil {
				return f
			}
		}
		for _, n := range []int{3, 4, 1 << 20} {
			if f := sum(g, n); f != nil {
				return f
			}
		}
		b := one(make([]byte, 6))
		if _, f := g.Issue(coll.Op{Kind: coll.Broadcast, Type: coll.Int16}, b, b); f != nil {
			return f
		}
		op := coll.Op{Kind: coll.Recv, Type: coll.Uint8, Root: 1 - g.Rank()}
		in, out := [][]byte(nil), one(make([]byte, 100))
		if g.Rank() == 0 {
			op.Kind, in, out = coll.Send, out, nil
		}
		_, f := g.Issue(op, in, out)
		return asError(f)
	})
	for _, g := range w.groups {
		s, err := g.Stats()
		require.NoError(t, err)
		got := []string{}
		for _, r := range s.Rows {
			got = append(got, fmt.Sprintf("%s %s up to %d %s %s: %d, %d bytes", r.Op, r.Type, *r.UpTo, r.Algorithm, r.Transport, r.Count, r.Bytes))
			if r.AverageUS <= 0 || r.P50US <= 0 || r.P99US < r.P50US || r.LongestUS < r.P99US || r.WaitedUS < 0 || r.RestUS < 0 ||
				r.WaitedUS+r.RestUS-r.AverageUS > 1e-9*r.AverageUS || r.AverageUS > r.LongestUS || r.AlgBW <= 0 || r.BusBW <= 0 {
				t.Errorf("times that cannot be: %+v", r)
			}
		}
		slices.Sort(got)
		want := []string{
			"all_reduce float32 up to 16 one_shot shm: 2, 28 bytes",
			"all_reduce float32 up to 4194304 two_shot shm: 1, 4194304 bytes",
			"all_reduce float32 up to 8 one_shot shm: 3, 24 bytes",
			"broadcast int16 up to 8 one_shot shm: 1, 6 bytes",
			[]string{"send", "recv"}[g.Rank()] + " uint8 up to 128  shm: 1, 100 bytes",
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("rank %d:\n%s\nexpected\n%s", g.Rank(), strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if s.AllReduceCount != 6 || s.TotalBytes != 28+4194304+24+6+100 || s.AverageMS <= 0 {
			t.Errorf("%d all_reduces, %d bytes, %v ms", s.AllReduceCount, s.TotalBytes, s.AverageMS)
		}
	}
}

// If a rank comes late, the statistics of the others show the time as waiting for peers.
func TestStatsTellWaitingFromTheRest(t *testing.T) {
	w := newWorld(t, 2, nil)
	const late, rounds = 30 * time.Millisecond, 5
	var told []string
	for round := range rounds { // the system may delay a rank, which adds to its rest: one good round is enough
		elements := 1 << (10 + round) // each round has a size class, and so a row, of its own
		w.each(func(g *pgbackend.Group) error {
			if g.Rank() == 1 {
				awaitAsleep(w.groups[0], uint64(round+1))
				time.Sleep(late)
			}
			return asError(sum(g, elements))
		})
		stats, err := w.groups[0].Stats()
		require.NoError(t, err)
		rows := stats.Rows
		i := slices.IndexFunc(rows, func(r observe.StatRow) bool { return *r.UpTo == uint64(4*elements) })
		if i < 0 || rows[i].WaitedUS < float64(late.Microseconds())/2 {
			t.Fatalf("round %d: row %d of %+v", round, i, rows)
		}
		if rows[i].WaitedUS >= rows[i].RestUS {
			return
		}
		told = append(told, fmt.Sprintf("%v us of %v", rows[i].WaitedUS, rows[i].AverageUS))
	}
	t.Errorf("the rows report these waits: %v", told)
}

// awaitAsleep returns when the rank sleeps inside its collective of that number.
func awaitAsleep(g *pgbackend.Group, sequence uint64) {
	for g.Sequence() < sequence {
		time.Sleep(time.Millisecond)
	}
	sleeps := func() uint64 {
		stats, _ := g.Stats() // fails once the group is destroyed only
		return stats.Sleeps
	}
	for before := sleeps(); sleeps() == before; {
		time.Sleep(time.Millisecond)
	}
}

func TestQuantiles(t *testing.T) {
	h := runner.Histogram{Begin: []float64{0, 1, 2, 4}, Counts: []uint64{0, 98, 1, 1}}
	for q, want := range map[float64]time.Duration{0.5: time.Second + time.Second*50/98, 0.98: 2 * time.Second, 0.99: 4 * time.Second, 1: 4 * time.Second} {
		if got := h.Quantile(q); (got - want).Abs() > time.Microsecond {
			t.Errorf("quantile %v is %v, expected %v", q, got, want)
		}
	}
	if got := (runner.Histogram{Begin: []float64{0, 1}, Counts: []uint64{0, 0}}).Quantile(0.5); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
