package pgbackend

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/algo"
	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/transport/tcp"
)

// These fuzzers have what groups read of other hosts: frames of the verdict, entries of control exchanges, and what
// ranks write into the store.

// brokenLink is a link over which nothing is sent, and which notices whether it was ended. full: it takes nothing.
type brokenLink struct {
	full   bool
	broken error
}

func (l *brokenLink) TrySend(int, *tcp.Header, ...[]byte) (bool, error) { return !l.full, nil }
func (*brokenLink) AfterSent(int, func())                               {}
func (l *brokenLink) TryFlush(int) (bool, error)                        { return true, nil }
func (l *brokenLink) Break(why error)                                   { l.broken = cmp.Or(l.broken, why) }

// What a byte of the input of FuzzVerdict says.
const (
	storeLasts   = 1 << iota
	storeAnswers // with the payload
	firstIsFull  // a link
	secondIsFull
	oneByOne // frames come when those before were handled
)

const (
	verdictHeader = 12  // bytes of a header in the input of FuzzVerdict
	mostFrames    = 200 // more than a link may have to send in a group of three members
)

// Whatever members send and the store holds, an arbiter refuses it, which ends the link, or goes on: it does not panic,
// has the cause that a member, the store or this process has given, and has not more to send than its bounds allow,
// also where links take nothing.
func FuzzVerdict(f *testing.F) {
	record := encodeRecord(&coll.Failure{Status: coll.PeerFailure, Rank: 1, PID: 12, Host: "b", Message: "sagecomm: gone"}, 5)
	frame := func(over, kind, from, to byte, number, block, taken uint16) []byte {
		b := binary.LittleEndian.AppendUint16([]byte{over, kind, from, to, 0, 0}, number)
		return binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(b, block), taken)
	}
	f.Add(slices.Concat(frame(1, 0, 2, 0, 0, 0, 1), frame(2, 1, 4, 0, 1, 0, 2), frame(1, 3, 2, 0, 0, 0, 1)), []byte(record), byte(firstIsFull))
	f.Add(slices.Concat(frame(1, 4, 2, 0, 2, 4, 2), frame(1, 4, 2, 0, 4, 2, 2), frame(2, 2, 4, 0, 0, 0, 0)), []byte(record), byte(storeLasts|secondIsFull))
	f.Add(frame(1, 3, 2, 0, 0, 0, 1), []byte(`{"Status":1,"Rank":99}`), byte(storeLasts))
	declares := []byte{1, 0, 4, 0, 5, 0, 0, 0, 0, 0, 0, 0} // this process does, beside a frame
	f.Add(declares, []byte(record), byte(storeAnswers))
	f.Add(declares, []byte("what no rank writes"), byte(storeAnswers))
	var many []byte // of both members, all different
	for n := range uint16(60) {
		kind, number, block := n%5, 1+n%3, uint16(0)
		switch tcp.Declare + tcp.Kind(kind) {
		case tcp.Declare:
			number = 0
		case tcp.Lost:
			number, block = 2*(n%3), 2*((n+1)%3)
		}
		from := byte(2 + 2*(n/5%2))
		many = append(many, frame(byte(n), byte(kind), from, []byte{0, 6 - from}[n/10%2], number, block, 1+n/20%3)...)
	}
	f.Add(many, []byte(record), byte(firstIsFull|secondIsFull|oneByOne))
	f.Add(bytes.Repeat(frame(0, 0, 2, 4, 0, 0, 2), mostFrames), []byte(record), byte(secondIsFull|oneByOne)) // to be passed on
	f.Fuzz(func(t *testing.T, frames, payload []byte, how byte) {
		links := []memberLink{nil, &brokenLink{full: how&firstIsFull != 0}, &brokenLink{full: how&secondIsFull != 0}}
		c := arbiterConfig{number: 9, size: 5, lowest: []int{0, 2, 4}, links: links, key: "fuzz", left: func(int) bool { return false }}
		own := &coll.Failure{Status: coll.Timeout, Rank: 4, Message: "own"}
		switch {
		case how&storeLasts != 0:
			store := bootstrap.NewMemStore()
			c.store, _ = store.Last()
		case how&storeAnswers != 0:
			c.store = claimerFunc(func([]byte) ([]byte, error) { return payload, nil })
		}
		a := newArbiter(c)
		a.expect()
		defer a.close()
		refused := false
		for n := 0; len(frames) >= verdictHeader && n < mostFrames && !refused; n, frames = n+1, frames[verdictHeader:] {
			le := binary.LittleEndian
			wide := func(at int) uint64 {
				if x := le.Uint16(frames[at:]); x < 0xf000 {
					return uint64(x)
				}
				return 1 << 63
			}
			h := tcp.Header{Kind: tcp.Declare + tcp.Kind(frames[1]%5), Group: 9, From: uint32(frames[2]), To: uint32(frames[3]), Number: wide(6), Block: wide(8), Taken: wide(10)}
			body := payload
			if frames[4]&1 == 1 || h.Kind == tcp.Lost {
				body = nil
			}
			h.Bytes = uint32(len(body))
			over := 1 + int(frames[0]%2)
			if frames[4]&2 == 2 {
				a.linkLost(over)
			}
			refused = a.take(over, &h, body) != nil
			if frames[4]&4 == 4 {
				a.declare(own, 0, nil)
			}
			if how&oneByOne != 0 {
				a.handled(t)
			}
		}
		a.handled(t)
		if how&storeAnswers != 0 {
			a.flush(20 * time.Millisecond) // with the answer, if the store was asked; other members may never decide
		}
		for _, l := range links[1:] {
			require.NoError(t, l.(*brokenLink).broken)
		}
		if first := a.cause.Load(); first != nil {
			given := []string{encodeRecord(own, a.size), a.answer(payload)}
			if theirs, err := decodeRecord(string(payload), a.size); err == nil {
				given[1] = encodeRecord(theirs, a.size)
			} else if how&storeAnswers == 0 {
				given = given[:1]
			}
			require.Contains(t, given, encodeRecord(first, a.size))
		}
	})
}

