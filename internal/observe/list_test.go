package observe_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"sagecomm/algo"
	"sagecomm/internal/observe"
)

// listed returns the recorders of this test's groups that a rank's process lists, as they are read through the group g.
func listed(t *testing.T, g observe.Group) (list []string) {
	t.Helper()
	for _, each := range observe.ListedBy(g.Members()[0].Process, []observe.Group{g}) {
		if strings.HasPrefix(each.Group, t.Name()) {
			list = append(list, fmt.Sprintf("%s of rank %d: %d operations, %s", each.Group, each.Rank, each.Total(), each.Description))
		}
	}
	slices.Sort(list)
	return list
}

// Through one group, a reader finds the recorders of all groups of its peers' processes.
func TestAProcessListsItsRecorders(t *testing.T) {
	w := newWorld(t, 2, nil)
	want := []string{"TestAProcessListsItsRecorders of rank 0: 0 operations, undefined",
		"TestAProcessListsItsRecorders of rank 1: 0 operations, undefined",
		"TestAProcessListsItsRecorders/other of rank 0: 1 operations, tensor parallel"}
	t.Run("other", func(t *testing.T) {
		other := newWorld(t, 1, nil)
		if f := sum(other.groups[0], 2); f != nil {
			t.Fatal(f)
		}
		for range 3 * observe.MostTexts { // an unchanged description takes no room
			other.groups[0].Describe("data parallel")
		}
		other.groups[0].Describe("tensor parallel")
		if got := listed(t, other.view(0)); !slices.Equal(got, want[2:]) {
			t.Errorf("%q", got)
		}
		if got := listed(t, w.view(0)); !slices.Equal(got, want[2:]) {
			t.Errorf("from another group: %q", got)
		}
	})
	if got := listed(t, w.view(0)); !slices.Equal(got, want[:2]) { // the other world ended with its test
		t.Errorf("%q", got)
	}
}

// A group is listed until its peers have left too. At most mostTexts of its descriptions are kept.
func TestTheListEndsWithTheMemory(t *testing.T) {
	w := newWorld(t, 2, nil)
	for i := range 2 * observe.MostTexts {
		w.groups[1].Describe(fmt.Sprint("name ", i))
	}
	require.NoError(t, w.groups[1].Destroy())
	want := []string{"TestTheListEndsWithTheMemory of rank 0: 0 operations, undefined",
		fmt.Sprintf("TestTheListEndsWithTheMemory of rank 1: 0 operations, name %d", observe.MostTexts-2)}
	if got := listed(t, w.view(0)); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// Of several groups with one name, a dump has the newest: its process has destroyed the others.
func TestSuccessorsTakeThePlaceInADump(t *testing.T) {
	group := func(id uint64, name string, rank int) observe.Snapshot {
		return observe.Snapshot{Header: &observe.Header{ID: id, Group: name, Rank: rank}}
	}
	var got []string
	for _, g := range observe.Newest([]observe.Snapshot{group(5, "a", 0), group(2, "a", 0), group(2, "a", 0).OnDevices(), group(3, "b", 0).OnDevices(),
		group(3, "b", 0), group(4, "a", 1), group(5, "a", 0)}) {
		got = append(got, fmt.Sprintf("%d %s %d", g.ID, g.TraceGroup(), g.Rank))
	}
	// The device lane of the older group "a" is gone, although the newer one has not opened its own.
	if want := []string{"3 b 0", "3 b/device 0", "4 a 1", "5 a 0"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// A peer may have written anything into its list. Readers skip what is invalid and do not crash.
func TestListsWithAnyContent(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t, 2, nil)
	w.ranks(func(rank int) error { return asError(sum(w.groups[rank], 2)) })
	g := w.view(0)
	me := g.Members()[0]
	words := observe.Words(me.Arena, me.Front)
	word, text := wordOf(words, me.Arena, t.Name(), 0)
	if word == nil {
		t.Fatal("the group is not in the list")
	}
	whole := bytes.Clone(text)
	said := string(whole[4:])
	here := word.Load()
	write := func(s string) {
		binary.NativeEndian.PutUint32(text, uint32(len(s)))
		copy(text[4:cap(text)], s)
	}
	for _, change := range []struct{ from, to string }{
		{`"size":2`, `"size":0`}, {`"size":2`, fmt.Sprintf(`"size":%d`, algo.MaxSize+1)}, {`"rank":0`, `"rank":2`}, {`"rank":0`, `"rank":-1`},
		{`"capacity":2000`, `"capacity":0`}, {`"capacity":2000`, `"capacity":99999999`}, {`"capacity":2000`, `"capacity":1000000`}, {`"logs":[`, `"logs":[-`}, {`"logs":[`, `"logs":[1`},
		{`"logs":[`, `"logs":[999999999999`}, {`"size":2`, `"size":2,"global":[1]`}, {`{`, `[`}, {`{`, `null `},
	} {
		wrong := strings.Replace(said, change.from, change.to, 1)
		if wrong == said {
			t.Fatalf("there is no %s in %s", change.from, said)
		}
		write(wrong)
		for _, each := range observe.ListedBy(me.Process, []observe.Group{g}) {
			if each.Group == t.Name() && each.Rank != 1 {
				t.Errorf("%s is believed: %+v", change.to, each.Header)
			}
		}
	}
	write(said)
	for i := range words { // list one recorder many times
		words[i].CompareAndSwap(0, here)
	}
	if got := listed(t, g); len(got) != 2 {
		t.Errorf("%q", got)
	}
	for i := range words {
		if &words[i] != word {
			words[i].CompareAndSwap(here, 0)
		}
	}
	for range 2000 {
		write(said)
		word.Store(here)
		for range 1 + random.IntN(3) {
			switch random.IntN(2) {
			case 0:
				text[random.IntN(len(text))] = byte(random.Uint32())
			case 1:
				word.Store(random.Uint64() >> random.IntN(64))
			}
		}
		for _, each := range observe.ListedBy(me.Process, []observe.Group{g}) {
			if each.Size < 1 || each.Rank < 0 || each.Rank >= each.Size || each.Operations() > 2*each.Capacity {
				t.Fatalf("%+v", each)
			}
		}
	}
	write(said)
	word.Store(here)
	if len(listed(t, g)) != 2 {
		t.Error("the list stays unreadable after its content is restored")
	}
}

// wordOf returns the word of the list that belongs to a rank of a group, and the description that the word refers to,
// including its length.
func wordOf(words []atomic.Uint64, arena []byte, group string, rank int) (*atomic.Uint64, []byte) {
	for i := range words {
		at := words[i].Load()
		if at == 0 {
			continue
		}
		text := arena[at : at+4+uint64(binary.NativeEndian.Uint32(arena[at:]))]
		if s := string(text); strings.Contains(s, fmt.Sprintf(`"group":%q`, group)) && strings.Contains(s, fmt.Sprintf(`"rank":%d`, rank)) {
			return &words[i], text
		}
	}
	return nil, nil
}
