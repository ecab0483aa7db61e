package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/coll"
)

// Of a process that gives no answer the tool prints what its threads wait for, and all goroutines.
func TestDumpOfAProcess(t *testing.T) {
	s := testSetup(t)
	p, err := s.pool("dump")
	require.NoError(t, err)
	ranks, err := p.take(1)
	require.NoError(t, err)
	require.False(t, anySilent(ranks))
	require.Eventually(t, func() bool { return strings.Contains(threadsOf(ranks[0].pid), goThread+": state S, in ") }, hangAfter, time.Millisecond)
	ranks[0].dump()
	require.True(t, anySilent(ranks))
	require.False(t, ranks[0].alive())
	text := ranks[0].tail()
	for _, part := range []string{"thread ", goThread + ": state ", ", system call ", "SIGSEGV", "goroutine ", "pgbackend.(*progressEngine)"} {
		require.Contains(t, text, part)
	}
	require.NoError(t, p.close())
}

// A line that is no answer is no silence.
func TestLinesThatAreNoAnswers(t *testing.T) {
	p := &process{waiting: map[string]chan result{}}
	p.hear("done\t1\t0\t1\t10\t20\t-1\t0\ta message\twith a tab")
	p.hear("nothing that is known")
	require.Len(t, p.misunderstood(), 2)
	require.Empty(t, p.misunderstood())
}

// Where another rank than the one that was stopped is named, that is right in few cases.
func TestErrorsThatNameAnotherRank(t *testing.T) {
	const began = `sagecomm: group "g": rank 3 (host h, pid 4) timed out after its timeout of 400ms in reduce #5 (int32, SUM, 64 elements); `
	for text, is := range map[string]bool{
		"not arrived: rank 1 (host h, pid 11) last called reduce #3 (int32, SUM, 64 elements)":                                                                                                                                 true,
		"not arrived: rank 1 (host h, pid 11) has called no collective yet; rank 2 (host h, pid 12) last called reduce #1 (int32, SUM, 64 elements)":                                                                           true,
		"not arrived: rank 1 (host h, pid 11) has begun its first collective on a device; rank 2 (host h, pid 12) last called reduce #1 (int32, SUM, 64 elements)":                                                             true,
		"not arrived: rank 1 (host h, pid 11) last called reduce #3 (int32, SUM, 64 elements); rank 2 (host h, pid 12) had last called reduce #4 (int32, SUM, 64 elements) when it last answered, and does not answer now: it": true,
		"not arrived: rank 1 (host h, pid 11) last called reduce #3 (int32, SUM, 64 elements); rank 2 (host h, pid 12) last called reduce #3 (int32, SUM, 64 elements)":                                                        false,
		"not arrived: rank 1 (host h, pid 11) last called reduce #3 (int32, SUM, 64 elements); rank 2 (host h, pid 12) does not answer, so it is not known what it has called":                                                 false,
		"all ranks have arrived, but rank 1 (host h, pid 11) does not go on":                                                                                                                                                   false,
	} {
		trial := &trial{cell: cell{op: "reduce", fault: "stop", moment: "started", size: 4}, way: path{kind: coll.Reduce, apart: true}, culprit: 2,
			ranks: []*process{{pid: 10}, {pid: 11}, {pid: 12}, {pid: 4}}}
		trial.told = []result{{Entered: 9}, {Entered: 8}, {}, {Entered: 7}}
		got := result{Status: coll.Timeout, Rank: 1, PID: 11, Message: began + text}
		require.Equal(t, is, trial.alsoRight(got), text)
		trial.told[1].Entered = 6
		require.False(t, trial.alsoRight(got), "it was in its call and waited: %s", text)
		trial.told = []result{{}, {Entered: 8}, {}, {}}
		require.False(t, trial.alsoRight(got), "that is not known: %s", text)
		trial.way.kind = coll.AllReduce
		require.False(t, trial.alsoRight(got), text)
		got.Rank, got.PID = -1, 0
		require.Equal(t, strings.Contains(text, "rank 2") && strings.Contains(text, " not answer"), trial.alsoRight(got), text)
		trial.way.apart = false
		require.False(t, trial.alsoRight(got), text)
	}
	silent := &trial{cell: cell{fault: "stop", size: 4}, way: path{kind: coll.AllReduce, apart: true}, culprit: 2}
	require.True(t, silent.alsoRight(result{Rank: -1, Message: began + "all ranks have arrived, but rank 1 (host h, pid 11) and rank 2 (host h, pid 12) do not answer: they may be stopped, or their hosts busy"}))
	require.False(t, silent.alsoRight(result{Rank: -1, Message: began + "all ranks have arrived, but rank 0 (host h, pid 11) and rank 1 (host h, pid 12) do not answer: they may be stopped, or their hosts busy"}))
}
