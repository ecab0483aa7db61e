package pgbackend

import (
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sagecomm/internal/env"
	"sagecomm/internal/observe"
	"sagecomm/internal/runner"
)

// progressEngine drives operations that no caller waits for. It is one goroutine locked to its own thread. Slow work
// runs on other goroutines (see aside), so that one group never stops the others.
type progressEngine struct {
	once  sync.Once
	mu    sync.Mutex
	acked *sync.Cond
	want  uint64          // version of the list of groups that is wanted
	have  uint64          // version that the engine drives
	away  map[uint64]bool // lanes, by handle, that another goroutine handles (see aside); the engine does not drive them
}

// changed makes the engine read the list of groups again and returns when the engine drives the groups of the new list.
func (e *progressEngine) changed(p *Process) {
	e.once.Do(func() {
		e.acked = sync.NewCond(&e.mu)
		e.away = map[uint64]bool{}
		runner.ConfigureEngine(engineConfig)
		go e.loop(p)
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.want++
	mine := e.want
	runner.WakeEngine()
	for e.have < mine {
		e.acked.Wait()
	}
}

func (e *progressEngine) loop(p *Process) {
	runtime.LockOSThread()
	name("sagecomm-prog")
	var drive runner.Engine
	for {
		turn := drive.Turn()
		switch turn.Reason {
		case runner.Control:
			e.follow(p, &drive)
		case runner.FoundIncident:
			e.aside(p, turn.Group, func() { diagnose(p, turn.Group, turn.Incident) })
			e.follow(p, &drive)
		case runner.WantFifo:
			e.aside(p, turn.Group, func() { p.Fifo(turn.Group, turn.Incident.Peer) })
			e.follow(p, &drive)
		case runner.WantCompleter:
			go func() {
				defer p.recoverAll()
				runtime.LockOSThread()
				name("sagecomm-done")
				runner.RunCompleter(10 * time.Second)
				// The locked thread ends with the goroutine, so no other goroutine gets its name and its Python state.
			}()
		}
	}
}

// diagnose handles an incident of a group.
func diagnose(p *Process, group uint64, t runner.Incident) {
	if f := diagnoseInTests.Load(); f != nil {
		(*f)(p, group, t)
		return
	}
	p.Incident(group, t)
}

// diagnoseInTests is a function of a test that takes the place of Process.Incident.
var diagnoseInTests atomic.Pointer[func(*Process, uint64, runner.Incident)]

// aside runs work for a group on another goroutine. A diagnosis is slow because it watches which ranks the peers wait
// for, and making a fifo is slow because it takes a lock that is held while programs are compiled. The engine does not
// drive the group until work returns, because it would meet the same incident again at once.
func (e *progressEngine) aside(p *Process, group uint64, work func()) {
	e.mu.Lock()
	e.away[group] = true
	e.mu.Unlock()
	go func() {
		defer func() {
			e.mu.Lock()
			delete(e.away, group)
			e.mu.Unlock()
			e.changed(p)
		}()
		defer recoverFrom("the progress of a group")
		work()
	}()
}

// follow reads the list of groups and drives the groups in it from then on. Callers of changed return in any case: a
// panic fails the groups of the list, and the engine goes on with groups that are made later.
func (e *progressEngine) follow(p *Process, drive *runner.Engine) {
	e.mu.Lock()
	version, away := e.want, maps.Clone(e.away)
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.have = version
		e.acked.Broadcast()
		e.mu.Unlock()
	}()
	defer p.recoverAll()
	groups := p.snapshot()
	var run []*runner.Group
	for _, g := range groups {
		for _, l := range g.lanes() {
			if !away[l.run.Handle()] {
				run = append(run, l.run)
			}
		}
	}
	drive.SetGroups(run)
	for _, g := range groups {
		pin(g.settings)
	}
}

// name sets the name of the calling thread, at most 15 bytes. Only debuggers and the like show it, so errors are
// ignored.
func name(s string) {
	text := append([]byte(s), 0)
	_ = unix.Prctl(unix.PR_SET_NAME, bytePointer(text), 0, 0, 0)
}

// pin restricts the calling thread to the cores that the user chose for the progress engine. Tests replace it with a
// function that panics.
var pin = func(s *env.Settings) {
	cores := env.ProgressCPU.Get(s)
	if !cores.Given {
		return
	}
	var set unix.CPUSet
	for _, c := range cores.Value {
		set.Set(c)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		observe.Warn("SAGECOMM_PROGRESS_CPU: the progress thread cannot run on cores %v: %v", cores.Value, err)
	}
}
