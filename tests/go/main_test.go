// Package ranks tests the library with ranks that are processes: this test binary starts itself once per rank. What can
// be tested with ranks as goroutines is tested in pgbackend; here is what needs processes: ways to the memory, death,
// being stopped, leaving, and what stays behind.
//
// Start reading at kill_test.go; rank_test.go is the program that a rank runs, process_test.go is how the test sees it.
package ranks

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

const (
	roleVariable = "RANKS_TEST" // its value is the orders of a rank
	hangAfter    = time.Minute  // no single step takes so long
	opTimeout    = 60 * time.Second
)

var (
	kills   = flag.Int("kills", 12, "how often a rank is killed at a random moment")
	garbage = flag.Int("garbage", 16, "how often a rank writes random words all over its memory")
	seed    = flag.Uint64("seed", 0, "seed of random moments; 0: another one each time")
)

func TestMain(m *testing.M) {
	if orders := os.Getenv(roleVariable); orders != "" {
		if err := rankMain(orders); err != nil {
			fmt.Fprintln(os.Stderr, "rank:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := os.Setenv("SAGECOMM_PROBE", "off"); err != nil { // tables that are the same on all machines
		panic(err)
	}
	os.Exit(m.Run())
}

func newRandom(t *testing.T) *rand.Rand {
	t.Helper()
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("seed %d; -args -seed=%d runs it again", s, s)
	return rand.New(rand.NewPCG(s, 0))
}