// handled returns when all that has come was handled.
func (a *arbiter) handled(t *testing.T) {
	t.Helper()
	handled := make(chan struct{})
	a.push(func() { close(handled) })
	select {
	case <-handled:
	case <-time.After(10 * time.Second):
		t.Fatal("the arbiter hangs")
	}
}

// Whatever a remote rank sends in control exchanges, what this rank may be reading is not overwritten, and counts never
// fall.
func FuzzEntries(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 4, 9, 0, 2, 0, 1, 4, 9}, []byte("namedata"))
	f.Add([]byte{1, 1, 0, 0xff, 4, 9, 1, 0, 1, 0, 0, 0}, make([]byte, controlPart+maxPurpose))
	f.Fuzz(func(t *testing.T, input, payload []byte) {
		if len(payload) > controlPart+152 { // the limit of a frame
			return
		}
		var rounds [topicCount]controlTopic
		var own controlArea
		r := &remoteControl{own: &own, rounds: &rounds}
		entry := func(n uint8) *controlEntry { return r.entry(topic(n)) }
		for ; len(input) >= 6; input = input[6:] {
			topic := input[0] % uint8(topicCount+1)
			h := tcp.Header{Kind: tcp.Exchange, Channel: topic, Number: uint64(input[1] % 8), Taken: uint64(input[2] % 8), Tag: int32(int8(input[3])) * int32(1+input[4]%2), Hash: uint64(input[4]), Block: uint64(input[5])}
			body := payload[:min(len(payload), int(input[4])*20)]
			if h.Number == 0 && input[5] > 3 {
				h.Tag, h.Hash, h.Block, body = 0, 0, 0, nil
			}
			h.Bytes = uint32(len(body))
			if topic < uint8(topicCount) && input[5]%2 == 1 { // this rank goes on
				rounds[topic].taken.Store(min(rounds[topic].taken.Load()+1, entry(topic).posted.Load()))
				rounds[topic].posted.Add(1)
			}
			before := [2]uint64{}
			var data []byte
			if topic < uint8(topicCount) {
				before = [2]uint64{entry(topic).posted.Load(), entry(topic).taken.Load()}
				data = bytes.Clone(entry(topic).data[:])
			}
			err := r.take(&h, body)
			if topic >= uint8(topicCount) {
				require.Error(t, err)
				continue
			}
			after := [2]uint64{entry(topic).posted.Load(), entry(topic).taken.Load()}
			unread := before[0] > rounds[topic].taken.Load()
			if err != nil || unread || h.Number == 0 {
				require.True(t, bytes.Equal(data, entry(topic).data[:]), "what may be read has changed")
				require.Equal(t, before[0], after[0])
			}
			require.True(t, after[0] >= before[0] && after[0] <= before[0]+1 && after[1] >= before[1] && after[1] <= rounds[topic].posted.Load())
			require.LessOrEqual(t, entry(topic).named.Load(), uint64(maxPurpose))
			if err != nil {
				return
			}
		}
	})
}

