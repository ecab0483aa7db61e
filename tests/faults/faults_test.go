package main

import (
	"bytes"
	"flag"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
	"sagecomm/tests/quick"
)

var (
	seedFlag = flag.Uint64("faults.seed", 0, "what is random follows from it; 0: another one each time")
	cellsFor = flag.Duration("faults.for", 80*time.Second, "how long to run cells of the matrix")
	deathsOf = flag.Int("faults.kills", 40, "how many deaths at random moments")
)

func testSetup(t *testing.T) *setup {
	t.Helper()
	s, err := newSetup(*seedFlag)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("seed %d; -args -faults.seed=%d runs it again", s.seed, s.seed)
	return s
}

// A random selection of the matrix. All of it: make faults.
func TestCells(t *testing.T) {
	limit := *cellsFor
	if testing.Short() {
		limit = min(limit, 10*time.Second)
	}
	if quick.Only() {
		limit = min(limit, 5*time.Second)
	}
	s := testSetup(t)
	var out bytes.Buffer
	err := s.matrix("", limit, 2, &out)
	t.Log(out.String())
	if err != nil {
		t.Error(err)
	}
}

// Deaths at random moments. 500 of them: make kills.
func TestDeaths(t *testing.T) {
	n := *deathsOf
	if testing.Short() {
		n = min(n, 8)
	}
	if quick.Only() {
		n = min(n, 4)
	}
	s := testSetup(t)
	var out bytes.Buffer
	err := s.kills(n, 0, &out)
	t.Log(out.String())
	if err != nil {
		t.Error(err)
	}
}

// A fault point costs the library nothing: its hook is not there, neither as a symbol nor as a reference to one.
func TestLibraryHasNoFaultPoints(t *testing.T) {
	root, err := findRoot()
	require.NoError(t, err)
	// The archive of the package that the points are in, built as the library is.
	symbols := func(flags ...string) string {
		list := exec.Command("go", append(append([]string{"list", "-export", "-trimpath", "-buildmode=c-shared", "-f", "{{.Export}}"}, flags...), "./internal/runner")...)
		list.Dir = root
		path, err := list.Output()
		if err != nil {
			t.Fatalf("%v: %v", list.Args, err)
		}
		nm := exec.Command("go", "tool", "nm", strings.TrimSpace(string(path)))
		text, err := nm.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", nm.Args, err, text)
		}
		return string(text)
	}
	if text := symbols(); !strings.Contains(text, "scr_run_advance") || strings.Contains(text, "sagecomm_fault_hook") {
		t.Error("the runner of a normal build refers to sagecomm_fault_hook, or has no scr_run_advance")
	}
	if !strings.Contains(symbols("-tags", "faults"), "sagecomm_fault_hook") {
		t.Error("with the tag `faults` the runner does not refer to sagecomm_fault_hook, so this test finds nothing")
	}
}

// Every fault, moment, path and size of the matrix has cells, and a combination is in it once or left out for a reason.
func TestMatrixIsWhole(t *testing.T) {
	list, skipped := cells()
	left := 0
	for _, n := range skipped {
		left += n
	}
	if want := len(paths) * len(faults) * len(moments) * len(sizes); len(list)+left != want {
		t.Errorf("%d cells and %d that are left out make %d, expected %d", len(list), left, len(list)+left, want)
	}
	count := func(part func(c cell) bool) (n int) {
		for _, c := range list {
			if part(c) {
				n++
			}
		}
		return n
	}
	for _, fault := range faults {
		if count(func(c cell) bool { return c.fault == fault }) == 0 {
			t.Errorf("fault %s is nowhere", fault)
		}
	}
	for _, moment := range moments {
		if count(func(c cell) bool { return c.moment == moment }) == 0 {
			t.Errorf("moment %s is nowhere", moment)
		}
	}
	for _, p := range paths {
		if p.op == "none" {
			continue
		}
		for _, fault := range []string{"kill", "exit", "stop", "leave", "abort", "slow"} {
			for _, moment := range []string{"started", "published"} {
				if n := count(func(c cell) bool {
					return c.op == p.op && c.variant == p.variant && c.fault == fault && c.moment == moment
				}); n != len(sizes) && !p.apart || n != 1 && p.apart {
					t.Errorf("%s/%s/%s/%s has %d cells, expected one for each size, or one between hosts", p.op, p.variant, fault, moment, n)
				}
			}
		}
	}
}

// Every collective that has a hierarchical plan meets faults between hosts in it.
func TestHierarchicalPaths(t *testing.T) {
	var kinds []coll.Kind
	for _, p := range paths {
		if p.hierarchical() {
			require.Equal(t, p.kind.String()+":hierarchical@chunk=4K", p.tune)
			kinds = append(kinds, p.kind)
		}
	}
	require.ElementsMatch(t, []coll.Kind{coll.AllReduce, coll.AllGather, coll.ReduceScatter, coll.Broadcast, coll.Reduce, coll.AllToAll}, kinds)
}

// The same seed gives the same cells in the same order, and another one another order.
func TestSeedDecidesTheOrder(t *testing.T) {
	first, _, _ := selectCells("", 7)
	again, _, _ := selectCells("", 7)
	other, _, _ := selectCells("", 8)
	if !slices.Equal(first, again) {
		t.Error("two selections of one seed differ")
	}
	if slices.Equal(first, other) {
		t.Error("selections of two seeds are in the same order")
	}
}
