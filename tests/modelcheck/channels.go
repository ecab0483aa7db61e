package modelcheck

// This file has the collectives made of messages: sendrecv.c. A channel has as many places as the scenario has slots, and
// each pair of ranks has one channel.

func (p *plan) place(name string, from, to, number int) uint8 {
	return p.word("%s[channel %d to %d, place %d]", name, from, to, number%p.Slots)
}
func (p *plan) messageFilled(from, to, number int) uint8 {
	return p.place("filled", from, to, number)
}
func (p *plan) messageHash(from, to, number int) uint8 { return p.place("hash", from, to, number) }
func (p *plan) message(from, to, number int) uint8 {
	w := p.place("message", from, to, number)
	p.m.isMessage[w] = true
	return w
}
func (p *plan) messagesTaken(from, to int) uint8 {
	return p.word("taken[rank %d, from %d]", to, from)
}
func (p *plan) channel(from, to int) uint8 { return p.word("channel[rank %d, to %d]", from, to) }

// byMessages writes the steps that scr_sendrecv_advance makes of a plan, for each chunk in turn.
func (b *builder) byMessages(c Call) {
	n := b.m.ranks
	next, before := (b.rank+1)%n, (b.rank+n-1)%n
	for range c.Chunks {
		switch c.Kind {
		case RingGather:
			for range n - 1 {
				b.send(next)
				b.receive(before)
			}
		case Chain:
			if b.rank != c.Root {
				b.receive(before)
			}
			if next != c.Root {
				b.send(next)
			}
		}
	}
}

// makeChannel is scr_group_set_channel.
func (b *builder) makeChannel(to int) {
	b.publish(b.sc.channel(b.rank, to), 1, seqCst, b.off != ChannelWakesNobody)
}

func (b *builder) awaitChannel(from int) { b.await(b.sc.channel(from, b.rank), 1, from, acquire) }

// send is await_room, then put.
func (b *builder) send(to int) {
	s := b.sc
	if b.sent[to] == 0 && s.makesChannels {
		b.makeChannel(to)
	}
	b.sent[to]++
	number := b.sent[to]
	if need := number - s.Slots; need > 0 && b.off != NoWaitForRoom {
		taken, over := s.messagesTaken(b.rank, to), b.label()
		b.emit(instr{op: skipIfSeen, peer: uint8(to), value: uint8(need), to: over}, "rank %d is known to have taken %d", to, need)
		b.await(taken, uint8(need), to, acquire)
		b.load(taken, acquire, lift, 0, 0)
		b.code[len(b.code)-1].peer = uint8(to)
		b.place(over)
	}
	b.store(s.message(b.rank, to, number), data(b.call, false, number), relaxed)
	if s.hashes {
		b.store(s.messageHash(b.rank, to, number), b.call, relaxed)
	}
	b.store(s.messageFilled(b.rank, to, number), uint8(number), b.strength(MessageRelaxed, MessageNoFence))
	b.wake(to, b.off != MessageWakesNobody)
}

// receive is await_message, then take.
func (b *builder) receive(from int) {
	s := b.sc
	if b.got[from] == 0 && s.makesChannels {
		b.awaitChannel(from)
	}
	b.got[from]++
	number := b.got[from]
	o := acquire
	if b.off == MessageNotAcquired {
		o = relaxed
	}
	if b.off != NoWaitForMessage {
		b.await(s.messageFilled(from, b.rank, number), uint8(number), from, o)
	}
	if s.hashes && b.off != MessageHashNotCompared {
		b.load(s.messageHash(from, b.rank, number), relaxed, sameCall, b.call, b.accuse)
	}
	if b.off == TakenTooEarly {
		b.takeMessage(from, number)
	}
	t := expect
	if !s.hashes && s.mayFail && b.off != MessageHashNotCompared {
		t = sameData
	}
	b.load(s.message(from, b.rank, number), relaxed, t, data(b.call, false, number), b.accuse)
	if b.off != TakenTooEarly {
		b.takeMessage(from, number)
	}
}

func (b *builder) takeMessage(from, number int) {
	b.store(b.sc.messagesTaken(from, b.rank), uint8(number), b.strength(TakenRelaxed, TakenNoFence))
	b.wake(from, b.off != TakenWakesNobody)
}

// wake wakes the one rank that can wait for a message or for room, if its word says that it waits.
func (b *builder) wake(peer int, really bool) {
	if !really {
		return
	}
	o := seqCst
	if b.off == ChannelWakeNotSeqCst {
		o = acquire
	}
	over := b.label()
	b.load(b.sc.waitsFor(peer), o, equals, uint8(1+b.rank), over)
	b.wakeRank(peer)
	b.place(over)
}
