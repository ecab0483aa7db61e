package observe

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
	"sagecomm/internal/procwatch"
	"sagecomm/internal/runner"
	"sagecomm/internal/shmem"
)

// A process lists the flight recorders of its groups in its arena, those of both lanes. Every process that has mapped the arena can therefore write
// the dump of a process that has died, including groups that the two do not share. The list follows the engine's bell in the
// front page of the arena. It consists of words; each is 0 or the offset of a description in the same arena. A description is
// a length of 4 bytes, followed by JSON. It never changes: a new one is stored elsewhere before the word refers to it.

// listedGroup is the content of a description: a group with its recorders. The recorder of the device lane is empty before the
// process has opened that lane.
type listedGroup struct {
	Header
	Logs   [runner.Lanes]int64 `json:"logs"`   // by lane: offset of the recorder; 0: it is not in the arena
	Stacks bool                `json:"stacks"` // the recorders keep call stacks
}

// FrontBytes is the length of the front page of an arena: the engine's bell and the list.
const FrontBytes = 4096

const (
	mostListed = (FrontBytes - runner.BellBytes) / 8
	// longestListed exceeds the bytes of any description of a group of algo.MaxSize ranks.
	longestListed = 1 << 20
	// mostTexts bounds how often the description of a group may change.
	mostTexts = 16
	// MaxFlightLog bounds the bytes of a recorder in an arena (about 60,000 operations), so that the arena keeps room for
	// the shared blocks of other groups.
	MaxFlightLog = 8 << 20
)

func listAt(front unsafe.Pointer) []atomic.Uint64 {
	return unsafe.Slice((*atomic.Uint64)(unsafe.Add(front, runner.BellBytes)), mostListed)
}

// Listing is the entry of one group in the list of its arena. The zero Listing is not in the list yet.
type Listing struct {
	mu    sync.Mutex
	word  *atomic.Uint64
	last  []byte
	texts []shmem.Range // the last one is valid; peers may still read the others
	over  bool          // the group was removed from the list for good
}

// Put stores a description of a group's recorders in the list of the arena and replaces the group's last description. If there
// is no room, peers do not see the new description.
func (l *Listing) Put(arena *shmem.Arena, front shmem.Range, h *Header, logs [runner.Lanes]int64, stacks bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || len(l.texts) == mostTexts {
		return
	}
	text, err := json.Marshal(listedGroup{*h, logs, stacks})
	if err != nil || len(text) > longestListed || bytes.Equal(text, l.last) {
		return
	}
	r, err := arena.Alloc(int64(4+len(text)), 4096)
	if err != nil {
		return
	}
	l.last, l.texts = text, append(l.texts, r)
	mem := arena.Bytes(r)
	binary.NativeEndian.PutUint32(mem, uint32(len(text)))
	copy(mem[4:], text)
	if l.word != nil {
		l.word.Store(uint64(r.Off))
		return
	}
	words := listAt(unsafe.Pointer(unsafe.SliceData(arena.Bytes(front))))
	for i := range words {
		if words[i].CompareAndSwap(0, uint64(r.Off)) {
			l.word = &words[i]
			return
		}
	}
}

// Remove removes the group from the list for good and frees its descriptions. Requires: no peer reads them any more.
func (l *Listing) Remove(arena *shmem.Arena) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.word != nil {
		l.word.Store(0)
		l.word = nil
	}
	for _, r := range l.texts {
		if err := arena.Free(r); err != nil {
			return err
		}
	}
	l.texts = nil
	return nil
}

// listedBy returns the records of another process. It reads the lists of those arenas of the process that one of the given
// groups has mapped. Requires: the groups are acquired.
func listedBy(process procwatch.ID, groups []Group) []snapshot {
	var list []snapshot
	read := map[shmem.Nonce]bool{}
	for _, g := range groups {
		for _, m := range g.Members() {
			if m.Process == process && !read[m.Nonce] {
				read[m.Nonce] = true
				list = append(list, listIn(m.Arena, m.Front)...)
			}
		}
	}
	return newest(list)
}

// newest drops each group that has a successor of the same name, with both lanes: its process has destroyed the group and made
// another one. It also drops what was read twice.
func newest(list []snapshot) []snapshot {
	type member struct {
		group string
		rank  int
	}
	last := map[member]uint64{}
	for _, g := range list {
		key := member{g.Group, g.Rank}
		last[key] = max(last[key], g.ID)
	}
	list = slices.DeleteFunc(list, func(g snapshot) bool { return g.ID < last[member{g.Group, g.Rank}] })
	slices.SortFunc(list, func(a, b snapshot) int { return cmp.Or(cmp.Compare(a.pgID(), b.pgID()), cmp.Compare(a.Rank, b.Rank)) })
	return slices.CompactFunc(list, func(a, b snapshot) bool { return a.pgID() == b.pgID() && a.Group == b.Group && a.Rank == b.Rank })
}

// listIn reads the list of an arena. The owner may change the list meanwhile and may have written anything into it.
func listIn(arena []byte, front int64) (list []snapshot) {
	if front < 0 || front%8 != 0 || front > int64(len(arena))-FrontBytes {
		return nil
	}
	words := listAt(unsafe.Pointer(&arena[front]))
	known := map[uint64]bool{} // IDs
	for i := range words {
		for range 3 { // the owner may store another description meanwhile
			at := words[i].Load()
			if at == 0 {
				break
			}
			text := textAt(arena, at)
			d, recorders, ok := parseListed(arena, text)
			if ok && known[d.ID] {
				break
			}
			var lanes []snapshot
			for lane, r := range recorders {
				log := r.Flights()
				lanes = append(lanes, snapshot{Header: &d.Header, lane: lane, issued: log.Issued, log: log})
			}
			if words[i].Load() != at || !bytes.Equal(text, textAt(arena, at)) {
				continue
			}
			if ok {
				known[d.ID] = true
				list = append(list, lanes...)
			}
			break
		}
	}
	return list
}

// textAt returns a copy of a description, or nil if there is none. It copies because a second read may give other bytes.
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

// parseListed returns the group of a description, and its recorders by lane.
func parseListed(arena, text []byte) (d listedGroup, recorders map[runner.Lane]runner.Recorder, ok bool) {
	if err := json.Unmarshal(text, &d); err != nil {
		return d, nil, false
	}
	if d.ID == 0 || d.Size < 1 || d.Size > algo.MaxSize || d.Rank < 0 || d.Rank >= d.Size || (d.Global != nil && len(d.Global) != d.Size) {
		return d, nil, false
	}
	if d.Capacity < 1 || d.Capacity > MaxFlights || runner.FlightBytes(d.Capacity, d.Stacks) > MaxFlightLog {
		return d, nil, false
	}
	recorders = map[runner.Lane]runner.Recorder{}
	for i, at := range d.Logs {
		if at == 0 {
			continue
		}
		lane := runner.Lane(i)
		r, valid := runner.RecorderAt(unsafe.Pointer(&arena[0]), int64(len(arena)), at, d.Capacity, d.Stacks)
		switch {
		case valid:
			recorders[lane] = r
		case lane == runner.HostLane: // that of the device lane is not begun before the lane is opened
			return d, nil, false
		}
	}
	return d, recorders, true
}
