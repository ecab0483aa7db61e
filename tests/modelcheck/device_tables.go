package modelcheck

// This file has the scenarios and mutations of gates.go, lanes.go and marks.go.

// streams are the streams of a rank's device for some operations. Units of the input reach a run before, between and after
// all that its peers do, since a stream is a thread like others.
func streams(rank int, calls ...Call) []Other {
	return []Other{{Rank: rank, Stream: copyIn, Calls: calls}, {Rank: rank, Stream: copyOut, Calls: calls}}
}

var gateScenarios = []Scenario{
	// One rank alone: the run and its device.
	{Name: "gate, 3 units, window 2", Ranks: 1, Slots: 2, Window: 2, Calls: same(chunks(OneShot, 3)), Others: streams(0, chunks(OneShot, 3))},
	{Name: "units that are taken, and nothing after it", Ranks: 1, Slots: 1, Window: 1, Calls: same(do(takeUnits)),
		Others: []Other{{Rank: 0, Stream: copyIn, Calls: []Call{chunks(OneShot, 2)}}}},
	{Name: "gate, used for two operations", Ranks: 1, Slots: 1, Window: 1, Calls: same(oneShot, do(useAgain), oneShot),
		Others: streams(0, oneShot, do(whenIssued), oneShot)},

	{Name: "gate, used again as soon as its device is through with it", Ranks: 1, Slots: 1, Window: 1, goesDown: true, Calls: same(do(takeUnitAndOpen)),
		Others: append(streams(0, oneShot, do(whenIssued), chunks(OneShot, 2)), Other{Rank: 0, Calls: []Call{do(operateWhenSettled)}})},

	{Name: "gates of two operations, 3 units, window 2", Ranks: 1, Slots: 2, Window: 2, Calls: same(chunks(OneShot, 3), do(nextGate), chunks(OneShot, 3)),
		Others: streams(0, chunks(OneShot, 3), do(nextGate), chunks(OneShot, 3))},

	{Name: "gate, one-shot, 1 unit", Ranks: 2, Slots: 1, Window: 1, Calls: same(oneShot), Others: streams(0, oneShot)},
	{Name: "gate, one-shot, 2 units, window 2", Ranks: 2, Slots: 2, Window: 2, Calls: same(chunks(OneShot, 2)), Others: streams(0, chunks(OneShot, 2))},
	{Name: "gate, one-shot, 3 units, window 2", Ranks: 2, Slots: 2, Window: 2, Calls: same(chunks(OneShot, 3)), Others: streams(0, chunks(OneShot, 3))},
	{Name: "gate, two-shot, 1 unit", Ranks: 2, Slots: 1, Window: 1, Calls: same(twoShot), Others: streams(0, twoShot)},
	{Name: "gate, two-shot, 2 units, window 2", Ranks: 2, Slots: 2, Window: 2, Calls: same(chunks(TwoShot, 2)), Others: streams(0, chunks(TwoShot, 2))},
	{Name: "gate, two-shot, 4 units, window 3", Ranks: 2, Slots: 3, Window: 3, Calls: same(chunks(TwoShot, 4)), Others: streams(0, chunks(TwoShot, 4))},
	{Name: "gate, 3 ranks, input only, one-shot, 2 units, window 2", Ranks: 3, Slots: 2, Window: 2, Calls: same(chunks(OneShot, 2)), Others: streams(0, chunks(OneShot, 2))[:1], Big: true},
	{Name: "gate, 3 ranks, output only, two-shot, 1 unit", Ranks: 3, Slots: 1, Window: 1, Calls: same(twoShot), Others: streams(0, twoShot)[1:], Big: true},
	{Name: "gates of both ranks, input only, 3 units, window 2", Ranks: 2, Slots: 2, Window: 2, Calls: same(chunks(OneShot, 3)),
		Others: []Other{{Rank: 0, Stream: copyIn, Calls: []Call{chunks(OneShot, 3)}}, {Rank: 1, Stream: copyIn, Calls: []Call{chunks(OneShot, 3)}}}},
	{Name: "gates of both ranks, output only, 3 units, window 2", Ranks: 2, Slots: 2, Window: 2, Calls: same(chunks(OneShot, 3)),
		Others: []Other{{Rank: 0, Stream: copyOut, Calls: []Call{chunks(OneShot, 3)}}, {Rank: 1, Stream: copyOut, Calls: []Call{chunks(OneShot, 3)}}}},
	{Name: "gates of both ranks, broadcast, 3 units, window 1", Ranks: 2, Slots: 2, Window: 1, Calls: same(chunks(Broadcast, 3)),
		Others: []Other{{Rank: 0, Stream: copyIn, Calls: []Call{chunks(Broadcast, 3)}}, {Rank: 1, Stream: copyOut, Calls: []Call{chunks(Broadcast, 3)}}}},

	// The run ends with an error, and the streams of its device end.
	{Name: "gate, a peer fails", Ranks: 2, Slots: 1, Window: 1, mayFail: true, Want: []outcomes{failed, failed, finished, finished},
		Calls: [][]Call{{oneShot}, {declare}}, Others: streams(0, oneShot)},
	{Name: "gate, a peer fails behind the first unit", Ranks: 2, Slots: 2, Window: 2, mayFail: true, Want: []outcomes{failed, failed, finished, finished},
		Calls: [][]Call{{chunks(OneShot, 3)}, {do(publishUnit), declare}}, Others: streams(0, chunks(OneShot, 3))},
	{Name: "gate, a peer fails, and the device is late", Ranks: 2, Slots: 1, Window: 1, mayFail: true, Want: []outcomes{failed, failed, finished, finished},
		Calls: [][]Call{{oneShot}, {declare}}, Others: streams(0, do(whenRunEnded), oneShot)},
	{Name: "gate, the group goes down, and the device is late", Ranks: 1, Slots: 1, Window: 1, goesDown: true, Want: []outcomes{failed, finished, finished, finished},
		Calls: same(oneShot), Others: append(streams(0, do(whenRunEnded), oneShot), Other{Rank: 0, Calls: []Call{do(takeGroupDown)}})},
	{Name: "gates of two operations, the group goes down, and the device is late", Ranks: 1, Slots: 1, Window: 1, goesDown: true,
		Want: []outcomes{failed, finished, finished, finished}, Calls: same(oneShot, do(nextGate), oneShot),
		Others: append(streams(0, do(whenRunEnded), oneShot, do(nextGate), oneShot), Other{Rank: 0, Calls: []Call{do(takeGroupDown)}})},
	{Name: "gate, used again after an error", Ranks: 1, Slots: 1, Window: 1, goesDown: true, Want: []outcomes{either, finished, finished, finished},
		Calls: same(oneShot, do(runEnded)), Others: append(streams(0, oneShot, do(whenIssued), chunks(OneShot, 2)), Other{Rank: 0, Calls: []Call{do(takeGroupDown), do(operateAgain)}})},
	{Name: "gate, used again after an error, streams wait for nothing", Ranks: 1, Slots: 1, Window: 1, goesDown: true, Want: []outcomes{either, finished, finished, finished},
		Calls: same(oneShot, do(runEnded)), Others: []Other{{Rank: 0, Stream: copyIn, Calls: []Call{oneShot, do(whenIssued), chunks(OneShot, 2)}},
			{Rank: 0, Stream: copyOut, Calls: []Call{do(takenWhenEnded), do(whenIssued), do(moveAgain)}},
			{Rank: 0, Calls: []Call{do(takeGroupDown), do(operateAgain)}}}},
}

