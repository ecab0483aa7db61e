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
	WaitsForNotSeqCst  // the rank that publishes loads waits_for with acquire only
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
	SlotsLikeLag       // no more slots than the largest lag
	HashNotCompared    // slot's hash against the own one
	RecordsNotCompared // scr_health: records of the peers

	// Messages of collectives: sendrecv.c.
	MessageRelaxed         // a place's filled without release
	MessageNoFence         // with release only
	MessageNotAcquired     // filled loaded without acquire
	MessageWakesNobody     // wake after filled
	MessageHashNotCompared // a message's hash against the own one
	NoWaitForRoom
	NoWaitForMessage
	TakenRelaxed         // taken without release
	TakenNoFence         // with release only
	TakenTooEarly        // taken stored before the message is read
	TakenWakesNobody     // wake after taken
	ChannelWakeNotSeqCst // waits_for loaded with acquire by wake
	ChannelWakesNobody   // scr_wake_readers after a channel was made

	// Sleeping: scr_relax.
	WaitsForNoFence      // waits_for with release only: no order between it and the second look
	NoSecondLook         // at the flag
	SecondLookNotSeqCst  // with acquire only
	BellAfterLook        // the bell is read after the second look
	NoBellCheck          // the futex sleeps whatever the bell's value is
	WakeWithoutAdd       // the waker wakes but does not change the bell
	WakeWithoutFutex     // the waker changes the bell but does not wake
	FailureBeforeBell    // failure looked at before the bell is read only
	LeftBeforeBell       // left looked at before the bell is read only
	RecordsBeforeWaits   // records looked at before waits_for is stored only
	BellBetween          // harmless: the bell is read between the store of waits_for and the second look
	FailureAfterBellOnly // harmless: failure looked at after the bell is read, before waits_for is stored
	LeftAfterBellOnly    // harmless: the same for left

	// The engine's look at collectives: look_at_collectives.
	EngineWaitsForNoFence     // waits_for with release only
	EngineNoSecondLook        // at the flag
	EngineSecondLookNotSeqCst // with acquire only
	EngineBellAfterLook       // the bell is read after the second look

	// Failing: scr_group_set_failure.
	RecordAfterClaim  // record written after the compare-and-swap
	ClaimRelaxed      // compare-and-swap without release
	FailureOverwrites // store instead of compare-and-swap
	FailureWakesNobody
	DeclareTwice // two threads of one process write one record

	// A group that is down: scr_group_down, scr_drain, issue.c.
	DrainTriesNothing  // what is queued fails although all it needs is there
	DrainGoesOn        // behind the first run that would wait
	DrainWithoutLock   // without the drive lock
	DownWakesNobody    // the bell of who drives
	DownLeavesEngine   // the engine is not woken
	NoLookAtDown       // by a driver that is about to sleep
	LeavesSilently     // a driver leaves with runs in the queue and does not wake the engine
	FastFailsAlone     // the run of the fast path does not go back to the queue when it has met an incident
	CompleteBeforeCopy // a run is marked complete before its last copy

	// Leaving: scr_group_goodbye, scr_health.
	LeftBeforeLast // left stored before the last flag
	LeftRelaxed    // harmless: left stored without release
	NoLookAfterLeft
	GoodbyeWakesNobody

	// Records of calls: record_call, read_record.
	RecordNotInvalidated
	RecordNoWriterFence
	RecordSeqRelaxed
	RecordSeqNotAcquired
	RecordNoReaderFence
	RecordNoSecondLook

	// Who drives p2p operations: p2p_issue.c, look_at_p2p.
	EngineBitNotSeqCst   // the bit with release only: no order between it and the look behind it
	NoLookAfterEngineBit // by a thread that leaves operations to the engine
	EngineNoLook         // after the bit, by the engine
	PostedAfterLook      // an operation counted after the look at who drives
	LeavesNothing        // a thread that stops waiting does not look for unfinished operations
	LeavesBeforeCount    // it looks before it lowers the count of drivers
	EngineBesideDriver   // harmless: the engine sets its bit although a thread drives

	// Gates of p2p operations: p2p_issue.c, look_at_p2p.
	EngineSleepsAtGates
	PostedAtGateWakesNoEngine
	PostedAtGateWakesNoDriver
	DriverSleepsAtGates
	DriverLooksBeforeBell // at what is behind
	LeavesGatesToNobody

	// Gates, the run: scr_gate_enter, scr_gate_leave, scr_gate_open.
	NoWaitForInputReady
	InputReadyNotAcquired
	NoWaitForOutputTaken
	OutputTakenNotAcquired // harmless: only stores follow
	WaitsForAllUnits       // of the operation, not of those that the device moves
	InputTakenTooEarly     // input_taken stored before the last read
	InputTakenRelaxed      // without release
	OutputDoneTooEarly     // output_done stored before the output
	OutputDoneRelaxed      // without release
	WindowLikeLag          // a window that is no larger than the largest lag
	OutputOverInput        // input and output in one buffer
	GateStaysShut          // when its run ends with an error
	InputStaysShut         // only output_done is set then
	QueuedGateStaysShut    // that of a run that is queued behind the one that is blocked
	GateOpenedLate         // after the run was marked complete
	OutputOpenedFirst      // before input_taken
	GateUsedTooEarly       // again, while the device still uses it

	// Gates, the device: the commands of its streams.
	NoWaitForInputTaken
	StreamOutOfOrder  // the last operation first
	DeviceWritesEarly // a write visible before the copy in front of it

	// Lanes.
	FailureWakesHostLane // only
	GoodbyeWakesHostLane // only
	LooksAtLeftOfLane    // where nobody stores it
	LeftBeforeDeviceLane // left stored while the device lane still publishes
	OneQueue             // both lanes share one queue
	LooksBeforePointer   // who opens the device lane looks at DOWN before it stores the pointer
	LanePointerNoFence   // the pointer with release only: no order between it and the look at DOWN
	LanePointerRelaxed   // the pointer without release
	DownWakesHostLane    // only
	DeclaresInEachLane   // threads of different lanes do not take turns
	PointerBeforeDown    // who takes the group down looks at the pointer before it sets DOWN

	// Marks of calls: scr_group_mark, read_mark.
	MarkNotInvalidated
	MarkHashRelaxed // the hash stored without release: it may be visible before the invalidation
	MarkSeqRelaxed
	MarkSeqNotAcquired
	MarkHashNotAcquired // the second look at the number may be satisfied before it
	MarkNoSecondLook

	switches // how many
)
