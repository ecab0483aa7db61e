package shadow

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/handshake"
	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// stated gives a pair a Stated that counts.
func (e *end) stated() *atomic.Int32 {
	n := new(atomic.Int32)
	e.pair.mu.Lock()
	defer e.pair.mu.Unlock()
	e.pair.Stated = func() { n.Add(1) }
	return n
}

// stateOf returns a state in which every word has a value of its own, of a rank that has made 1000 calls.
func stateOf() []byte {
	state := make([]byte, 0, runner.StateBytes)
	add := func(w uint64) { state = binary.LittleEndian.AppendUint64(state, w) }
	for lane := range uint64(2) {
		for n := range uint64(4) {
			add(100*lane + n + 1)
		}
		for i := range uint64(64) {
			seq := 960 - 64 + i
			add(seq)
			for n := range uint64(3) {
				add(1000*seq + 10*lane + n)
			}
		}
	}
	for i := range uint64(64) {
		add(32 * (64 + i))
		add(77 + i)
	}
	add(200) // all_to_alls
	for i := range uint64(64) {
		add(900 + i)
		for n := range uint64(3) {
			add(10000*i + n + 1)
		}
	}
	return state
}

// words returns a state without waits_for, which a rank does not store in its own block.
func words(state []byte) []byte {
	for _, at := range []int{3, 4 + 4*64 + 3} {
		clear(state[8*at : 8*at+8])
	}
	return state
}

// A rank that is asked answers with its state, which lies in the shadow then. What it has told before does not fall.
func TestAsk(t *testing.T) {
	a, b := pairOfEnds(t)
	told := a.stated()
	want := stateOf()
	require.True(t, runner.PutState(b.pair.words(func(l *lane) runner.Words { return l.own }), b.pair.To, want)) // as if b's runner had
	for n := range int32(3) {
		a.Ask(a.pair, nil)
		require.Eventually(t, func() bool { return told.Load() == n+1 }, soon, time.Millisecond)
		require.Equal(t, words(stateOf()), words(runner.CopyState(a.pair.words(func(l *lane) runner.Words { return l.shadow }), a.pair.Rank)))
	}
	older := stateOf()
	for at := 0; at < len(older); at += 8 {
		binary.LittleEndian.PutUint64(older[at:], 0)
	}
	require.True(t, runner.PutState(a.pair.words(func(l *lane) runner.Words { return l.shadow }), a.pair.Rank, older))
	require.Equal(t, words(stateOf()), words(runner.CopyState(a.pair.words(func(l *lane) runner.Words { return l.shadow }), a.pair.Rank)))
	require.NoError(t, a.pair.Link.Err())
}

// However often a rank asks, one question is on the way.
func TestOneQuestionIsOnTheWay(t *testing.T) {
	a, b := pairOfEnds(t)
	told := a.stated()
	b.hold(0) // the control connection
	for range 1000 {
		a.Ask(a.pair, nil)
	}
	b.goOn()
	require.Eventually(t, func() bool { return told.Load() >= 1 }, soon, time.Millisecond)
	a.barrier(t, b, 0)
	b.barrier(t, a, 0)
	require.EqualValues(t, 1, told.Load())
	require.EqualValues(t, 1, b.asks.Load())
}

// Whether a question begins or stands, and how many states have come before it, is known of one moment: no state comes between.
func TestQuestionsAreNotedWithTheStates(t *testing.T) {
	a, b := pairOfEnds(t)
	told := a.stated()
	b.pair.pushing.Lock() // it does not answer
	ask := func() (begins bool, before int32) {
		before = -1
		a.Ask(a.pair, func(first bool) {
			require.False(t, a.pair.mu.TryLock(), "a state may come now")
			begins, before = first, told.Load()
		})
		return begins, before
	}
	begins, before := ask()
	require.True(t, begins)
	require.Zero(t, before)
	begins, _ = ask()
	require.False(t, begins, "that one stands")
	b.pair.pushing.Unlock()
	require.Eventually(t, func() bool { return told.Load() == 1 }, soon, time.Millisecond)
	begins, before = ask()
	require.True(t, begins)
	require.EqualValues(t, 1, before)
	a.Remove(a.pair)
	_, before = ask()
	require.EqualValues(t, -1, before, "nothing is asked")
}

// A state that nobody has asked for answers no question: one that is to be sent is sent.
func TestStateBeforeAGoodbyeAnswersNoQuestion(t *testing.T) {
	a, b := pairOfEnds(t)
	told := a.stated()
	a.pair.pushing.Lock() // its question stays here
	a.Ask(a.pair, nil)
	h := b.pair.header(tcp.State)
	require.NoError(t, b.pair.Link.Send(0, &h, make([]byte, runner.StateBytes)))
	require.Eventually(t, func() bool { return told.Load() == 1 }, soon, time.Millisecond)
	a.pair.pushing.Unlock()
	require.Eventually(t, func() bool { return told.Load() == 2 }, soon, time.Millisecond)
	require.EqualValues(t, 1, b.asks.Load())
	require.NoError(t, a.pair.Link.Err())
}