var laneScenarios = []Scenario{
	{Name: "failure while a rank sleeps in both lanes", Ranks: 2, Slots: 1, mayFail: true, Want: []outcomes{failed, failed, failed},
		Calls: [][]Call{{oneShot}, {declare}}, Others: []Other{{Rank: 0, Lane: deviceLane, Calls: []Call{oneShot}}}},
	{Name: "failure of both lanes of a rank at once", Ranks: 2, Slots: 1, mayFail: true, Want: []outcomes{failed, failed, failed, failed},
		Calls: [][]Call{{oneShot}, {declare}}, Others: []Other{{Rank: 0, Lane: deviceLane, Calls: []Call{oneShot}}, {Rank: 1, Lane: deviceLane, Calls: []Call{declare}}}},
	{Name: "failure in the device lane while a rank sleeps in both", Ranks: 2, Slots: 1, mayFail: true, Want: []outcomes{failed, finished, failed, failed},
		Calls: [][]Call{{oneShot}, {}}, Others: []Other{{Rank: 0, Lane: deviceLane, Calls: []Call{oneShot}}, {Rank: 1, Lane: deviceLane, Calls: []Call{declare}}}},
	{Name: "goodbye while a rank sleeps in the device lane", Ranks: 2, Slots: 1, mayFail: true, goodbyes: true, Want: []outcomes{finished, finished, failed},
		Calls: [][]Call{{}, {goodbye}}, Others: []Other{{Rank: 0, Lane: deviceLane, Calls: []Call{oneShot}}}},
	{Name: "goodbye behind the device lane", Ranks: 2, Slots: 1, mayFail: true, goodbyes: true,
		Calls:  [][]Call{{oneShot}, {oneShot, do(whenDeviceLaneIsDone), goodbye}},
		Others: []Other{{Rank: 0, Lane: deviceLane, Calls: []Call{oneShot}}, {Rank: 1, Lane: deviceLane, Calls: []Call{oneShot, do(laneIsDone)}}}},
	{Name: "collectives of two lanes in opposite order", Ranks: 2, Slots: 1,
		Calls: [][]Call{{do(issueBoth), oneShot, do(laneIsDone)}, {do(whenIssuedInLane), oneShot, do(laneIsDone)}},
		Others: []Other{{Rank: 0, Lane: deviceLane, Calls: []Call{do(whenIssuedInLane), oneShot, do(laneIsDone)}},
			{Rank: 1, Lane: deviceLane, Calls: []Call{do(issueBoth), oneShot, do(laneIsDone)}}}},
	{Name: "the device lane opens while the group goes down", Ranks: 1, Slots: 1, Want: []outcomes{finished, failed},
		Calls: same(do(closeLanes)), Others: []Other{{Rank: 0, Lane: deviceLane, Calls: []Call{do(openLane)}}}},

	{Name: "marks of calls come round", Ranks: 2, Slots: 1, parts: []func(*builder){writeMarks, readMarks}},
}

