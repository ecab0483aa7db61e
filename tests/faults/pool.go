package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// pool keeps processes warm: a cell takes as many as it has ranks and gives back those that live.
type pool struct {
	built
	dir   string // for the stores of the cells
	files string // for files of shared memory
	cells int
	idle  []*process
	next  chan started // a process that is being started while a cell runs

	sockets *sockets // of all pools
}

type started struct {
	p   *process
	err error
}

func newPool(b built, dir string, all *sockets) *pool {
	p := &pool{built: b, dir: dir, sockets: all, files: filepath.Join(dir, "shm"), next: make(chan started, 1)}
	p.startNext()
	return p
}

func (p *pool) startNext() {
	go func() {
		one, err := startProcess(p.built)
		p.next <- started{one, err}
	}()
}

// store makes a new directory, the store in which the ranks of a cell meet.
func (p *pool) store() (string, error) {
	p.cells++
	dir := filepath.Join(p.dir, "store-"+strconv.Itoa(p.cells))
	return dir, os.Mkdir(dir, 0o700)
}

// take returns n processes that hold no group.
func (p *pool) take(n int) ([]*process, error) {
	for len(p.idle) < n {
		s := <-p.next
		p.startNext()
		if s.err != nil {
			return nil, s.err
		}
		if err := p.measure(s.p); err != nil {
			return nil, err
		}
		p.idle = append(p.idle, s.p)
	}
	taken := p.idle[:n:n]
	p.idle = append([]*process{}, p.idle[n:]...)
	return taken, nil
}

// measure makes a process use the library once, so that it has what it keeps for good: memory, progress engine, sockets.
func (p *pool) measure(one *process) error {
	dir, err := p.store()
	if err != nil {
		return err
	}
	r, err := one.await(one.order("snapshot", dir))
	if err == nil && r.Status.Failed() {
		err = errors.New(r.Message)
	}
	if err != nil {
		return fmt.Errorf("a new process: %w\n%s", err, one.tail())
	}
	one.base = r.held
	return p.sockets.note(one.pid)
}

func (p *pool) giveBack(list []*process) {
	for _, one := range list {
		if one.alive() {
			p.idle = append(p.idle, one)
		}
	}
}

// close ends all processes and returns an error for each that did not end well.
func (p *pool) close() error {
	s := <-p.next
	if s.err == nil {
		p.idle = append(p.idle, s.p)
	}
	err := s.err
	for _, one := range p.idle {
		err = errors.Join(err, one.finish())
	}
	p.idle = nil
	return err
}
