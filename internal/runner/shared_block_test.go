package runner

import (
	"encoding/binary"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// The headers of a peer's shared blocks are checked before they are used, because the peer may be faulty or another program.
func TestSharedBlockOfAPeerIsChecked(t *testing.T) {
	const rank, size, line, at = 1, 3, 128, 4096
	for _, lane := range []Lane{HostLane, DeviceLane} {
		t.Run(lane.String(), func(t *testing.T) { checkSharedBlock(t, lane, rank, size, line, at) })
	}
}

// checkSharedBlock spoils the header of the shared block of one lane, which is the last one in the arena.
func checkSharedBlock(t *testing.T, lane Lane, rank, size int, line, at int64) {
	other := DeviceLane - lane
	at += SharedBlockBytes(other, size)
	arena, err := syscall.Mmap(-1, 0, int(at+SharedBlockBytes(lane, size)), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	defer func() { _ = syscall.Munmap(arena) }()
	bytes := int64(len(arena))
	shared := func(offset int) []byte { return arena[int(at)+offset:] }
	const rankWord, sizeWord, bellWord, bytesWord = 8, 12, 16, 24
	set := func(offset int, value uint64) func(*Peer) {
		return func(*Peer) { binary.NativeEndian.PutUint64(shared(offset), value) }
	}
	for name, c := range map[string]struct {
		change func(*Peer)
		ok     bool
	}{
		"as it was made":                       {func(*Peer) {}, true},
		"the last bell that fits":              {set(bellWord, uint64(bytes-4)), true},
		"no magic":                             {set(0, 0), false},
		"other rank":                           {func(*Peer) { shared(rankWord)[0] = 2 }, false},
		"other size":                           {func(*Peer) { shared(sizeWord)[0] = 4 }, false},
		"other length":                         {set(bytesWord, 4096), false},
		"bell behind the arena":                {set(bellWord, uint64(bytes)), false},
		"bell partly behind the arena":         {set(bellWord, uint64(bytes-2)), false},
		"bell far away":                        {set(bellWord, 1<<45), false},
		"bell before the arena":                {set(bellWord, ^uint64(0)-3), false},
		"bell not aligned":                     {set(bellWord, 130), false},
		"shared block before the arena":        {func(p *Peer) { p.Shared[lane] = -at }, false},
		"shared block partly behind the arena": {func(p *Peer) { p.Bytes -= line }, false},
		"arena shorter than a shared block":    {func(p *Peer) { p.Bytes, p.Shared[lane] = SharedBlockBytes(lane, size)-1, 0 }, false},
		"shared block not aligned": {func(p *Peer) {
			copy(arena[at-64:], arena[at:at+256])
			p.Shared[lane] = at - 64
		}, false},
	} {
		if lane == DeviceLane && strings.Contains(name, "bell") {
			continue // the bell is taken from the header of the host lane's block
		}
		clear(arena)
		FormatSharedBlock(unsafe.Pointer(&arena[at]), lane, rank, size, 128)
		FormatSharedBlock(unsafe.Pointer(&arena[0]), other, rank, size, 128)
		p := Peer{Arena: unsafe.Pointer(&arena[0]), Bytes: bytes}
		p.Shared[lane] = at
		c.change(&p)
		if ok := p.Check(rank, size); ok != c.ok {
			t.Errorf("%s: accepted: %v", name, ok)
		} else if want := int64(binary.NativeEndian.Uint64(shared(bellWord))); ok && p.Bell != want {
			t.Errorf("%s: bell at %d, expected %d", name, p.Bell, want)
		}
	}
}

// RemoveEngineBell rings the bell that it removes, because the engine may sleep on it, or be about to. WakeEngine then rings
// another bell.
func TestRemovedBellIsRung(t *testing.T) {
	words, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	defer func() { _ = syscall.Munmap(words) }()
	bell := unsafe.Pointer(&words[0])
	heard := func() uint32 { return binary.NativeEndian.Uint32(words) }
	if !AddEngineBell(bell) {
		t.Fatal("no room for a bell")
	}
	WakeEngine()
	if heard() != 1 {
		t.Errorf("a bell that was added was rung %d times, expected once", heard())
	}
	RemoveEngineBell(bell)
	WakeEngine()
	if heard() != 2 {
		t.Errorf("a bell that was removed was rung %d times in all, expected twice", heard())
	}
}

// The failure word lies in the shared block of a rank of the group.
func TestFailureRankIsARank(t *testing.T) {
	for _, rank := range []int{-1, 2} {
		_, err := OpenGroup(Config{Peers: make([]Peer, 2), FailureRank: rank})
		require.ErrorContains(t, err, "the failure word of a group of 2 ranks")
	}
}
