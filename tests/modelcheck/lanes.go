package modelcheck

// This file has section 10 of the protocol: the lanes of a group, of which each has a thread of its own in every rank here,
// and how a rank opens its device lane while the group goes down.

const (
	hostLane = iota
	deviceLane
	lanes
)

var laneNames = [lanes]string{"", "device lane: "}

// laneWord is a word of the shared block or the slots of a lane.
func (p *plan) laneWord(format string, args ...any) uint8 {
	return p.word(laneNames[p.lane]+format, args...)
}

// name says what a thread is, where its rank does not say it.
func (b *builder) name() string {
	switch {
	case b.stream == copyIn:
		return "copy-in stream"
	case b.stream == copyOut:
		return "copy-out stream"
	case b.lane == deviceLane:
		return "device lane"
	}
	return ""
}

// ---- two collectives in opposite order ----

func (p *plan) issuedIn(lane, rank int) uint8 { return p.word("issued[rank %d, lane %d]", rank, lane) }
func (p *plan) laneDone(lane, rank int) uint8 { return p.word("done[rank %d, lane %d]", rank, lane) }

// issueBoth issues a collective in the lane of this thread and then one in the other lane.
func issueBoth(b *builder) {
	b.store(b.sc.issuedIn(b.lane, b.rank), 1, release)
	b.store(b.sc.issuedIn(1-b.lane, b.rank), 1, release)
}

// whenIssuedInLane begins the collective that the thread of the other lane has issued. If both lanes shared one queue, it
// would be the second one there.
func whenIssuedInLane(b *builder) {
	b.load(b.sc.issuedIn(b.lane, b.rank), acquire, risen, 0, 0)
	if b.off == OneQueue {
		b.load(b.sc.laneDone(1-b.lane, b.rank), acquire, risen, 0, 0)
	}
}

func laneIsDone(b *builder) { b.store(b.sc.laneDone(b.lane, b.rank), 1, release) }

// whenDeviceLaneIsDone is before the goodbye of a rank.
func whenDeviceLaneIsDone(b *builder) {
	if b.off != LeftBeforeDeviceLane {
		b.load(b.sc.laneDone(deviceLane, b.rank), acquire, risen, 0, 0)
	}
}

// ---- opening the device lane ----

func (p *plan) lanePointer() uint8 { return p.word("pointer to the device lane") }
func (p *plan) laneState() uint8   { return p.word("words of the device lane") }
func (p *plan) laneGroup(lane int) uint8 {
	return p.word("group word[%s lane]", [...]string{"host", "device"}[lane])
}

// The group word of a lane.
const (
	isLaneDown  = 1
	issuedThere = 2
)

// isUp goes on if the lane is not down, else to `down`.
func (b *builder) isUp(lane int, o order, down uint8) {
	b.emit(instr{op: load, word: b.sc.laneGroup(lane), order: o, test: masked, peer: isLaneDown, to: down},
		"look whether the %s lane is not down%s", [...]string{"host", "device"}[lane], o)
}

// setDown sets DOWN in the group word of a lane and wakes who drives it.
func (b *builder) setDown(lane int) {
	over := b.label()
	b.change(b.sc.laneGroup(lane), isLaneDown, 0, isLaneDown, over, "set DOWN in lane "+[...]string{"host", "device"}[lane])
	b.place(over)
}

// openLane is a rank's first operation on a device: it opens the lane, queues the operation and waits for a peer that never
// publishes.
func openLane(b *builder) {
	s := b.sc
	look := func() {
		down, over := b.label(), b.label()
		b.isUp(hostLane, seqCst, down)
		b.jump(over)
		b.place(down)
		b.setDown(deviceLane)
		b.place(over)
	}
	b.store(s.laneState(), 1, relaxed)
	o := seqCst
	switch b.off {
	case LanePointerNoFence:
		o = release
	case LanePointerRelaxed:
		o = relaxed
	}
	if b.off == LooksBeforePointer {
		look()
	}
	b.store(s.lanePointer(), 1, o)
	if b.off != LooksBeforePointer {
		look()
	}
	top, refused := b.label(), b.label()
	b.change(s.laneGroup(deviceLane), isLaneDown, 0, issuedThere, refused, "number and queue an operation")
	b.place(top)
	b.bell()
	b.isUp(deviceLane, relaxed, refused)
	b.emit(instr{op: futexWait}, "sleep in the device lane")
	b.armed = false
	b.jump(top)
	b.place(refused)
	b.emit(instr{op: end, value: uint8(failed)}, "end: the operation has failed")
}

// closeLanes takes the group down in both lanes.
func closeLanes(b *builder) {
	none := b.label()
	if b.off == PointerBeforeDown {
		b.load(b.sc.lanePointer(), seqCst, equals, 1, none)
		b.setDown(hostLane)
		b.closeDeviceLane()
		b.emit(instr{op: end, value: uint8(finished)}, "end")
		b.place(none)
		b.setDown(hostLane)
		return
	}
	b.setDown(hostLane)
	b.load(b.sc.lanePointer(), seqCst, equals, 1, none)
	b.closeDeviceLane()
	b.place(none)
}

func (b *builder) closeDeviceLane() {
	b.load(b.sc.laneState(), relaxed, expect, 1, 0)
	b.setDown(deviceLane)
	if b.off != DownWakesHostLane {
		b.emit(instr{op: wakeBell, value: 1}, "wake the bell of the device lane")
	}
}
