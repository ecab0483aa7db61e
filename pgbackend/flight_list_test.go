package pgbackend

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sagecomm/algo"
)

// listed is what a rank's process lists of this test's groups, as the others see it.
func listed(t *testing.T, g *Group) (list []string) {
	for _, each := range listedBy(g.members[0].id(), []*Group{g}) {
		if strings.HasPrefix(each.Group, t.Name()) {
			list = append(list, fmt.Sprintf("%s of rank %d: %d operations, %s", each.Group, each.Rank, each.Total, each.Description))
		}
	}
	return list
}

// A group shows all recorders of its peers' processes, not its own only.
func TestAProcessListsItsRecorders(t *testing.T) {
	w := newWorld(t, 2)
	var other *world
	t.Run("other", func(t *testing.T) {
		other = newWorld(t, 1)
		if f := sum(other.groups[0], 2); f != nil {
			t.Fatal(f)
		}
		for range 3 * mostTexts {
			other.groups[0].Describe("data parallel")
		}
		other.groups[0].Describe("tensor parallel")
		want := []string{"TestAProcessListsItsRecorders of rank 0: 0 operations, undefined",
			"TestAProcessListsItsRecorders of rank 1: 0 operations, undefined",
			"TestAProcessListsItsRecorders/other of rank 0: 1 operations, tensor parallel"}
		got := listed(t, other.groups[0])
		if !slices.Equal(got, want[2:]) {
			t.Errorf("%q", got)
		}
	})
	want := []string{"TestAProcessListsItsRecorders of rank 0: 0 operations, undefined",
		"TestAProcessListsItsRecorders of rank 1: 0 operations, undefined"}
	got := listed(t, w.groups[0]) // the other world ended with its test
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	before := inUse(t)
	other.groups[0].Describe("too late")
	if l := &other.groups[0].memory.listing; l.word != nil || l.texts != nil || inUse(t) != before {
		t.Error("what has ended takes a place in the list")
	}
}

// What a process lists is there until its peers have left too, and gone then.
func TestTheListEndsWithTheMemory(t *testing.T) {
	before := inUse(t)
	w := newWorld(t, 2)
	for i := range 2 * mostTexts { // only so many are kept
		w.groups[1].Describe(fmt.Sprint("name ", i))
	}
	if err := w.groups[1].Destroy(); err != nil {
		t.Fatal(err)
	}
	want := []string{"TestTheListEndsWithTheMemory of rank 0: 0 operations, undefined",
		fmt.Sprintf("TestTheListEndsWithTheMemory of rank 1: 0 operations, name %d", mostTexts-2)}
	got := listed(t, w.groups[0])
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	w.destroy()
	if after := inUse(t); after != before {
		t.Errorf("%d bytes of shared memory are in use, %d before", after, before)
	}
}

// Of groups of one name the newest counts: its process has destroyed the others.
func TestSuccessorsTakeThePlaceInADump(t *testing.T) {
	group := func(id uint64, name string, rank int) flightGroup {
		return flightGroup{flightHeader: &flightHeader{ID: id, Group: name, Rank: rank}}
	}
	var got []string
	for _, g := range newest([]flightGroup{group(5, "a", 0), group(2, "a", 0), group(3, "b", 0), group(4, "a", 1), group(5, "a", 0)}) {
		got = append(got, fmt.Sprintf("%d %s %d", g.ID, g.Group, g.Rank))
	}
	if want := []string{"3 b 0", "4 a 1", "5 a 0"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// Whatever stands in a peer's list, it is read or left out.
func TestListsThatSayAnything(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t, 2)
	g := w.groups[0]
	w.each(func(g *Group) error { return asError(sum(g, 2)) })
	b, id := g.memory, g.members[0].id()
	text := b.store.arena.Bytes(b.listing.texts[0])
	whole := bytes.Clone(text)
	said := string(whole[4 : 4+binary.NativeEndian.Uint32(whole)])
	here := b.listing.word.Load()
	for _, change := range []struct{ from, to string }{
		{`"size":2`, `"size":0`}, {`"size":2`, fmt.Sprintf(`"size":%d`, algo.MaxSize+1)}, {`"rank":0`, `"rank":2`}, {`"rank":0`, `"rank":-1`},
		{`"capacity":2000`, `"capacity":0`}, {`"capacity":2000`, `"capacity":99999999`}, {`"capacity":2000`, `"capacity":1000000`}, {`"log":`, `"log":-`}, {`"log":`, `"log":1`},
		{`"log":`, `"log":999999999999`}, {`"size":2`, `"size":2,"global":[1]`}, {`{`, `[`}, {`{`, `null `},
	} {
		wrong := strings.Replace(said, change.from, change.to, 1)
		if wrong == said {
			t.Fatalf("there is no %s in %s", change.from, said)
		}
		binary.NativeEndian.PutUint32(text, uint32(len(wrong)))
		copy(text[4:], wrong)
		for _, each := range listedBy(id, []*Group{g}) {
			if each.Group == t.Name() && each.Rank != 1 {
				t.Errorf("%s is believed: %+v", change.to, each.flightHeader)
			}
		}
	}
	copy(text, whole)
	words := listAt(b.store.at(b.store.front))
	for i := range words { // one recorder many times
		words[i].CompareAndSwap(0, here)
	}
	if got := listed(t, g); len(got) != 2 {
		t.Errorf("%q", got)
	}
	for i := range words {
		if &words[i] != b.listing.word {
			words[i].CompareAndSwap(here, 0)
		}
	}
	for range 2000 {
		copy(text, whole)
		b.listing.word.Store(here)
		for range 1 + random.IntN(3) {
			switch random.IntN(3) {
			case 0:
				text[random.IntN(len(text))] = byte(random.Uint32())
			case 1:
				text[random.IntN(4+len(said))] = byte(random.Uint32())
			case 2:
				b.listing.word.Store(random.Uint64() >> random.IntN(64))
			}
		}
		for _, each := range listedBy(id, []*Group{g}) {
			if each.Size < 1 || each.Rank < 0 || each.Rank >= each.Size || len(each.Entries) > 2*each.Capacity {
				t.Fatalf("%+v", each)
			}
		}
	}
	copy(text, whole)
	b.listing.word.Store(here)
	if len(listed(t, g)) != 2 {
		t.Error("the list does not come back")
	}
}