var gateMutations = []Mutation{
	{NoWaitForInputReady, "a unit is entered without waiting for input_ready", "scr_gate_enter", "gate, one-shot, 1 unit", WrongData},
	{InputReadyNotAcquired, "input_ready is loaded without acquire", "scr_gate_enter", "gate, one-shot, 1 unit", WrongData},
	{NoWaitForOutputTaken, "a unit is entered without waiting for output_taken", "scr_gate_enter", "gate, one-shot, 3 units, window 2", Overwritten},
	{WaitsForAllUnits, "a run waits for units that its device does not move", "scr_gate_enter", "gates of both ranks, broadcast, 3 units, window 1", Deadlock},
	{InputTakenTooEarly, "input_taken is stored before the last read of the input", "scr_run_advance", "gate, one-shot, 3 units, window 2", Overwritten},
	{InputTakenRelaxed, "input_taken is stored without release", "scr_gate_leave", "units that are taken, and nothing after it", WrongData},
	{OutputDoneTooEarly, "output_done is stored before the output", "scr_run_advance", "gate, one-shot, 1 unit", WrongData},
	{OutputDoneRelaxed, "output_done is stored without release", "scr_gate_leave", "gate, one-shot, 1 unit", WrongData},
	{WindowLikeLag, "the window is no larger than the largest lag", "the window of a buffer", "gate, one-shot, 3 units, window 2", Deadlock},
	{OutputOverInput, "input and output lie in one buffer", "the buffers of a gate", "gate, one-shot, 3 units, window 2", WrongData},
	{GateStaysShut, "a run that ends with an error leaves its gate shut", "scr_gate_open in scr_run_finish", "gate, a peer fails, and the device is late", Deadlock},
	{GateUsedTooEarly, "a gate is used again before the device is through with it", "the buffers of a gate", "gate, used for two operations", Overwritten},
	{InputStaysShut, "a run that ends with an error sets output_done and not input_taken", "scr_gate_open", "gate, a peer fails behind the first unit", Deadlock},
	{QueuedGateStaysShut, "a run behind the one that is blocked leaves its gate shut", "scr_gate_open in scr_run_finish", "gates of two operations, the group goes down, and the device is late", Deadlock},
	{GateOpenedLate, "a gate is opened after its run was marked complete", "scr_run_finish", "gate, used again after an error, streams wait for nothing", WrongData},
	{OutputOpenedFirst, "a gate is opened in the other order: output_done, then input_taken", "scr_gate_open", "gate, used again as soon as its device is through with it", WrongData},
	{NoWaitForInputTaken, "the device does not wait for input_taken", "the copy-in stream", "gate, one-shot, 3 units, window 2", Overwritten},
	{StreamOutOfOrder, "operations stand in the stream in another order than in the queue", "the copy-in stream", "gates of two operations, 3 units, window 2", Deadlock},
	{DeviceWritesEarly, "input_ready is visible before the copy in front of it", "the copy-in stream", "gate, one-shot, 1 unit", WrongData},
}

