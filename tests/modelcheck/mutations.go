package modelcheck

import "slices"

// Mutation is a protection taken out, where the checker looks for the consequence, and what that is.
type Mutation struct {
	Switch   Switch
	What     string // that is changed
	Where    string // the protection is in the C code
	Scenario string
	Finds    Kind
}

// Mutations are all protections.
var Mutations = slices.Concat(groupMutations, p2pGateMutations, gateMutations, laneMutations, markMutations)

var groupMutations = []Mutation{
	{FilledRelaxed, "filled is stored without release", "scr_store_flag in publish", "filled and nothing after it", WrongData},
	{FilledNoFence, "filled is stored with release only", "scr_store_flag in publish", "filled and nothing after it", Deadlock},
	{ReducedRelaxed, "reduced is stored without release", "scr_store_flag in reduce", "reduced and nothing after it", WrongData},
	{ReducedNoFence, "reduced is stored with release only", "scr_store_flag in reduce", "reduced and nothing after it", Deadlock},
	{ConsumedRelaxed, "consumed is stored without release", "scr_store_flag in scr_run_advance", "consumed and nothing after it", WrongData},
	{ConsumedNoFence, "consumed is stored with release only", "scr_store_flag in scr_run_advance", "consumed and nothing after it", Deadlock},
	{WaitsForNotSeqCst, "waits_for is loaded with acquire only", "scr_wake_readers", "filled and nothing after it", Deadlock},
	{FilledWakesNobody, "nobody is woken after filled", "scr_wake_readers in publish", "filled and nothing after it", Deadlock},
	{ReducedWakesNobody, "nobody is woken after reduced", "scr_wake_readers in reduce", "reduced and nothing after it", Deadlock},
	{ConsumedWakesNobody, "nobody is woken after consumed", "scr_wake_readers in scr_run_advance", "consumed and nothing after it", Deadlock},

	{NoWaitForConsumed, "a slot is filled without waiting for consumed", "await_consumed", "consumed and nothing after it", Overwritten},
	{NoWaitForFilled, "slots are read without waiting for filled", "await_filled", "filled and nothing after it", WrongData},
	{NoWaitForReduced, "shares are collected without waiting for reduced", "collect", "reduced and nothing after it", WrongData},
	{FilledNotAcquired, "filled is loaded without acquire", "scr_await", "filled and nothing after it", WrongData},
	{ReducedNotAcquired, "reduced is loaded without acquire", "scr_await", "reduced and nothing after it", WrongData},
	{ConsumedTooEarly, "consumed is stored before the last reads", "scr_run_advance", "one-shot, 1 slot", Overwritten},
	{HeaderTooNew, "a slot's header counts its own ticket as consumed", "publish", "one-shot, 3 chunks through 2 slots", Overwritten},
	{SlotsLikeLag, "there are no more slots than the largest lag", "SCR_LARGE_SLOTS", "one-shot, 3 chunks through 2 slots", Deadlock},
	{HashNotCompared, "hashes are not compared", "await_filled", "all_reduce against broadcast", WrongData},
	{RecordsNotCompared, "records of calls are not compared", "scr_health", "broadcasts from each other", Deadlock},

	{MessageRelaxed, "a place's filled is stored without release", "scr_store_flag in put", "a message and nothing after it", WrongData},
	{MessageNoFence, "a place's filled is stored with release only", "scr_store_flag in put", "a message and nothing after it", Deadlock},
	{MessageNotAcquired, "a place's filled is loaded without acquire", "scr_await", "a message and nothing after it", WrongData},
	{MessageWakesNobody, "nobody is woken for a message", "wake in put", "a message and nothing after it", Deadlock},
	{MessageHashNotCompared, "hashes of messages are not compared", "await_message", "a ring against a chain", WrongData},
	{NoWaitForRoom, "a place is written without waiting for taken", "await_room", "room and nothing after it", WrongData},
	{NoWaitForMessage, "a place is read without waiting for filled", "await_message", "a message and nothing after it", WrongData},
	{TakenRelaxed, "taken is stored without release", "scr_store_flag in take", "room and nothing after it", WrongData},
	{TakenNoFence, "taken is stored with release only", "scr_store_flag in take", "room and nothing after it", Deadlock},
	{TakenTooEarly, "taken is stored before the message is read", "receive", "room and nothing after it", WrongData},
	{TakenWakesNobody, "nobody is woken for room", "wake in take", "room and nothing after it", Deadlock},
	{ChannelWakeNotSeqCst, "waits_for is loaded with acquire only for a message", "wake", "a message and nothing after it", Deadlock},
	{ChannelWakesNobody, "nobody is woken for a channel", "scr_wake_readers in scr_group_set_channel", "a channel and nothing after it", Deadlock},

	{WaitsForNoFence, "waits_for is stored with release only", "scr_relax", "filled and nothing after it", Deadlock},
	{NoSecondLook, "no second look at the flag", "scr_relax", "filled and nothing after it", Deadlock},
	{SecondLookNotSeqCst, "the second look is a load with acquire only", "scr_relax", "filled and nothing after it", Deadlock},
	{BellAfterLook, "the bell is read after the second look", "scr_relax", "filled and nothing after it", Deadlock},
	{NoBellCheck, "the futex does not compare the bell", "scr_futex_wait", "filled and nothing after it", Deadlock},
	{WakeWithoutAdd, "the bell is not changed before waking", "scr_bell_wake", "filled and nothing after it", Deadlock},
	{WakeWithoutFutex, "the futex is not woken", "scr_bell_wake", "filled and nothing after it", Deadlock},
	{FailureBeforeBell, "failure is looked at before the bell is read, not after", "scr_relax", "failure while the other sleeps", Deadlock},
	{LeftBeforeBell, "left is looked at before the bell is read, not after", "scr_relax", "goodbye of a rank that is needed", Deadlock},
	{RecordsBeforeWaits, "records are compared before waits_for is stored, not after", "scr_relax", "broadcasts from each other", Deadlock},

	{EngineWaitsForNoFence, "the engine stores waits_for with release only", "look_at_collectives", "filled, the engine drives", Deadlock},
	{EngineNoSecondLook, "the engine does not look at the flag again", "look_at_collectives", "filled, the engine drives", Deadlock},
	{EngineSecondLookNotSeqCst, "the engine looks at the flag again with acquire only", "look_at_collectives", "filled, the engine drives", Deadlock},
	{EngineBellAfterLook, "the engine reads its bell after it has looked at the flag again", "scr_engine_turn", "filled, the engine drives", Deadlock},

	{RecordAfterClaim, "the record is written after the compare-and-swap", "scr_group_set_failure", "failure while the other sleeps", BadRecord},
	{ClaimRelaxed, "the compare-and-swap is relaxed", "scr_group_set_failure", "failure while the other sleeps", BadRecord},
	{FailureOverwrites, "failure is stored, not compared and swapped", "scr_group_set_failure", "two failures at once, 3 ranks", BadRecord},
	{FailureWakesNobody, "no bell is woken for a failure", "scr_group_wake_all in scr_group_set_failure", "failure while the other sleeps", Deadlock},
	{DeclareTwice, "two threads of a process declare, each writing the rank's record", "Group.Declare", "two failures in one process", BadRecord},

	{DrainTriesNothing, "what is queued fails untried", "scr_drain", "down, the first of the queue is published", BadOutcome},
	{DrainGoesOn, "the drain goes on behind the first run that would wait", "scr_drain", "down on the fast path, another thread behind", BadOutcome},
	{DrainWithoutLock, "the queue is drained without the drive lock", "scr_group_down", "down by another thread", LateWrite},
	{DownWakesNobody, "who drives is not woken", "scr_group_down", "down without a failure", Deadlock},
	{DownLeavesEngine, "the engine is not woken", "scr_group_down", "down without a failure, nobody waits for the second", Deadlock},
	{NoLookAtDown, "a driver that is about to sleep does not look whether the group is down", "scr_health", "down without a failure", Deadlock},
	{LeavesSilently, "a driver that leaves does not wake the engine for the rest of the queue", "scr_drive_unlock", "down without a failure, nobody waits for the second", Deadlock},
	{FastFailsAlone, "the run of the fast path that has met an incident leaves the drive lock to who is behind it", "fail_here", "down on the fast path, another thread behind", BadOutcome},
	{CompleteBeforeCopy, "a run is marked complete before its last copy", "scr_drive", "down, the first of the queue is published", LateWrite},

	{LeftBeforeLast, "left is stored before the last contribution", "Group.Destroy", "goodbye when all is done", BadOutcome},
	{NoLookAfterLeft, "the flag is not looked at again after left", "still_blocked in scr_health", "goodbye when all is done", BadOutcome},
	{GoodbyeWakesNobody, "no bell is woken for a goodbye", "scr_group_wake_all in scr_group_goodbye", "goodbye of a rank that is needed", Deadlock},

	{RecordNotInvalidated, "a record keeps its number while it is rewritten", "record_call", "records of calls come round", BadRecord},
	{RecordNoWriterFence, "no fence behind the invalidation", "record_call", "records of calls come round", BadRecord},
	{RecordSeqRelaxed, "the number is stored without release", "record_call", "records of calls come round", BadRecord},
	{RecordSeqNotAcquired, "the number is loaded without acquire", "read_record", "records of calls come round", BadRecord},
	{RecordNoReaderFence, "no fence before the second look at the number", "read_record", "records of calls come round", BadRecord},
	{RecordNoSecondLook, "no second look at the number", "read_record", "records of calls come round", BadRecord},

	{EngineBitNotSeqCst, "the engine's bit is stored with release only", "leave_to_engine", "a recv that nobody waits for", Deadlock},
	{NoLookAfterEngineBit, "no look at the fifos after the engine's bit is set", "leave_to_engine", "a recv that nobody waits for", Deadlock},
	{EngineNoLook, "the engine does not look at the fifos after it has set its bit", "look_at_p2p", "a recv that nobody waits for", Deadlock},
	{PostedAfterLook, "an operation is counted after the look at who drives", "scr_p2p_post", "a recv posted while another thread stops waiting", Deadlock},
	{LeavesNothing, "who stops waiting leaves nothing to the engine", "end_driving", "a recv that is waited for a while", Deadlock},
	{LeavesBeforeCount, "who stops waiting looks at what is unfinished before he counts himself out", "end_driving", "a recv posted while another thread stops waiting", Deadlock},
}

// Harmless changes look like protections and are none: nothing may be found, in any scenario.
var Harmless = []Mutation{
	{Switch: BellBetween, What: "the bell is read between the store of waits_for and the second look"},
	{Switch: FailureAfterBellOnly, What: "failure is looked at between the read of the bell and the store of waits_for"},
	{Switch: LeftAfterBellOnly, What: "left is looked at between the read of the bell and the store of waits_for"},
	{Switch: EngineBesideDriver, What: "the engine sets its bit although a thread drives"},
	{Switch: LeftRelaxed, What: "left is stored without release: the rings behind it order it"},
	{Switch: OutputTakenNotAcquired, What: "output_taken is loaded without acquire: only stores follow, and they depend on it"},
}
