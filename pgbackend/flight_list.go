package pgbackend

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"sagecomm/algo"
	"sagecomm/internal/runner"
	"sagecomm/internal/shmem"
)

// A process lists the flight recorders of its groups in its arena, so that every process that has the arena mapped can
// write its dump, with the groups in it that only others share. The list follows the engine's bell in its page: words, each
// the offset of a description in the same arena, 0: none. A description is its length, 4 bytes, and then JSON, and never
// changes: a new one is put down elsewhere before its word is written.

// listedRecorder is a description.
type listedRecorder struct {
	flightHeader
	Log    int64 `json:"log"`    // offset of the recorder
	Stacks bool  `json:"stacks"` // it records who called
}

const (
	frontBytes = 4096 // the bell and the list
	mostListed = (frontBytes - runner.BellBytes) / 8
	// longestListed is more than any description of algo.MaxSize ranks.
	longestListed = 1 << 20
)

func listAt(front unsafe.Pointer) []atomic.Uint64 {
	return unsafe.Slice((*atomic.Uint64)(unsafe.Add(front, runner.BellBytes)), mostListed)
}

// listing is a group's place in the list of its arena.
type listing struct {
	mu    sync.Mutex
	word  *atomic.Uint64 // nil: none yet
	last  []byte
	texts []shmem.Range // the last one counts; somebody may be reading the others
	over  bool          // it will have none
}

// mostTexts is how often a group may be described anew.
const mostTexts = 16

// list puts a description into the arena's list, in the place of the group's last one. Where there is no room, peers do
// without.
func (b *groupMemory) list(describe func() *listedRecorder) {
	l := &b.listing
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || len(l.texts) == mostTexts {
		return
	}
	text, err := json.Marshal(describe())
	if err != nil || len(text) > longestListed || bytes.Equal(text, l.last) {
		return
	}
	r, err := b.store.arena.Alloc(int64(4+len(text)), 4096)
	if err != nil {
		return
	}
	l.last, l.texts = text, append(l.texts, r)
	mem := b.store.arena.Bytes(r)
	binary.NativeEndian.PutUint32(mem, uint32(len(text)))
	copy(mem[4:], text)
	if l.word != nil {
		l.word.Store(uint64(r.Off))
		return
	}
	words := listAt(b.store.at(b.store.front))
	for i := range words {
		if words[i].CompareAndSwap(0, uint64(r.Off)) {
			l.word = &words[i]
			return
		}
	}
}

// unlist takes the group out of the list, for good, and gives its descriptions back.
func (b *groupMemory) unlist() error {
	l := &b.listing
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.word != nil {
		l.word.Store(0)
		l.word = nil
	}
	for _, r := range l.texts {
		if err := b.store.arena.Free(r); err != nil {
			return err
		}
	}
	l.texts = nil
	return nil
}

// list shows the group's recorder to whoever has the arena mapped, for as long as peers may use the group's memory: one
// that has destroyed the group is missed by those that go on.
func (g *Group) list() {
	if me := g.members[g.rank]; me.FlightLog != 0 {
		g.memory.list(func() *listedRecorder { return &listedRecorder{*g.flightHeader(), me.FlightLog, me.Stacks} })
	}
}

// listedBy is what the recorders of another process say, of all its groups whose arena is mapped in some of these.
func listedBy(id peerID, groups []*Group) []flightGroup {
	var list []flightGroup
	read := map[shmem.Nonce]bool{}
	for _, g := range groups {
		for rank, m := range g.members {
			if mapped := g.maps[rank]; m.id() == id && !read[mapped.Nonce()] {
				read[mapped.Nonce()] = true
				list = append(list, listIn(mapped.Bytes(shmem.Range{Len: mapped.Size()}), g.peers[rank].Bell)...)
			}
		}
	}
	return newest(list)
}

// newest leaves out what has a successor: a process that has destroyed a group may have made another one of its name.
func newest(list []flightGroup) []flightGroup {
	type member struct {
		group string
		rank  int
	}
	seen := map[member]bool{}
	slices.SortFunc(list, func(a, b flightGroup) int { return cmp.Compare(b.ID, a.ID) })
	list = slices.DeleteFunc(list, func(g flightGroup) bool {
		key := member{g.Group, g.Rank}
		again := seen[key]
		seen[key] = true
		return again
	})
	slices.Reverse(list)
	return list
}

// listIn reads the list of an arena. Its owner may go on meanwhile, or may have written anything.
func listIn(arena []byte, front int64) (list []flightGroup) {
	if front < 0 || front%8 != 0 || front > int64(len(arena))-frontBytes {
		return nil
	}
	words := listAt(unsafe.Pointer(&arena[front]))
	known := map[uint64]bool{} // IDs
	for i := range words {
		for range 3 { // its owner may put down another description meanwhile
			at := words[i].Load()
			if at == 0 {
				break
			}
			text := textAt(arena, at)
			d, recorder, ok := parseListed(arena, text)
			if ok && known[d.ID] {
				break
			}
			var log runner.FlightLog
			if ok {
				log = recorder.Flights()
			}
			if words[i].Load() != at || !bytes.Equal(text, textAt(arena, at)) {
				continue
			}
			if ok {
				known[d.ID] = true
				list = append(list, d.with(log.Issued, log))
			}
			break
		}
	}
	return list
}

// textAt is a copy of a description, since what is read twice may differ. nil: there is none.
func textAt(arena []byte, at uint64) []byte {
	if at%8 != 0 || at > uint64(len(arena))-4 {
		return nil
	}
	text := arena[at+4:]
	n := binary.NativeEndian.Uint32(arena[at:])
	if n > longestListed || int64(n) > int64(len(text)) {
		return nil
	}
	return bytes.Clone(text[:n])
}

func parseListed(arena, text []byte) (d listedRecorder, r runner.Recorder, ok bool) {
	if err := json.Unmarshal(text, &d); err != nil {
		return d, r, false
	}
	if d.ID == 0 || d.Size < 1 || d.Size > algo.MaxSize || d.Rank < 0 || d.Rank >= d.Size || (d.Global != nil && len(d.Global) != d.Size) {
		return d, r, false
	}
	if d.Capacity < 1 || d.Capacity > maxFlights || runner.FlightBytes(d.Capacity, d.Stacks) > mostFlightLog {
		return d, r, false
	}
	r, ok = runner.RecorderAt(unsafe.Pointer(&arena[0]), int64(len(arena)), d.Log, d.Capacity, d.Stacks)
	return d, r, ok
}
