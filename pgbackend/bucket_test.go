package pgbackend

import (
	"slices"
	"testing"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
)

var fused = options{"fusion": "static"}

// tenSums issues ten asynchronous all_reduces of 512 float32, then waits for them.
func tenSums(g *Group) *coll.Failure {
	var works [10]runner.Work
	for i := range works {
		var f *coll.Failure
		if works[i], f = sumAsync(g, 512); f != nil {
			return f
		}
	}
	for _, w := range works {
		if f := finish(w); f != nil {
			return f
		}
		w.Release()
	}
	return nil
}

func TestTen(t *testing.T) {
	w := newWorldWith(t, 2, opTimeout, fused)
	t.Log(w.groups[0].fusionLimits())
	w.each(func(g *Group) error { return asError(tenSums(g)) })
	t.Log(w.groups[0].run.Sequence(), w.groups[0].Sequence())
}

func TestSpeed(t *testing.T) {
	for round := range 3 {
		for _, o := range []options{nil, fused} {
			w := newWorldWith(t, 2, opTimeout, o)
			var took [2][]time.Duration
			w.each(func(g *Group) error {
				for range 2000 {
					if f := sum(g, 600); f != nil {
						return f
					}
					t := time.Now()
					if f := tenSums(g); f != nil {
						return f
					}
					took[g.rank] = append(took[g.rank], time.Since(t))
				}
				return nil
			})
			slices.Sort(took[0])
			t.Log(round, o, took[0][200], took[0][1000], took[0][1800])
		}
	}
}

func TestLatency(t *testing.T) {
	w := newWorldWith(t, 2, opTimeout, fused)
	var worst [20]time.Duration
	for i := range worst {
		begin := time.Now()
		a, _ := sumAsync(w.groups[0], 10)
		b, _ := sumAsync(w.groups[1], 10)
		finish(a)
		m := time.Now()
		finish(b)
		worst[i] = time.Since(begin)
		t.Log(m.Sub(begin), worst[i])
		a.Release()
		b.Release()
	}
}