// tapped is a store that notes what ranks write.
type tapped struct {
	*bootstrap.MemStore
	mu    sync.Mutex
	wrote map[string][]byte
}

func (s *tapped) Set(key string, value []byte) error {
	s.mu.Lock()
	s.wrote[key] = bytes.Clone(value)
	s.mu.Unlock()
	return s.MemStore.Set(key, value)
}

// described returns what two ranks on two hosts write into the store when they make a group, by the end of the key.
func described(t testing.TB) map[string][]byte {
	t.Helper()
	store := &tapped{MemStore: bootstrap.NewMemStore(), wrote: map[string][]byte{}}
	var all sync.WaitGroup
	errs := make([]error, 2)
	for rank := range 2 {
		all.Go(func() {
			var g *Group
			g, errs[rank] = Get().Create(Config{Rank: rank, Size: 2, Name: "g", Timeout: opTimeout, Store: store, Lasting: store.MemStore, Options: onHosts("01")(rank)})
			if errs[rank] == nil {
				errs[rank] = g.Destroy()
			}
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	wrote := map[string][]byte{}
	for key, value := range store.wrote {
		if _, of, found := strings.Cut(key, firstTry); found {
			wrote[of] = value[1:] // behind the mark of a value
		}
	}
	return wrote
}

// with returns a description with another value of a field.
func with(t testing.TB, description []byte, field, value string) []byte {
	t.Helper()
	var fields map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(description, &fields))
	fields[field] = []byte(value)
	text, err := json.Marshal(fields)
	require.NoError(t, err)
	return text
}

// withoutEngines returns a description that says of no engine whether the rank offers it.
func withoutEngines(t testing.TB, description []byte) []byte {
	t.Helper()
	require.Contains(t, string(description), `"engines"`)
	return with(t, description, "engines", "null")
}

// Whatever a rank writes into the store as its description and its addresses, the others make a group of it, or refuse
// it with an error that names it, and do not panic.
func FuzzDescriptions(f *testing.F) {
	eachAProcess(f)
	wrote := described(f)
	first, other, at := wrote["/0"], wrote["/1"], wrote[addressRound+"/1"]
	require.True(f, json.Valid(first) && json.Valid(other) && json.Valid(at), "%q", slices.Collect(maps.Keys(wrote)))
	f.Add(other, at)
	f.Add(other[:len(other)/2], at)
	f.Add(first, at[:len(at)/2])
	f.Add([]byte("null"), []byte("null"))
	f.Add(withoutEngines(f, other), at)
	f.Add(bytes.ReplaceAll(other, []byte("host 1"), []byte("host 0")), []byte(`{"id":"AAAAAAAAAAAAAAAAAAAAAA==","at":["1.2.3.4:5"]}`))
	f.Add(other, wrote[addressRound+"/0"])
	f.Add(other, []byte(`{"id":"AAAAAAAAAAAAAAAAAAAAAA==","at":["0.0.0.0:5"]}`))
	first = with(f, first, "listener", `{"addresses":["127.0.0.1"],"port":5}`)
	for _, at := range []string{
		`{"addresses":["10.0.0.1","fd00::1"],"port":65535}`, `{"addresses":[],"port":5}`, `{"addresses":["10.0.0.1"],"port":0}`,
		`{"addresses":["0.0.0.0"],"port":5}`, `{"addresses":["fe80::1%eth0"],"port":5}`, `{"addresses":[""],"port":5}`,
	} {
		f.Add(with(f, other, "listener", at), wrote[addressRound+"/1"])
	}
	settings, err := env.Resolve(nil, map[string]string{"probe": "off"})
	require.NoError(f, err)
	tuning, err := readTuningSettings(settings)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, description, addresses []byte) {
		newGroup := func(born *birth) *Group {
			return &Group{process: Get(), name: "g", size: 2, settings: settings, tuningSettings: tuning, life: lifetime{gone: make([]bool, 2)}, birth: born}
		}
		atID := newGroup(&birth{})
		if err := atID.introduce([][]byte{first, description}); err != nil {
			require.Regexp(t, `rank 1\b|ranks 0 and 1\b`, err.Error())
		} else {
			at := atID.members[1].Listener
			derived := atID.birth.id.Derive("g", at.Addresses, at.Port).Encode()
			_, err := bootstrap.ParseID(derived[:])
			require.NoError(t, err)
		}
		g := newGroup(nil)
		var err error
		if err = g.introduce([][]byte{first, description}); err == nil {
			err = g.choose()
		}
		if err != nil {
			require.Regexp(t, `rank 1\b|ranks 0 and 1\b`, err.Error())
			return
		}
		_, _, _ = g.who(1), g.machines(), g.crowded()
		l := &groupLinks{}
		if err := l.readAddresses([][]byte{wrote[addressRound+"/0"], addresses}, 0, g.members); err != nil {
			require.Contains(t, err.Error(), "rank 1")
			return
		}
		ranks := 0
		for _, p := range l.processes {
			require.Len(t, p.at.ID, len(tcp.Identity{}))
			require.NotEmpty(t, p.at.At)
			ranks += len(p.ranks)
			for _, rank := range p.ranks {
				require.Equal(t, g.members[p.ranks[0]].hostKey(), g.members[rank].hostKey())
			}
		}
		require.Equal(t, 2, ranks)
	})
}

