package pgbackend

import (
	"testing"

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
