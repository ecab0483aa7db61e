package runner

import (
	"testing"
	"time"
)

func TestProbe(t *testing.T) {
	p, ok := RunProbe(10 * time.Second)
	if !ok {
		t.Fatal("no memory, or no thread")
	}
	t.Logf("%+v", p)
	// These limits hold on any machine: a byte takes a femtosecond to a microsecond, a hop a nanosecond to a second.
	for name, seconds := range map[string]float64{"copy": p.Copy, "reduce": p.Reduce, "far": p.Far} {
		if name == "far" && p.Far == 0 {
			continue // one processor
		}
		if seconds < 1e-15 || seconds > 1e-6 {
			t.Errorf("%s of %v seconds a byte", name, seconds)
		}
	}
	if (p.Hop == 0) != (p.Far == 0) || p.Hop < 0 || p.Hop > 1 || p.Claim < 0 {
		t.Errorf("%+v", p)
	}
}

// If the second thread does not get to run in time, the probe lacks only the costs between cores.
func TestProbeWithoutTime(t *testing.T) {
	p, ok := RunProbe(-time.Second)
	if !ok {
		t.Fatal("no memory, or no thread")
	}
	if p.Copy <= 0 || p.Reduce <= 0 {
		t.Errorf("%+v", p)
	}
}