// Whatever ranks tell of links, parameters come of it that selectors take, and all ranks come to the same.
func FuzzRecordsOfLinks(f *testing.F) {
	f.Add([]byte(`[{"host":1,"latency":200000000000,"step":3000000000,"byte":2560000}]`), []byte(`[{"host":2,"latency":1,"step":1,"byte":1}]`), []byte("null"))
	f.Add([]byte(`[{"host":1},{"host":-1},{"host":1,"byte":1e3}]`), []byte("[{}]"), []byte(`{"host":0}`))
	f.Add([]byte(`[{"host":1,"latency":9,"step":1,"byte":1,"part":true,"again":true}]`), []byte(`[{"host":2,"part":true}]`), []byte("null"))
	f.Fuzz(func(t *testing.T, first, second, third []byte) {
		var agreed []networkProbe
		for rank := range 3 {
			g := &Group{process: &Process{linkProbes: newLinkProbes()}, rank: rank, hosts: [][]int{{0}, {1}, {2}}, hostOf: []int{0, 1, 2}, members: make([]member, 3)}
			g.links = &groupLinks{processes: []linkedProcess{{ranks: []int{0}}, {ranks: []int{1}}, {ranks: []int{2}}}}
			for of := range g.members {
				g.members[of].HostSetting = fmt.Sprint(of)
			}
			agreed = append(agreed, g.agreeOnLinks([][]byte{first, second, third}))
			for pair, c := range g.process.linkProbes.known {
				require.Equal(t, c, c.believed(), "%v", pair)
			}
			require.LessOrEqual(t, len(g.process.linkProbes.known), 3)
		}
		p := agreed[0]
		require.Equal(t, p, agreed[1])
		require.Equal(t, p, agreed[2])
		require.Equal(t, 3, p.pairs)
		require.True(t, p.measured >= 0 && p.parts >= 0 && p.measured+p.parts <= 3 && (p.worst != linkCosts{}) == (p.measured > 0), "%+v", p)
		require.NoError(t, p.octaves.scale(algo.DefaultParams()).Validate())
	})
}

