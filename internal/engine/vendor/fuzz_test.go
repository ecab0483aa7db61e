package vendor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/engine/staged"
	"sagecomm/internal/runner"
)

// idBytes is the length of a unique id of told.
const idBytes = 4

// told is a library whose communicators are joined at once.
type told struct{ Library }

func (told) Name() string           { return "told" }
func (told) NewID() ([]byte, error) { return make([]byte, idBytes), nil }
func (told) Join(id []byte, _, _ int, _ Group) (Communicator, error) {
	if len(id) != idBytes {
		return nil, fmt.Errorf("the unique id of rank 0 has %d bytes, expected %d", len(id), idBytes)
	}
	return toldOf{}, nil
}

type toldOf struct{ Communicator }

func (toldOf) State() (bool, error) { return true, nil }
func (toldOf) Abort() bool          { return true }

// Whatever peers send while ranks make a communicator, a rank has a communicator only if all have told that they can have one and have joined.
// Otherwise the group knows for each rank why it does without, or names the rank that sends what no rank sends. Each line of reports is what both
// peers tell at once of how far they are, and the group fails behind the last one.
func FuzzExchanges(f *testing.F) {
	seat, _ := json.Marshal(Seat{Device: "GPU-1", Place: "cuda:0 of host a", Process: "12", Reaches: []string{"GPU-1"}, Why: ""})
	other := bytes.ReplaceAll(seat, []byte("GPU-1"), []byte("GPU-2"))
	mine := Seat{Device: "GPU-3", Place: "cuda:0 of host c"}
	id, joined := make([]byte, idBytes), []byte(`{"joined":true,"why":""}`)
	f.Add(seat, other, id, joined)
	f.Add(seat, seat, id, joined)
	f.Add(seat, bytes.ReplaceAll(seat, []byte("GPU-1"), []byte("GPU-3")), id, joined)
	f.Add([]byte(`{"why":"no library"}`), other, id, joined)
	f.Add(seat, other, []byte{}, joined)
	f.Add(seat, other, id[:1], joined)
	f.Add(seat, other, id, []byte("{}\n{}\n"+string(joined)))
	f.Add(seat, other, id, []byte(`{"joined":true,"why":"and failed"}`))
	f.Add([]byte(`{"device":12}`), other, id, joined)
	f.Add(seat, []byte(`{"where":{"numa":-1},"reaches":null}`), id, []byte(`[]`))
	f.Add([]byte("null"), []byte{}, id, []byte("null"))
	f.Fuzz(func(t *testing.T, first, last, id, reports []byte) {
		rounds := bytes.Split(reports, []byte("\n"))
		over := errors.New("the group has failed")
		var settled []string
		var round []byte // the last one
		begun := false
		group := Group{Run: new(runner.Group), Rank: 1, Size: 3, Guard: func(f func()) { f() }, Timeout: func() time.Duration { return time.Minute }, Failed: func() bool { return false },
			Exchange: func(purpose string, mine []byte) ([][]byte, error) {
				if strings.HasPrefix(purpose, "devices for told") {
					return [][]byte{first, mine, last}, nil
				}
				if len(rounds) == 0 {
					return nil, over
				}
				round, rounds = rounds[0], rounds[1:]
				return [][]byte{round, mine, round}, nil
			},
			Unique: func(mine []byte) ([][]byte, error) { return [][]byte{id, mine, nil}, nil },
			Settled: func(reasons []string, failed bool) error {
				settled, begun = reasons, failed
				return nil
			}}
		others := staged.New(nil, nil, 1, 3, staged.NewPool(), nil)
		e := New(Calls(told{}), group, others, others, NewPool(), nil)
		c := &communicator{engine: e, ended: make(chan struct{}), stop: make(chan struct{}), current: func(f func() error) error { return f() }}
		err := e.settle(c, mine, false)
		seats := make([]Seat, 3)
		seats[1] = mine
		valid := json.Unmarshal(first, &seats[0]) == nil && json.Unmarshal(last, &seats[2]) == nil
		usable := valid && seats[0].Why == "" && seats[2].Why == "" && seats[0].Device != seats[2].Device && seats[0].Device != mine.Device && seats[2].Device != mine.Device
		switch {
		case err == over:
			require.True(t, usable)
		case err != nil:
			require.Regexp(t, `^rank [02] has sent what no rank sends as (devices for told|join of told): `, err.Error())
		default:
			require.Len(t, settled, 3)
			require.Equal(t, c.joined == nil, lacks(settled), settled)
			require.True(t, usable || !begun, "ranks joined that cannot")
		}
		if c.joined != nil {
			require.NoError(t, err)
			require.True(t, usable && len(id) == idBytes)
			var peers report
			require.NoError(t, json.Unmarshal(round, &peers))
			require.Equal(t, report{Joined: true}, peers)
		}
	})
}