// A rank that has left answers nothing, and a pair that was removed asks nothing.
func TestNobodyAnswers(t *testing.T) {
	a, b := pairOfEnds(t)
	told := a.stated()
	b.pair.lanes[runner.HostLane].own.Left().Store(9)
	require.True(t, b.Flush(soon))
	a.Ask(a.pair, nil)
	a.barrier(t, b, 0)
	b.barrier(t, a, 0)
	require.Zero(t, told.Load())
	a.Remove(a.pair)
	a.Ask(a.pair, nil)
	require.NoError(t, a.pair.Link.Err())
}

// Who finds that a rank has left knows its last call of the device lane by then, though nobody has asked.
func TestTheLastStateComesBeforeTheGoodbye(t *testing.T) {
	a, b := pairOfEnds(t)
	told := a.stated()
	require.True(t, runner.PutState(b.pair.words(func(l *lane) runner.Words { return l.own }), b.pair.To, stateOf())) // as if b's runner had
	b.pair.lanes[runner.HostLane].own.Left().Store(9)
	require.True(t, b.Flush(soon))
	shadow := a.pair.words(func(l *lane) runner.Words { return l.shadow })
	require.Eventually(t, func() bool { return shadow[runner.HostLane].Left().Load() != 0 }, soon, time.Millisecond)
	require.EqualValues(t, 959, shadow[runner.DeviceLane].LastCall())
	require.EqualValues(t, 1, told.Load())
	require.NoError(t, a.pair.Link.Err())
}

// A state that no rank has, or a second one for which nobody has asked, ends the link and is stored nowhere.
func TestForgedStates(t *testing.T) {
	word := func(at int, value uint64) func([]byte) []byte {
		return func(s []byte) []byte { binary.LittleEndian.PutUint64(s[8*at:], value); return s }
	}
	for name, c := range map[string]struct {
		asked  bool
		spoil  func([]byte) []byte
		reason string
	}{
		"nobody asked, twice":      {false, nil, "asked for: false"},
		"nobody asked, and wrong":  {false, word(4, 1<<40), "no rank has such a state"},
		"short":                    {true, func(s []byte) []byte { return s[8:] }, "7232 bytes of 7240"},
		"a record of no number":    {true, word(4, 1<<40), "no rank has such a state"},
		"a record somewhere else":  {true, word(4, 897), "no rank has such a state"},
		"a mark of no number":      {true, word(2*(4+4*64), 33), "no rank has such a state"},
		"a mark somewhere else":    {true, word(2*(4+4*64), 32*65), "no rank has such a state"},
		"waits_for of more bits":   {true, word(3, 1<<32), "no rank has such a state"},
		"waits_for, device lane":   {true, word(4+4*64+3, 1<<32), "no rank has such a state"},
		"a record, of device lane": {true, word(4+4*64+4+4*63, 1), "no rank has such a state"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pairOfEnds(t)
			b.pair.pushing.Lock() // its own answer does not come first
			if c.asked {
				a.Ask(a.pair, nil)
				require.Eventually(t, func() bool {
					a.pair.mu.Lock()
					defer a.pair.mu.Unlock()
					return a.pair.asking == askSent
				}, soon, time.Millisecond)
			}
			h := b.pair.header(tcp.State)
			if !c.asked && c.spoil == nil {
				first := stateOf()
				require.NoError(t, b.pair.Link.Send(0, &h, first))
				b.barrier(t, a, 0)
			}
			shadow := func() []byte {
				return runner.CopyState(a.pair.words(func(l *lane) runner.Words { return l.shadow }), a.pair.Rank)
			}
			before := shadow()
			state := stateOf()
			if c.spoil != nil {
				state = c.spoil(state)
			}
			require.NoError(t, b.pair.Link.Send(0, &h, state))
			b.pair.pushing.Unlock()
			err := a.loss(t)
			require.ErrorIs(t, err, errNoFrame)
			require.ErrorContains(t, err, c.reason)
			require.Equal(t, before, shadow())
		})
	}
}

