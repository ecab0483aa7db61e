// Command faults makes ranks die, stop, leave, lag and disagree at chosen moments and compares what the other ranks report
// with the contract: the same cause on every survivor, in time, and nothing left behind. The ranks are processes that have
// libsagecomm.so and nothing else, built with fault points in it (internal/runner/faults.h).
//
//	go run ./tests/faults                    every cell of the matrix once
//	go run ./tests/faults -for 2m            cells in random order until the time is up
//	go run ./tests/faults -match 'all_reduce/.*/kill/'
//	go run ./tests/faults -kills 500         deaths at random moments of a rank's life
//	go run ./tests/faults -soak 60m          cells, deaths and random programs through torch, in turn
//
// Start reading at matrix.go, which defines the cells. cell.go and init.go run one cell, entry.go makes the calls of its
// survivors, verdict.go holds the contract that a cell is compared with, and rank/ is the program that a rank runs.
package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// setup holds what all parts of the tool share.
type setup struct {
	root  string
	built built
	dir   string // for stores, removed at the end
	seed  uint64

	sockets sockets
}

func newSetup(seed uint64) (*setup, error) {
	root, err := findRoot()
	if err != nil {
		return nil, err
	}
	b, err := build(root)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("/dev/shm", "faults-") // a disk may hold up who renames a file for as long as it likes
	if err != nil {
		dir, err = os.MkdirTemp("", "faults-")
	}
	if err != nil {
		return nil, err
	}
	if seed == 0 {
		seed = rand.Uint64()>>1 + 1
	}
	return &setup{root: root, built: b, dir: dir, seed: seed}, nil
}

func (s *setup) close() error { return os.RemoveAll(s.dir) }

// pool makes a pool with a directory of its own.
func (s *setup) pool(name string) (*pool, error) {
	dir := filepath.Join(s.dir, name)
	p := newPool(s.built, dir, &s.sockets)
	return p, os.MkdirAll(p.files, 0o700)
}

func main() {
	var (
		seed   = flag.Uint64("seed", 0, "seed of all that is random; 0 picks one")
		match  = flag.String("match", "", "a regular expression: cells whose names it matches, such as all_reduce/small/kill/away/4")
		limit  = flag.Duration("for", 0, "run cells in random order for so long; 0: each cell once")
		jobs   = flag.Int("jobs", 2, "cells at the same time")
		list   = flag.Bool("list", false, "print the names of the cells instead")
		deaths = flag.Int("kills", 0, "instead of the matrix, kill ranks this many times at random moments")
		first  = flag.Uint64("first", 0, "number of the first of -kills, to run one again")
		soak   = flag.Duration("soak", 0, "instead of the matrix, run cells, deaths and random programs for so long")
		python = flag.String("python", ".venv/bin/python", "with -soak: the Python that has torch and sagecomm")
	)
	flag.Parse()
	if *list {
		all, _ := cells()
		for _, c := range all {
			fmt.Println(c)
		}
		return
	}
	s, err := newSetup(*seed)
	if err == nil {
		fmt.Printf("seed %d\n", s.seed)
		switch {
		case *soak > 0:
			err = s.soak(*soak, *python, os.Stdout)
		case *deaths > 0:
			err = s.kills(*deaths, *first, os.Stdout)
		default:
			err = s.matrix(*match, *limit, *jobs, os.Stdout)
		}
		err = errors.Join(err, s.close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}
