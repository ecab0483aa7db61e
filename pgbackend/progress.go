package pgbackend

import (
	"maps"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sagecomm/internal/env"
	"sagecomm/internal/observe"
	"sagecomm/internal/runner"
)

// progressEngine drives operations that no caller waits for. It is one goroutine locked to its own thread. What may take long
// is done on other goroutines (see aside), so that one group never stops the others.
type progressEngine struct {
	once  sync.Once
	mu    sync.Mutex
	acked *sync.Cond
	want  uint64          // version of the list of groups that is wanted
	have  uint64          // version that the engine drives
	away  map[uint64]bool // groups, by handle, that another goroutine looks after: they are not driven meanwhile
}

// changed tells the engine that the list of groups has changed and returns when it drives the new one.
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
				runtime.LockOSThread()
				name("sagecomm-done")
				runner.RunCompleter(10 * time.Second)
				// The thread ends with the goroutine: its name and its state in Python are not for others.
			}()
		}
	}
}

// diagnose finds out why a group cannot go on. Tests hold it up.
var diagnose = (*Process).Incident

// aside looks after a group on another goroutine. To diagnose a failure takes a while, because the diagnosis watches whom the
// peers wait for, and a fifo is made under a lock that is held while programs are compiled. The group is not driven until
// then: the engine would meet the same state again at once.
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

// follow takes the list of groups as it is now. Callers of changed are answered whatever happens; a panic takes the groups
// down, and the thread goes on for groups that are made later.
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
		if !away[g.Handle()] {
			run = append(run, g.run)
		}
	}
	drive.SetGroups(run)
	for _, g := range groups {
		pin(g.settings)
	}
}

// name names the calling thread, at most 15 bytes. It is for people who look at threads; a failure changes nothing.
func name(s string) {
	text := append([]byte(s), 0)
	_ = unix.Prctl(unix.PR_SET_NAME, bytePointer(text), 0, 0, 0)
}

// pin keeps the calling thread to the cores that the user chose for the progress engine. Tests put a fault in its place.
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
