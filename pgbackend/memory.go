package pgbackend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"sagecomm/internal/env"
	"sagecomm/internal/observe"
	"sagecomm/internal/runner"
	"sagecomm/internal/shmem"
)

// memory holds the arenas of this process. Usually there is one, a memfd. Where peers cannot map a memfd, each group
// gets an arena of its own, made of a file that loses its name once all peers have mapped it.
type memory struct {
	shared *processArena
	bells  sync.Mutex // held while an engine bell is added or removed
}

// processArena is an arena of this process. Its front page holds what belongs to the process: the engine's bell and the
// list of flight recorders.
type processArena struct {
	*shmem.Arena
	front shmem.Range
}

func (p *Process) newArena(kind shmem.Kind, s *env.Settings) (*processArena, error) {
	p.memory.bells.Lock()
	defer p.memory.bells.Unlock()
	arena, err := shmem.NewArena(kind, env.ArenaSize.Get(s), env.ShmDir.Get(s))
	if err != nil {
		return nil, err
	}
	front, err := arena.Alloc(observe.FrontBytes, 4096)
	if err == nil && !runner.AddEngineBell(unsafe.Pointer(unsafe.SliceData(arena.Bytes(front)))) {
		err = fmt.Errorf("sagecomm: this process has too many arenas, %d: each group that maps a file has one of its own; destroy groups that are not used any more", runner.MaxBells)
	}
	if err != nil {
		return nil, errors.Join(err, arena.Close())
	}
	return &processArena{arena, front}, nil
}

// closeArena unmaps an arena.
// Requires: no group uses the arena.
func (p *Process) closeArena(a *processArena) error {
	p.memory.bells.Lock()
	runner.RemoveEngineBell(a.at(a.front))
	p.memory.bells.Unlock()
	p.engine.changed(p) // returns when the engine no longer reads the bell
	return a.Close()
}

func (a *processArena) at(r shmem.Range) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(a.Bytes(r)))
}

// sharedArena returns the process's memfd arena, which the first call makes. It returns an error if the arena cannot be
// made.
func (p *Process) sharedArena(s *env.Settings) (*processArena, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.memory.shared == nil {
		made, err := p.newArena(shmem.Memfd, s)
		if err != nil {
			return nil, err
		}
		p.memory.shared = made
	}
	return p.memory.shared, nil
}

// groupMemory is this rank's memory for one group. Its first ranges are the shared blocks, by lane.
type groupMemory struct {
	arena   *processArena
	ranges  []shmem.Range
	control shmem.Range // the control area, which most groups never touch
	listing observe.Listing
}

// newGroupMemory makes the shared blocks of both lanes. Most groups never use the device lane, so its pages come when
// they are written.
func newGroupMemory(arena *processArena, rank, size int) (*groupMemory, error) {
	b := &groupMemory{arena: arena}
	for lane, alloc := range []func(n, align int64) (shmem.Range, error){runner.HostLane: arena.Alloc, runner.DeviceLane: arena.AllocLazily} {
		r, err := alloc(runner.SharedBlockBytes(runner.Lane(lane), size), 4096)
		if err != nil {
			return nil, errors.Join(err, b.free())
		}
		runner.FormatSharedBlock(arena.at(r), runner.Lane(lane), rank, size, arena.front.Off)
		b.ranges = append(b.ranges, r)
	}
	var err error
	if b.control, err = arena.AllocLazily(controlBytes, 4096); err != nil {
		return nil, errors.Join(err, b.free())
	}
	return b, nil
}

// at returns the address of the shared block of the host lane.
func (b *groupMemory) at() unsafe.Pointer { return b.arena.at(b.ranges[runner.HostLane]) }

// more allocates n further bytes of the arena for the group and returns their offset.
func (b *groupMemory) more(n int64) (int64, error) {
	r, err := b.arena.Alloc(n, 4096)
	if err != nil {
		return 0, err
	}
	b.ranges = append(b.ranges, r)
	return r.Off, nil
}

// flightLog allocates a flight recorder in the arena, where peers can read it, and returns its offset. It returns 0
// for a recorder that is off, too large or finds no room; peers cannot read it then.
func (b *groupMemory) flightLog(capacity int, stacks bool) int64 {
	if capacity == 0 || runner.FlightBytes(capacity, stacks) > observe.MaxFlightLog {
		return 0
	}
	r, err := b.arena.AllocLazily(runner.FlightBytes(capacity, stacks), 4096)
	if err != nil {
		return 0
	}
	b.ranges = append(b.ranges, r)
	return r.Off
}

// free returns the group's memory to the arena.
// Requires: no peer touches the memory any more.
func (b *groupMemory) free() error {
	if err := b.listing.Remove(b.arena.Arena); err != nil {
		return err
	}
	for _, r := range append(b.ranges, b.control) {
		if r.Len == 0 { // it was not allocated
			continue
		}
		if err := b.arena.Free(r); err != nil {
			return err
		}
	}
	b.ranges = nil
	return nil
}

// attachAll maps the arenas of ranks, by rank; those of a nil descriptor are left out. On error nothing stays mapped.
func attachAll(ctx context.Context, list []*shmem.Descriptor, methods []shmem.Method) (_ []*shmem.Mapping, err error) {
	maps := make([]*shmem.Mapping, len(list))
	for rank, d := range list {
		if d == nil {
			continue
		}
		if maps[rank], err = shmem.Attach(ctx, *d, methods); err != nil {
			releaseAll(maps)
			return nil, fmt.Errorf("the shared memory of rank %d (pid %d): %w", rank, d.PID, err)
		}
	}
	return maps, nil
}

func releaseAll(maps []*shmem.Mapping) {
	for _, m := range maps {
		if m != nil {
			_ = m.Release() // fails only if it is called once too often
		}
	}
}
