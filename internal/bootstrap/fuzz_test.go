package bootstrap

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever a server with the secret answers, a client takes as many values as it has asked for, or none.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{answerOK, 'x'}, []byte{answerOK}, uint8(2))
	f.Add([]byte{answerTimeout}, []byte{}, uint8(1))
	f.Add([]byte{answerRefused, 'n', 'o'}, []byte{answerOK}, uint8(3))
	f.Add([]byte{answerOK}, []byte{answerTimeout}, uint8(2))
	f.Add([]byte{}, []byte{255}, uint8(1))
	f.Fuzz(func(t *testing.T, first, second []byte, n uint8) {
		if len(first) > maxFrame || len(second) > maxFrame || n == 0 || n > 3 {
			return
		}
		here, there := net.Pipe()
		key := [32]byte{1}
		served := make(chan struct{})
		go func() {
			defer close(served)
			defer func() { _ = there.Close() }()
			s, _, err := storeProtocol.Admit(there, 5*time.Second, func([spaceBytes]byte) ([32]byte, bool) { return key, true })
			if err != nil {
				t.Error(err)
				return
			}
			if _, err = s.Receive(); err != nil {
				t.Error(err)
				return
			}
			if s.Send(first) == nil {
				_ = s.Send(second) // the client may be content with the first one
			}
		}()
		s, err := greet(here, [spaceBytes]byte{}, key, time.Now().Add(5*time.Second))
		require.NoError(t, err)
		values, err := exchangeFrames(s, []byte("question"), int(n), time.Second)
		_ = here.Close()
		<-served
		sent := [][]byte{first, second}
		if err != nil {
			require.Empty(t, values)
			refused := (*refusal)(nil)
			if errors.Is(err, ErrTimeout) || errors.As(err, &refused) {
				require.Contains(t, []byte{answerTimeout, answerRefused}, first[0])
			}
			return
		}
		require.Len(t, values, int(n))
		for i, value := range values {
			require.Equal(t, byte(answerOK), sent[i][0])
			require.True(t, bytes.Equal(sent[i][1:], value))
		}
	})
}

// Whatever stands in the store of a rendezvous, it is a value, a failure of its rank, or an error that names the key.
func FuzzRecords(f *testing.F) {
	f.Add([]byte{markValue, 'x'}, []byte{markFailure, 'n', 'o'}, []byte("3 host"))
	f.Add([]byte{markDetailed, '{', '}', '\n', 'x'}, []byte{}, []byte("0 host"))
	f.Add([]byte{markDetailed}, []byte{255, 1}, []byte(""))
	f.Add([]byte{markFailure}, []byte{markValue}, []byte("99999999999999999999 x"))
	f.Fuzz(func(t *testing.T, first, second, begun []byte) {
		store := NewMemStore()
		require.NoError(t, store.Set("p/1", first))
		require.NoError(t, store.Set("p/2", second))
		values, err := gather(store, "p", 0, 3, time.Second, []byte{markValue, 'm'}, func(int, []byte) error { return nil })
		failed := (*FailedError)(nil)
		isValue := func(record []byte) bool { return len(record) > 0 && record[0] == markValue }
		switch {
		case err == nil:
			require.True(t, isValue(first) && isValue(second))
			require.Len(t, values, 3)
			require.True(t, bytes.Equal(first[1:], values[1]) && bytes.Equal(second[1:], values[2]))
		case errors.As(err, &failed):
			for _, each := range failed.Failed {
				record := [][]byte{nil, first, second}[each.Rank]
				require.False(t, isValue(record))
				require.Equal(t, each, *readFailure(each.Rank, record))
			}
		default:
			require.Regexp(t, "key p/[12] in the store", err.Error())
		}
		for rank, record := range [][]byte{nil, first, second} {
			if told := Abandoned(store, "p", rank); told != nil {
				require.Equal(t, rank, told.Rank)
				require.False(t, isValue(record))
			}
		}
		require.NoError(t, store.Set("e/1", begun))
		last, err := Epochs{Store: store, Prefix: "e", Rank: 1}.of(1)
		if err != nil {
			require.Contains(t, err.Error(), "key e/1 in the store")
			return
		}
		number, owner, _ := strings.Cut(string(begun), " ")
		n, _ := strconv.Atoi(number)
		require.True(t, last.number == n && n >= 1 && last.owner == owner, "%q is read as %v", begun, last)
	})
}

// Whatever stands in the place of the roster, a rank has all values, or an error that is one of a rendezvous.
func FuzzRosters(f *testing.F) {
	const size = mostDirect + 1
	whole, gap := []byte{rosterAll}, []byte{rosterAll}
	for rank := range size {
		whole = appendRecord(whole, []byte{markValue, byte(rank)})
		gap = appendRecord(gap, [][]byte{{markValue}, {}, failure(errors.New("no memory"))}[rank%3])
	}
	f.Add(whole)
	f.Add(gap)
	f.Add(whole[:len(whole)-1])
	f.Add(append(bytes.Clone(whole), 0))
	f.Add(append(appendRecord([]byte{rosterEarly, 64}, []byte{markValue, 'x'}), "ranks 0 and 64 differ"...))
	f.Add(append(appendRecord([]byte{rosterEarly, 200, 1}, []byte{markValue}), 'x'))
	f.Add([]byte{rosterNone})
	gaveUp := appendRecord([]byte{rosterGaveUp}, failure(lossError{}))
	f.Add(gaveUp)
	f.Add(appendRecord(append(bytes.Clone(gaveUp), 7), failure(errors.New("no memory"))))
	f.Add([]byte{rosterGaveUp})
	f.Add(failure(errors.New("disk full")))
	f.Add([]byte{rosterAll, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, roster []byte) {
		store := NewMemStore()
		require.NoError(t, store.Set(rosterKey("p", 0), roster))
		require.NoError(t, store.Set("p/0", []byte{markValue}))
		check := func(rank int, value []byte) error {
			if bytes.HasPrefix(value, []byte("x")) {
				return fmt.Errorf("rank %d differs", rank)
			}
			return nil
		}
		values, err := Exchange(store, "p", 1, size, 0, []byte("m"), check)
		if err == nil {
			require.Len(t, values, size)
			require.Equal(t, byte(rosterAll), roster[0])
			return
		}
		require.Nil(t, values)
		var failed *FailedError
		var late *TimeoutError
		var gaveUp *GaveUpError
		switch {
		case errors.As(err, &failed):
			require.NotEmpty(t, failed.Failed)
			for _, each := range failed.Failed {
				require.True(t, each.Rank >= 0 && each.Rank < size)
			}
		case errors.As(err, &late):
			require.Positive(t, len(late.Missing)+late.Unknown)
		case errors.As(err, &gaveUp):
			require.Equal(t, byte(rosterGaveUp), roster[0])
		default:
			require.Regexp(t, "^sagecomm: key p/(roster/0|[0-9]+) in the store holds .* use a fresh store or prefix$", err.Error())
		}
	})
}
