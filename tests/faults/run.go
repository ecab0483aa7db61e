package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"sync"
	"time"
)

// selectCells returns the cells that match, in an order that follows from the seed.
func selectCells(match string, seed uint64) (list []cell, skipped map[string]int, err error) {
	expression, err := regexp.Compile(match)
	if err != nil {
		return nil, nil, err
	}
	all, skipped := cells()
	for _, c := range all {
		if expression.MatchString(c.String()) {
			list = append(list, c)
		}
	}
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list, skipped, nil
}

// matrix runs cells until limit has passed, or all of them if limit is 0. It returns an error if some failed; it has printed
// those.
func (s *setup) matrix(match string, limit time.Duration, jobs int, out io.Writer) error {
	list, skipped, err := selectCells(match, s.seed)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return fmt.Errorf("no cell matches %q; -list prints them all", match)
	}
	fmt.Fprintf(out, "%d cells\n%s", len(list), skippedText(skipped))
	began := time.Now()
	sum, err := s.runCells(list, func() bool { return limit == 0 || time.Since(began) < limit }, jobs, out)
	if sum != nil {
		sum.print(out)
		fmt.Fprintf(out, "%v\n", since(began))
		if n := len(sum.failed); n > 0 {
			err = errors.Join(err, fmt.Errorf("%d of %d cells failed, seed %d", n, sum.total(), s.seed))
		}
	}
	return err
}

// runCells runs cells until there are no more or going returns false.
func (s *setup) runCells(list []cell, going func() bool, jobs int, out io.Writer) (*summary, error) {
	queue := make(chan cell)
	sum := newSummary()
	var mu sync.Mutex // guards sum, out and all
	var all error
	var workers sync.WaitGroup
	pools := make([]*pool, jobs)
	for job := range pools {
		var err error
		if pools[job], err = s.pool(fmt.Sprintf("job-%d-%d", job, time.Now().UnixNano())); err != nil {
			return nil, err
		}
	}
	for _, p := range pools {
		workers.Go(func() {
			for c := range queue {
				t, err := runCell(p, c, s.seed)
				mu.Lock()
				if err != nil {
					all = errors.Join(all, fmt.Errorf("cell %v: %w", c, err))
				}
				if t != nil {
					sum.add(t)
					if len(t.notes) > 0 {
						t.tell(out, s.seed, t.said)
					}
				}
				mu.Unlock()
			}
			err := p.close()
			mu.Lock()
			all = errors.Join(all, err)
			mu.Unlock()
		})
	}
	told := time.Now()
	for i, c := range list {
		if !going() {
			break
		}
		queue <- c
		if time.Since(told) > time.Minute {
			told = time.Now()
			mu.Lock()
			fmt.Fprintf(out, "%d of %d cells begun, %d failed\n", i+1, len(list), len(sum.failed))
			mu.Unlock()
		}
	}
	close(queue)
	workers.Wait()
	left, err := s.sockets.left()
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("sockets of dead processes are left: %v", left))
	}
	return sum, errors.Join(all, err)
}