// Whatever ranks choose in a split, the new group has those of one color in the order of their keys; what cannot be
// read is named, and an invitation is an id or an error.
func FuzzColors(f *testing.F) {
	f.Add([]byte(`{"Color":1,"Key":2}`), []byte(`{"Color":1,"Key":-9}`), int64(1), []byte(`{"why":"no port"}`))
	f.Add([]byte(`{}`), []byte("null"), int64(0), []byte("{}"))
	f.Add([]byte("["), []byte(`{"Color":1e99}`), int64(-1), []byte(`{"id":"AAAA"}`))
	for _, one := range []place{{0, 0}, {-1, 3}, {1 << 40, -1}} {
		text, err := json.Marshal(one)
		require.NoError(f, err)
		id := bootstrap.ID{}.Encode()
		told, err := json.Marshal(invitation{ID: id[:]})
		require.NoError(f, err)
		f.Add(text, text, int64(one.Color), told)
		told, err = json.Marshal(invitation{Nonce: make([]byte, nonceBytes)})
		require.NoError(f, err)
		f.Add(text, text, int64(one.Color), told)
	}
	f.Fuzz(func(t *testing.T, first, second []byte, color int64, invited []byte) {
		for _, parent := range []*Group{{}, {birth: &birth{}, members: []member{{Listener: &listener{bootstrap.Loopback, 1}}}}} {
			if id, err := parent.invited([]int{0}, invited); err == nil {
				require.NotEmpty(t, id.Addresses)
				require.NotZero(t, id.Secret)
			}
		}
		mine, err := json.Marshal(place{Color: int(color)})
		require.NoError(t, err)
		all := [][]byte{mine, first, second}
		places, wrong, err := readPlaces(all)
		if err != nil {
			require.False(t, json.Valid(all[wrong]) && json.Unmarshal(all[wrong], &place{}) == nil)
			return
		}
		members := Child{Color: int(color)}.members(places)
		require.Equal(t, color >= 0, slices.Contains(members, 0))
		for i, rank := range members {
			require.EqualValues(t, color, places[rank].Color)
			if i > 0 {
				before := members[i-1]
				require.True(t, places[before].Key < places[rank].Key || places[before].Key == places[rank].Key && before < rank)
			}
		}
	})
}

// Whatever a rank tells of its failure, the others make an error of it.
func FuzzTold(f *testing.F) {
	f.Add([]byte(`{"status":3,"rank":1,"pid":12,"host":"b"}`), "reason")
	f.Add([]byte(`{"status":99,"rank":-1}`), "")
	f.Fuzz(func(t *testing.T, detail []byte, reason string) {
		told := &bootstrap.FailedError{Prefix: "p", Size: 2, Failed: []bootstrap.RankFailure{{Rank: 1, Reason: reason, Detail: detail}}}
		failure := CreateFailure("g", telling(told))
		require.True(t, failure.Status.Known() && failure.Status.Failed() && failure.Rank >= -1, "%v", failure)
	})
}
