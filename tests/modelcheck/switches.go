package modelcheck

// Switch takes one protection out of the protocol, or changes one detail of it.
type Switch uint8

// The switches. The comment says what the protection is in the C code.
const (
	Intact Switch = iota

	// Publishing: scr_store_flag.
	FilledRelaxed      // filled without release
	FilledNoFence      // filled with release only: no order between it and the load of waits_for
	ReducedRelaxed     // reduced without release
	ReducedNoFence     // reduced with release only
	ConsumedRelaxed    // consumed without release: the reads before it may still be under way
	ConsumedNoFence    // consumed with release only
	WaitsForNotSeqCst  // waits_for loaded with acquire by who publishes
	FilledWakesNobody  // scr_wake_readers after filled
	ReducedWakesNobody // after reduced
	ConsumedWakesNobody

	// Waiting: await and the waits of the stages.
	NoWaitForConsumed
	NoWaitForFilled
	NoWaitForReduced
	FilledNotAcquired
	ReducedNotAcquired
	ConsumedTooEarly   // consumed stored before the last reads
	HeaderTooNew       // the slot's `consumed` counts the ticket that is being filled
	SlotsLikeLag       // a lane with no more slots than the largest lag
	HashNotCompared    // slot's hash against the own one
	RecordsNotCompared // scr_health: records of the peers

	// Messages of collectives: flow.c.
	MessageRelaxed         // a place's filled without release
	MessageNoFence         // with release only
	MessageNotAcquired     // filled loaded without acquire
	MessageWakesNobody     // wake after filled
	MessageHashNotCompared // a message's hash against the own one
	NoWaitForRoom
	NoWaitForMessage
	TakenRelaxed      // taken without release
	TakenNoFence      // with release only
	TakenTooEarly     // taken stored before the message is read
	TakenWakesNobody  // wake after taken
	FlowWakeNotSeqCst // waits_for loaded with acquire by wake
	FlowWakesNobody   // scr_wake_readers after a flow was made

	// Sleeping: scr_relax.
	WaitsForNoFence      // waits_for with release only: no order between it and the second look
	NoSecondLook         // at the flag
	SecondLookNotSeqCst  // with acquire only
	BellAfterLook        // the bell is read after the second look
	NoBellCheck          // the futex sleeps whatever the bell's value is
	RingWithoutAdd       // the waker wakes but does not change the bell
	RingWithoutWake      // the waker changes the bell but does not wake
	FailureBeforeBell    // failure looked at before the bell is read only
	LeftBeforeBell       // left looked at before the bell is read only
	RecordsBeforeWaits   // records looked at before waits_for is stored only
	BellBetween          // harmless: the bell is read between the store of waits_for and the second look
	FailureAfterBellOnly // harmless: failure looked at after the bell is read, before waits_for is stored
	LeftAfterBellOnly    // harmless: the same for left

	// Failing: scr_group_set_failure.
	RecordAfterClaim  // record written after the compare-and-swap
	ClaimRelaxed      // compare-and-swap without release
	FailureOverwrites // store instead of compare-and-swap
	FailureRingsNobody
	DeclareTwice // two threads of one process write one record

	// Leaving: scr_group_goodbye, scr_health.
	LeftBeforeLast // left stored before the last flag
	LeftRelaxed    // harmless: left stored without release
	NoLookAfterLeft
	GoodbyeRingsNobody

	// Records of calls: scr_run_start, read_record.
	RecordNotInvalidated
	RecordNoWriterFence
	RecordSeqRelaxed
	RecordSeqNotAcquired
	RecordNoReaderFence
	RecordNoSecondLook

	// Who drives messages: p2p_issue.c, look_at_messages.
	EngineBitNotSeqCst   // the bit with release only: no order between it and the look behind it
	NoLookAfterEngineBit // by who leaves messages to the engine
	EngineNoLook         // after the bit, by the engine
	PostedAfterLook      // a message counted after the look at who drives
	LeavesNothing        // who stops waiting does not look what is unfinished
	LeavesBeforeCount    // he looks before he counts himself out
	EngineBesideDriver   // harmless: the engine sets its bit although a thread drives

	switches // how many
)
