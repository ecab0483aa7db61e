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

// engine is the goroutine that drives what nobody waits for, on a thread of its own.
type engine struct {
	once  sync.Once
	mu    sync.Mutex
	acked *sync.Cond
	want  uint64 // version of the list of groups that is wanted
	have  uint64 // version that the engine drives
	// Groups that are being diagnosed, by handle: not driven, so that they are not found in incident again meanwhile.
	diagnosed map[uint64]bool
}

// changed tells the engine that the list of groups has changed and returns when it drives the new one.
func (e *engine) changed(p *Process) {
	e.once.Do(func() {
		e.acked = sync.NewCond(&e.mu)
		e.diagnosed = map[uint64]bool{}
		runner.SetEngineBackoff(runner.Backoff{Spin: 20, Yield: 50 * time.Microsecond})
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

func (e *engine) loop(p *Process) {
	runtime.LockOSThread()
	name("sagecomm-prog")
	var drive runner.Engine
	for {
		turn := drive.Turn()
		switch turn.Reason {
		case runner.Control:
			e.follow(p, &drive)
		case runner.FoundIncident:
			e.diagnose(p, turn)
			e.follow(p, &drive)
		case runner.WantFifo:
			p.Fifo(turn.Group, turn.Incident.Peer)
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

// diagnose says what has become of a group. Tests hold it up.
var diagnose = (*Process).Incident

// diagnose has a group diagnosed on another goroutine: who looks whom its peers wait for may look for a while, and the other
// groups go on.
func (e *engine) diagnose(p *Process, turn runner.Turn) {
	e.mu.Lock()
	e.diagnosed[turn.Group] = true
	e.mu.Unlock()
	go func() {
		diagnose(p, turn.Group, turn.Incident)
		e.mu.Lock()
		delete(e.diagnosed, turn.Group)
		e.mu.Unlock()
		e.changed(p)
	}()
}

// follow takes the list of groups as it is now. Whoever waits for that is answered whatever happens; a panic takes the
// groups down, and the thread goes on for those that come.
func (e *engine) follow(p *Process, drive *runner.Engine) {
	e.mu.Lock()
	version, diagnosed := e.want, maps.Clone(e.diagnosed)
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
		if !diagnosed[g.Handle()] {
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