var laneMutations = []Mutation{
	{FailureWakesHostLane, "a failure wakes the bells of the host lane only", "scr_group_wake_all in scr_group_set_failure", "failure while a rank sleeps in both lanes", Deadlock},
	{GoodbyeWakesHostLane, "a goodbye wakes the bells of the host lane only", "scr_group_wake_all in scr_group_goodbye", "goodbye while a rank sleeps in the device lane", Deadlock},
	{LooksAtLeftOfLane, "a sleeper of the device lane looks at left in the block of that lane", "scr_check_wait", "goodbye while a rank sleeps in the device lane", Deadlock},
	{LeftBeforeDeviceLane, "left is stored while the device lane still publishes", "Group.Destroy", "goodbye behind the device lane", BadOutcome},
	{OneQueue, "both lanes share one queue", "the queue of a lane", "collectives of two lanes in opposite order", Deadlock},
	{LooksBeforePointer, "who opens the device lane looks at DOWN before it stores the pointer", "opening the device lane", "the device lane opens while the group goes down", Deadlock},
	{LanePointerNoFence, "the pointer to the device lane is stored with release only", "opening the device lane", "the device lane opens while the group goes down", Deadlock},
	{LanePointerRelaxed, "the pointer to the device lane is stored without release", "opening the device lane", "the device lane opens while the group goes down", WrongData},
	{DownWakesHostLane, "who drives the device lane is not woken", "scr_group_down", "the device lane opens while the group goes down", Deadlock},
	{DeclaresInEachLane, "threads of different lanes declare, each writing the rank's record", "Group.Declare", "failure of both lanes of a rank at once", BadRecord},
	{PointerBeforeDown, "who takes the group down looks for the device lane before it sets DOWN", "scr_group_down", "the device lane opens while the group goes down", Deadlock},
}

var markMutations = []Mutation{
	{MarkNotInvalidated, "a mark keeps its number while it is rewritten", "scr_group_mark", "marks of calls come round", BadRecord},
	{MarkHashRelaxed, "the hash of a mark is stored without release", "scr_group_mark", "marks of calls come round", BadRecord},
	{MarkSeqRelaxed, "the number of a mark is stored without release", "scr_group_mark", "marks of calls come round", BadRecord},
	{MarkSeqNotAcquired, "the number of a mark is loaded without acquire", "read_mark", "marks of calls come round", BadRecord},
	{MarkHashNotAcquired, "the hash of a mark is loaded without acquire", "read_mark", "marks of calls come round", BadRecord},
	{MarkNoSecondLook, "no second look at the number of a mark", "read_mark", "marks of calls come round", BadRecord},
}