// Entries of control exchanges go to the function of the pair, in their order, until this rank leaves.
func TestSendEntry(t *testing.T) {
	a, b := pairOfEnds(t)
	type entry struct {
		h       tcp.Header
		payload string
	}
	came := make(chan entry, 10)
	b.pair.mu.Lock()
	b.pair.Control = func(h *tcp.Header, payload []byte) error {
		came <- entry{*h, string(payload)}
		if h.Number == 7 {
			return errors.New("round 7 is refused")
		}
		return nil
	}
	b.pair.mu.Unlock()
	send := func(h tcp.Header, payload ...[]byte) {
		require.Eventually(t, func() bool {
			taken, err := a.pair.SendEntry(h, payload...)
			require.NoError(t, err)
			return taken
		}, soon, time.Millisecond)
	}
	send(tcp.Header{Channel: 3, Number: 1, Hash: 9, Block: 8, Taken: 7, Tag: 4}, []byte("name"), []byte("data"))
	send(tcp.Header{Channel: 2, Taken: 1})
	for n, want := range []entry{
		{tcp.Header{Kind: tcp.Exchange, Group: 5, From: 0, To: 1, Bytes: 8, Channel: 3, Number: 1, Hash: 9, Block: 8, Taken: 7, Tag: 4}, "namedata"},
		{tcp.Header{Kind: tcp.Exchange, Group: 5, From: 0, To: 1, Channel: 2, Taken: 1}, ""},
	} {
		select {
		case got := <-came:
			require.Equal(t, want, got, n)
		case <-time.After(soon):
			require.Fail(t, "nothing comes")
		}
	}
	a.pair.lanes[runner.HostLane].own.Left().Store(9)
	require.True(t, a.Flush(soon))
	_, err := a.pair.SendEntry(tcp.Header{Taken: 1})
	require.ErrorIs(t, err, ErrEnded, "nothing follows a goodbye")
	a.barrier(t, b, 0)
	require.NoError(t, a.pair.Link.Err())

	h := b.pair.header(tcp.Exchange) // a has no function
	require.NoError(t, b.pair.Link.Send(0, &h))
	require.ErrorIs(t, a.loss(t), errNoFrame)
}

// An error of the function ends the link, with its text.
func TestRefusedEntry(t *testing.T) {
	a, b := pairOfEnds(t)
	b.pair.mu.Lock()
	b.pair.Control = func(*tcp.Header, []byte) error { return errors.New("round 7 is refused") }
	b.pair.mu.Unlock()
	_, err := a.pair.SendEntry(tcp.Header{Number: 7})
	require.NoError(t, err)
	require.ErrorContains(t, b.loss(t), "EXCHANGE from rank 0 to rank 1: round 7 is refused")
}

// Frames of the verdict go to who serves the group on the link, whatever ranks they name and whether or not a pair uses the link.
func TestServe(t *testing.T) {
	a, b := newEnd(t, 0), newEnd(t, 1)
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	l, err := a.node.Link(ctx, b.id, []netip.AddrPort{b.at}, handshake.Space{})
	require.NoError(t, err)
	back, err := b.node.Link(ctx, a.id, []netip.AddrPort{a.at}, handshake.Space{})
	require.NoError(t, err)

	type frame struct {
		kind    tcp.Kind
		from    uint32
		payload string
	}
	came := make(chan frame, 10)
	take := func(h *tcp.Header, payload []byte) error {
		came <- frame{h.Kind, h.From, string(payload)}
		if h.From == 66 {
			return errors.New("66 is no member")
		}
		return nil
	}
	next := func() frame {
		select {
		case f := <-came:
			return f
		case <-time.After(soon):
			require.Fail(t, "nothing comes")
			return frame{}
		}
	}
	send := func(kind tcp.Kind, number uint64, from uint32, payload string) {
		h := tcp.Header{Kind: kind, Group: number, From: from, To: 40}
		require.NoError(t, l.Send(0, &h, []byte(payload)))
	}
	send(tcp.Declare, 8, 30, "to nobody")
	other, err := b.Serve(back, 9, func(h *tcp.Header, _ []byte) error { return take(h, []byte("of group 9")) })
	require.NoError(t, err)
	send(tcp.Lost, 9, 1, "")
	require.Equal(t, frame{tcp.Lost, 1, "of group 9"}, next())
	stop, err := b.Serve(back, 8, take)
	require.NoError(t, err)
	for n, kind := range []tcp.Kind{tcp.Declare, tcp.Collect, tcp.Promise, tcp.Cause} {
		send(kind, 8, uint32(n), "a record")
		require.Equal(t, frame{kind, uint32(n), "a record"}, next())
	}
	send(tcp.Lost, 8, 5, "")
	require.Equal(t, frame{tcp.Lost, 5, ""}, next())
	stop()
	send(tcp.Cause, 8, 5, "to nobody")
	send(tcp.Lost, 9, 2, "")
	require.Equal(t, frame{tcp.Lost, 2, "of group 9"}, next())
	other()
	_, err = b.Serve(back, 8, take)
	require.NoError(t, err)
	stop() // of another one
	send(tcp.Cause, 8, 66, "x")
	require.Equal(t, frame{tcp.Cause, 66, "x"}, next())
	require.ErrorContains(t, b.loss(t), "66 is no member")
	_, err = b.Serve(back, 8, take)
	require.ErrorContains(t, err, "66 is no member")
	b.serving.Lock()
	defer b.serving.Unlock()
	require.Empty(t, b.services, "the link has ended")
}
