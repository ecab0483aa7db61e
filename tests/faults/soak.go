package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// One round of a soak.
const (
	roundOfCells     = 30 * time.Second
	deathsPerRound   = 20
	programsPerRound = 30
)

// soak runs cells, deaths and random programs in turn, each with fresh seeds, until the time is up. It returns an
// error if something failed; it printed the failure, and how to run it again, when it happened.
func (s *setup) soak(limit time.Duration, python string, out io.Writer) error {
	if _, err := exec.LookPath(python); err != nil {
		return fmt.Errorf("soak runs random programs through torch: %w; name the Python that has it with -python", err)
	}
	python, err := filepath.Abs(python)
	if err != nil {
		return err
	}
	seeds := rand.New(rand.NewPCG(s.seed, 1))
	began := time.Now()
	going := func() bool { return time.Since(began) < limit }
	cellSum, deathSum, programs := newSummary(), newDeaths(), 0
	var failed []string
	var all error
	for round := 1; going(); round++ {
		s.seed = seeds.Uint64() >> 1
		list, _, err := selectCells("", s.seed)
		if err != nil {
			return err
		}
		until := time.Now().Add(roundOfCells)
		sum, err := s.runCells(list, func() bool { return going() && time.Now().Before(until) }, 2, out)
		all = errors.Join(all, err)
		if sum != nil {
			cellSum.merge(sum)
			for _, name := range sum.failed {
				failed = append(failed, fmt.Sprintf("go run ./tests/faults -seed %d -match '^%s$'", s.seed, name))
			}
		}
		died, err := s.runDeaths(deathsPerRound, 0, going, out)
		all = errors.Join(all, err)
		if died != nil {
			deathSum.merge(died)
			if len(died.failed) > 0 {
				failed = append(failed, fmt.Sprintf("go run ./tests/faults -seed %d -kills %d", s.seed, deathsPerRound))
			}
		}
		if going() {
			n, wrong, err := s.programs(python, seeds.Uint64()>>33, out)
			programs += n
			failed = append(failed, wrong...)
			all = errors.Join(all, err)
		}
		fmt.Fprintf(out, "round %d, %v: %d cells, %d deaths, %d programs, %d failures\n", round, since(began), cellSum.total(), deathSum.killed, programs, len(failed))
	}
	cellSum.print(out)
	deathSum.print(out)
	fmt.Fprintf(out, "%d random programs\n%v, %d failures\n", programs, since(began), len(failed))
	for _, again := range failed {
		fmt.Fprintln(out, "again:", again)
	}
	if len(failed) > 0 {
		all = errors.Join(all, fmt.Errorf("%d failures", len(failed)))
	}
	return all
}

var failedProgram = regexp.MustCompile(`(?m)^program (\d+) failed:`)

// programs runs some random programs through torch, beginning with this seed.
func (s *setup) programs(python string, seed uint64, out io.Writer) (n int, failed []string, err error) {
	cmd := exec.Command(python, "tests/python/random_programs.py", "--programs", strconv.Itoa(programsPerRound), "--seed", strconv.FormatUint(seed, 10))
	cmd.Dir = s.root
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(s.root, "torch_ext"))
	said, err := cmd.CombinedOutput()
	if err == nil {
		return programsPerRound, nil, nil
	}
	if _, err := out.Write(said); err != nil {
		return 0, nil, err
	}
	for _, found := range failedProgram.FindAllSubmatch(said, -1) {
		failed = append(failed, fmt.Sprintf("python tests/python/random_programs.py --programs 1 --seed %s", found[1]))
	}
	if len(failed) == 0 {
		return 0, nil, fmt.Errorf("%v: %w: %s", cmd.Args, err, bytes.TrimSpace(said))
	}
	return programsPerRound, failed, nil
}

// merge adds the counts of another summary.
func (s *summary) merge(other *summary) {
	for fault, n := range other.run {
		s.run[fault] += n
	}
	s.failed = append(s.failed, other.failed...)
	for what, list := range other.times {
		s.times[what] = append(s.times[what], list...)
		s.bounds[what] = other.bounds[what]
	}
}

func (d *deaths) merge(other *deaths) {
	d.summary.merge(&other.summary)
	for name, n := range other.phases {
		d.phases[name] += n
	}
	d.killed += other.killed
	d.early += other.early
}
