package modelcheck

import "slices"

// Scenarios lists the scenarios that are explored.
var Scenarios = slices.Concat(groupScenarios, p2pGateScenarios, gateScenarios, laneScenarios)

var groupScenarios = []Scenario{
	{Name: "one-shot, 1 slot", Ranks: 2, Slots: 1, Calls: same(oneShot, oneShot, oneShot), hashes: true, headers: true},
	{Name: "one-shot, 3 chunks through 2 slots", Ranks: 2, Slots: 2, Calls: same(chunks(OneShot, 3)), headers: true},
	{Name: "one-shot, 3 ranks, 1 slot", Ranks: 3, Slots: 1, Calls: same(oneShot, oneShot), headers: true, Big: true},
	{Name: "one-shot, 3 ranks, 3 calls", Ranks: 3, Slots: 1, Calls: same(oneShot, oneShot, oneShot), Big: true},
	{Name: "one-shot, 3 ranks, 3 chunks through 2 slots", Ranks: 3, Slots: 2, Calls: same(chunks(OneShot, 3)), Big: true},
	{Name: "two-shot, 1 slot", Ranks: 2, Slots: 1, Calls: same(twoShot, twoShot, twoShot), hashes: true, headers: true},
	{Name: "two-shot, 4 chunks through 3 slots", Ranks: 2, Slots: 3, Calls: same(chunks(TwoShot, 4)), headers: true},
	{Name: "two-shot, 3 ranks, 1 slot", Ranks: 3, Slots: 1, Calls: same(twoShot, twoShot), Big: true},
	{Name: "two-shot, 3 ranks, 3 chunks through 3 slots", Ranks: 3, Slots: 3, Calls: same(chunks(TwoShot, 3)), Big: true},
	{Name: "broadcasts and all_reduce, 1 slot", Ranks: 2, Slots: 1, Calls: same(broadcast(0), oneShot, broadcast(1), broadcast(1)), hashes: true, headers: true},
	{Name: "broadcast, all_reduce, 3 ranks, 1 slot", Ranks: 3, Slots: 1, Calls: same(broadcast(1), oneShot), headers: true, Big: true},
	{Name: "broadcasts from two roots, two-shot, 3 ranks, 2 slots", Ranks: 3, Slots: 2, Calls: same(broadcast(0), twoShot, broadcast(2)), Big: true},
	{Name: "barriers, 3 ranks", Ranks: 3, Slots: 1, Calls: same(barrier, barrier)},

	// Whole collectives hide a lost wake-up: the next flag of the same rank wakes too, at the latest consumed. Here a
	// rank publishes one flag and then computes for ever.
	{Name: "filled and nothing after it", Ranks: 2, Slots: 1, parts: []func(*builder){
		func(b *builder) { b.fill(0, OneShot) },
		func(b *builder) { b.awaitFilled(0, 0); b.readData(0, 0, 0, false) }}},
	{Name: "reduced and nothing after it", Ranks: 2, Slots: 1, parts: []func(*builder){
		func(b *builder) { b.fill(0, TwoShot); b.reduce(0, true) },
		func(b *builder) { b.fill(0, TwoShot); b.collect(0) }}},
	{Name: "consumed and nothing after it", Ranks: 2, Slots: 1, parts: []func(*builder){
		func(b *builder) { b.fill(0, OneShot); b.fill(1, OneShot) },
		func(b *builder) { b.awaitFilled(0, 0); b.readData(0, 0, 0, false); b.consume(0) }}},

	// The progress engine drives rank 1.
	{Name: "filled, the engine drives", Ranks: 2, Slots: 1, parts: []func(*builder){
		func(b *builder) { b.fill(0, OneShot) },
		func(b *builder) { b.awaitAsEngine(b.sc.filled(0, 0), 1, 0); b.readData(0, 0, 0, false) }}},
	{Name: "filled, the engine drives, and the rank fails", Ranks: 2, Slots: 1, mayFail: true, Want: []outcomes{failed, either},
		parts: []func(*builder){
			func(b *builder) { b.fill(0, OneShot); b.declare(b.raise); b.report() },
			func(b *builder) { b.awaitAsEngine(b.sc.filled(0, 0), 1, 0); b.readData(0, 0, 0, false) }}},

	{Name: "ring of messages, 1 place", Ranks: 2, Slots: 1, Calls: same(ring1, ring1, ring1), hashes: true, makesChannels: true},
	{Name: "ring of messages, 4 chunks through 2 places", Ranks: 2, Slots: 2, Calls: same(chunks(RingGather, 4))},
	{Name: "ring of messages, 3 ranks, 1 place", Ranks: 3, Slots: 1, Calls: same(ring1, ring1)},
	{Name: "chain of messages, 3 ranks, 3 chunks through 2 places", Ranks: 3, Slots: 2, Calls: same(chunks(Chain, 3)), makesChannels: true},
	{Name: "chains from two roots, 3 ranks, 1 place", Ranks: 3, Slots: 1, Calls: same(chain(0, 2), chain(1, 2))},
	{Name: "messages between slots", Ranks: 2, Slots: 1, Calls: same(oneShot, ring1, twoShot, ring1), hashes: true, makesChannels: true},
	{Name: "messages between slots, 3 ranks", Ranks: 3, Slots: 1, Calls: same(oneShot, ring1, broadcast(1)), Big: true},
	{Name: "a message and nothing after it", Ranks: 2, Slots: 1, parts: []func(*builder){
		func(b *builder) { b.send(1) },
		func(b *builder) { b.receive(0) }}},
	{Name: "room and nothing after it", Ranks: 2, Slots: 1, parts: []func(*builder){
		func(b *builder) { b.send(1); b.send(1) },
		func(b *builder) { b.receive(0) }}},
	{Name: "a channel and nothing after it", Ranks: 2, Slots: 1, mayFail: true, parts: []func(*builder){
		func(b *builder) { b.makeChannel(1) },
		func(b *builder) { b.awaitChannel(0) }}},
	{Name: "failure between messages", Ranks: 2, Slots: 1, Calls: [][]Call{{ring1, ring1}, {ring1, declare}},
		Want: []outcomes{failed, failed}, mayFail: true, makesChannels: true},
	{Name: "failure between messages, 3 ranks", Ranks: 3, Slots: 1, Calls: [][]Call{{chain(0, 2)}, {chain(0, 2)}, {declare}},
		Want: []outcomes{either, failed, failed}, mayFail: true},
	{Name: "a ring against a chain", Ranks: 2, Slots: 1, Calls: [][]Call{{ring1, ring1}, {chain(1, 1), ring1}},
		Want: []outcomes{failed, failed}, hashes: true, mayFail: true, records: true},
	{Name: "messages against slots", Ranks: 2, Slots: 1, Calls: [][]Call{{ring1}, {oneShot}},
		Want: []outcomes{failed, failed}, hashes: true, mayFail: true, records: true, makesChannels: true},
	{Name: "goodbye after a message", Ranks: 2, Slots: 1, Calls: [][]Call{{chain(0, 1), goodbye}, {chain(0, 1), goodbye}},
		mayFail: true, goodbyes: true, makesChannels: true},
	{Name: "goodbye of a rank whose message is needed", Ranks: 2, Slots: 1, Calls: [][]Call{{ring1, goodbye}, {ring1, ring1}},
		Want: []outcomes{finished, failed}, mayFail: true, goodbyes: true},

	{Name: "failure while the other sleeps", Ranks: 2, Slots: 1, Calls: [][]Call{{oneShot}, {declare}}, Want: []outcomes{failed, failed}, mayFail: true},
	{Name: "failure while others sleep, 3 ranks", Ranks: 3, Slots: 1, Calls: [][]Call{{oneShot, oneShot}, {oneShot, oneShot}, {oneShot, declare}},
		Want: []outcomes{failed, failed, failed}, mayFail: true},
	{Name: "two failures at once, 3 ranks", Ranks: 3, Slots: 1, Calls: [][]Call{{oneShot}, {declare}, {declare}},
		Want: []outcomes{failed, failed, failed}, mayFail: true},
	{Name: "two failures in one process", Ranks: 2, Slots: 1, Calls: [][]Call{{oneShot}, {declare}}, Others: []Other{{Rank: 1, Calls: []Call{declare}}, {Rank: 0, Calls: []Call{declare}}},
		Want: []outcomes{failed, failed, failed, failed}, mayFail: true},
	{Name: "failure beside a collective that can finish", Ranks: 2, Slots: 1, Calls: same(oneShot, oneShot), Others: []Other{{Rank: 1, Calls: []Call{declare}}},
		Want: []outcomes{either, either, failed}, mayFail: true},

	// Rank 1 has an engine, thread 1, and other threads, which issue and take the group down.
	{Name: "down, the first of the queue is published", Ranks: 2, Slots: 2, mayFail: true, Others: []Other{{Rank: 1}},
		Want:  []outcomes{failed, finished, firstOnly},
		parts: []func(*builder){publishAndFail(0), engineOfCollectives(1), issueAndWait(2)}},
	{Name: "down, the second of the queue is published", Ranks: 2, Slots: 2, mayFail: true, Others: []Other{{Rank: 1}},
		Want:  []outcomes{failed, finished, failed},
		parts: []func(*builder){publishAndFail(1), engineOfCollectives(1), issueAndWait(2)}},
	{Name: "down by another thread", Ranks: 2, Slots: 2, mayFail: true, Others: []Other{{Rank: 1}, {Rank: 1}},
		Want: []outcomes{failed, finished, firstOnly | failed, finished}, Big: true,
		parts: []func(*builder){publishAndFail(0), engineOfCollectives(1), issueAndWait(2),
			takeDownWhen(func(p *plan) uint8 { return p.m.failure })}},
	{Name: "down without a failure", Ranks: 2, Slots: 2, Others: []Other{{Rank: 1}, {Rank: 1}},
		Want: []outcomes{finished, finished, firstOnly | failed, finished},
		parts: []func(*builder){func(b *builder) { b.publishTo(0) }, engineOfCollectives(1), issueAndWait(2),
			takeDownWhen((*plan).group)}},
	{Name: "down without a failure, nobody waits for the second", Ranks: 2, Slots: 2, Others: []Other{{Rank: 1}, {Rank: 1}},
		Want: []outcomes{finished, finished, firstOnly | failed, finished},
		parts: []func(*builder){func(b *builder) { b.publishTo(0) }, engineOfCollectives(1), issueAndWait(1),
			takeDownWhen((*plan).group)}},
	{Name: "down on the fast path, another thread behind", Ranks: 2, Slots: 2, mayFail: true, Others: []Other{{Rank: 1}, {Rank: 1}},
		Want:  []outcomes{failed, finished, failed, failed},
		parts: []func(*builder){publishAndFail(1), engineOfCollectives(2), issueFast, issueBehind}},

	{Name: "all_reduce against broadcast", Ranks: 2, Slots: 1, Calls: [][]Call{{oneShot, oneShot}, {broadcast(1), oneShot}},
		Want: []outcomes{failed, failed}, hashes: true, mayFail: true, records: true},
	{Name: "all_reduce against broadcast, 3 ranks", Ranks: 3, Slots: 1, Calls: [][]Call{{oneShot}, {broadcast(1)}, {oneShot}},
		Want: []outcomes{failed, either, failed}, hashes: true, mayFail: true, records: true},
	{Name: "broadcasts from each other", Ranks: 2, Slots: 1, Calls: [][]Call{{broadcast(1)}, {broadcast(0)}},
		Want: []outcomes{failed, failed}, hashes: true, mayFail: true, records: true},
	{Name: "broadcasts from each other, 3 ranks", Ranks: 3, Slots: 1, Calls: [][]Call{{broadcast(1)}, {broadcast(2)}, {broadcast(0)}},
		Want: []outcomes{failed, failed, failed}, hashes: true, mayFail: true, records: true},

	{Name: "goodbye when all is done", Ranks: 2, Slots: 1, Calls: same(oneShot, goodbye),
		mayFail: true, goodbyes: true},
	{Name: "goodbye after two calls", Ranks: 2, Slots: 1, Calls: same(oneShot, oneShot, goodbye),
		mayFail: true, goodbyes: true},
	{Name: "goodbye, 3 ranks", Ranks: 3, Slots: 1, Calls: same(oneShot, goodbye),
		mayFail: true, goodbyes: true},
	{Name: "goodbye of a rank that is needed", Ranks: 2, Slots: 1, Calls: [][]Call{{oneShot, goodbye}, {oneShot, oneShot}},
		Want: []outcomes{finished, failed}, mayFail: true, goodbyes: true},
	{Name: "goodbye of a rank that is needed, 3 ranks", Ranks: 3, Slots: 1, Calls: [][]Call{{barrier, goodbye}, {barrier, barrier}, {barrier, barrier}},
		Want: []outcomes{finished, failed, failed}, mayFail: true, goodbyes: true},

	{Name: "a recv that nobody waits for", Ranks: 2, Slots: 1, Others: []Other{{Rank: 1}},
		parts: []func(*builder){sendFrame, engineOfP2P, postP2P}},
	{Name: "a recv that is waited for a while", Ranks: 2, Slots: 1, Others: []Other{{Rank: 1}},
		parts: []func(*builder){sendFrame, engineOfP2P, postAndWaitAWhile}},
	{Name: "a recv posted while another thread stops waiting", Ranks: 2, Slots: 1, Others: []Other{{Rank: 1}, {Rank: 1}},
		parts: []func(*builder){sendFrame, engineOfP2P, waitAWhile, postP2P}},

	{Name: "records of calls come round", Ranks: 2, Slots: 1, parts: []func(*builder){writeRecords, readRecord}},
}

var (
	oneShot = chunks(OneShot, 1)
	twoShot = chunks(TwoShot, 1)
	barrier = chunks(Barrier, 1)
	ring1   = chunks(RingGather, 1)
	declare = Call{Kind: Declare}
	goodbye = Call{Kind: Goodbye}
)

const either = finished | failed

func same(calls ...Call) [][]Call { return [][]Call{calls} }

func do(what func(*builder)) Call { return Call{Kind: Step, Do: what} }

func chunks(k CallKind, n int) Call { return Call{Kind: k, Chunks: n} }

func chain(root, n int) Call { return Call{Kind: Chain, Chunks: n, Root: root} }

func broadcast(root int) Call { return Call{Kind: Broadcast, Chunks: 1, Root: root} }

// ---- records of calls: record_call and read_record ----

func (p *plan) recordWord(field string) uint8 { return p.word("call record, %s", field) }

// writeRecords writes three calls into one place of the records, as if two others lay 64 and 128 calls back.
func writeRecords(b *builder) {
	seq, hash, what := b.sc.recordWord("seq"), b.sc.recordWord("hash"), b.sc.recordWord("what")
	o := release
	if b.off == RecordSeqRelaxed {
		o = relaxed
	}
	for n := uint8(1); n <= 3; n++ {
		if b.off != RecordNotInvalidated {
			b.store(seq, 0, relaxed)
		}
		if b.off != RecordNoWriterFence {
			b.emit(instr{op: fence, order: release}, "fence, release")
		}
		b.store(hash, n, relaxed)
		b.store(what, n, relaxed)
		b.store(seq, n, o)
	}
}

// readRecord looks for call 1, then for call 2.
func readRecord(b *builder) {
	seq, hash, what := b.sc.recordWord("seq"), b.sc.recordWord("hash"), b.sc.recordWord("what")
	o := acquire
	if b.off == RecordSeqNotAcquired {
		o = relaxed
	}
	for n := uint8(1); n <= 2; n++ {
		unknown := b.label()
		b.load(seq, o, equals, n, unknown)
		b.load(hash, relaxed, note, n, 0)
		b.load(what, relaxed, note, n, 0)
		if b.off != RecordNoReaderFence {
			b.emit(instr{op: fence, order: acquire}, "fence, acquire")
		}
		if b.off != RecordNoSecondLook {
			b.load(seq, relaxed, equals, n, unknown)
		}
		b.emit(instr{op: checkNoted}, "take the record for call %d's", n)
		b.place(unknown)
		b.emit(instr{op: forget}, "forget it")
	}
}
