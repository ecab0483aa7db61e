package shadow

import (
	"errors"
	"fmt"
	"runtime/debug"
	"unsafe"

	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// What goes out for a pair: the pump's goroutine sends all of it, and a thread that has published something sends that itself where it need not
// wait.

// errRemoved is the error of a frame during which the pair was removed.
var errRemoved = errors.New("the pair was removed")

// errFull is the error of a frame that a thread cannot send without waiting.
var errFull = errors.New("the connection is full")

// Push implements runner.Pair: a thread that has published something for the remote rank sends it, as far as it need not wait. The rest is for a
// thread that polls, or for the pump, which looks once more.
func (p *Pair) Push() {
	if !p.made.Load() || p.tryPush() {
		return
	}
	p.unsent.Store(true)
	if p.polling.Load() == 0 { // read behind the flag, which Attend reads behind the count
		p.Wake()
	}
}

// Wake lets the pump look at all that was stored: the goodbye, and that this rank has detached, are for the pump alone. It may come when the pair
// has ended, and the pump too.
func (p *Pair) Wake() {
	if p.linked.Load() {
		p.bell.ring()
	} else {
		p.side.set.tending.ring()
	}
}

func (p *Pair) tryPush() bool {
	return p.try(func() error {
		_, err := p.pushData()
		return err
	})
}

// try lets a thread send, which waits for nothing. It reports whether all was sent.
func (p *Pair) try(send func() error) bool {
	if !p.turn.TryLock() {
		return false
	}
	defer p.turn.Unlock()
	if !p.pushing.TryLock() {
		return false
	}
	defer p.pushing.Unlock()
	p.mu.Lock()
	ends := p.over || p.gaveUp || p.removed
	p.mu.Unlock()
	if ends || p.gone || p.leaving || p.closing {
		return false
	}
	p.trying = true
	defer func() {
		p.trying = false
		if r := recover(); r != nil {
			p.Link.Break(fmt.Errorf("internal error: panic: %v\n%s", r, debug.Stack()))
		}
	}()
	return send() == nil
}

// Poll implements runner.Pair.
func (p *Pair) Poll() bool {
	if !p.linked.Load() { // nothing comes before; who waits in a recv has not opened the pair, and has published nothing for it
		if p.awaits.CompareAndSwap(false, true) {
			p.side.open(p, false)
		}
		return false
	}
	if p.unsent.Load() {
		p.unsent.Store(false)
		p.Push()
	}
	return p.Link.PollData()
}

// Attend implements runner.Pair.
func (p *Pair) Attend(on bool) {
	p.calm(on)
	if on {
		p.polling.Add(1)
		return
	}
	if p.polling.Add(-1) == 0 && p.unsent.Load() {
		p.unsent.Store(false)
		p.Push()
	}
}

// calm tells the link of a thread that polls. One may have begun before there was a link, and ends behind that.
func (p *Pair) calm(on bool) {
	if !p.linked.Load() {
		return
	}
	if on {
		p.calmed.Add(1)
		p.Link.Calm(true)
		return
	}
	for n := p.calmed.Load(); n > 0; n = p.calmed.Load() {
		if p.calmed.CompareAndSwap(n, n-1) {
			p.Link.Calm(false)
			return
		}
	}
}

// send sends a frame, out of the memory of the group. Who has not sent it puts back what it has noted of it.
// Requires: the turn.
func (p *Pair) send(on int, h *tcp.Header, payload ...[]byte) error {
	if !p.trying {
		return p.Link.Send(on, h, payload...)
	}
	if taken, err := p.Link.Push(on, h, payload...); taken || err != nil {
		return err
	}
	return errFull
}

// push sends what this rank has published. It reports whether there was anything.
func (p *Pair) push() (moved bool, err error) {
	p.turn.Lock()
	defer p.turn.Unlock()
	p.pushing.Lock()
	defer p.pushing.Unlock()
	moved, err = p.pushAll()
	if errors.Is(err, errRemoved) {
		return true, nil
	}
	return moved, err
}

// bare sends a frame that has nothing of the memory of the group, so a pair is removed without waiting for it. Then the error is errRemoved.
// Requires: pushing, which others may have had meanwhile.
func (p *Pair) bare(on int, h *tcp.Header, payload ...[]byte) error {
	if p.trying {
		return p.send(on, h, payload...)
	}
	before := p.gone
	if err := p.sendUnlocked(on, h, payload...); err != nil {
		return err
	}
	if p.gone != before {
		return errRemoved
	}
	return nil
}

func (p *Pair) sendUnlocked(on int, h *tcp.Header, payload ...[]byte) error {
	p.pushing.Unlock()
	defer p.pushing.Lock()
	return p.Link.Send(on, h, payload...)
}

func (p *Pair) pushAll() (moved bool, err error) {
	p.mu.Lock()
	over, abandoned, asks := p.over, p.gaveUp, p.asked || p.asking == askSoon
	p.mu.Unlock()
	if !p.said && !p.gone && !over {
		h := p.header(tcp.Open)
		p.said = true
		return true, p.bare(0, &h)
	}
	switch {
	case p.gone && abandoned && !p.closing: // it waits for CLOSE of all others before it gives its memory back
		return true, p.abandon()
	case over:
		return false, nil
	case abandoned:
		return true, p.abandon()
	case p.closing:
		return false, nil
	}
	// Detached comes behind left, and left behind everything else: so they are read first.
	host := &p.lanes[runner.HostLane]
	detached := p.side.detached.Load()
	left := host.left.Load()
	if !p.leaving { // nothing follows a goodbye
		if moved, err = p.pushData(); err != nil {
			return moved, err
		}
	}
	if asks && !p.leaving {
		m, err := p.pushState()
		if moved = moved || m; err != nil {
			return moved, err
		}
	}
	if left != 0 && left != gaveUp && !p.leaving && !p.told && p.lanes[runner.DeviceLane].own.LastCall() > 0 {
		p.told, moved = true, true
		if err := p.pushOwnState(); err != nil {
			return true, err
		}
	}
	if left != 0 && !p.leaving {
		h := p.header(tcp.Goodbye)
		h.Number = left
		p.leaving, moved = true, true
		p.mu.Lock()
		p.given = left == gaveUp
		p.mu.Unlock()
		if err := p.everywhere(h); err != nil {
			return true, err
		}
		p.nothingLeft()
	}
	if detached || left == gaveUp {
		p.closing = true
		err := p.everywhere(p.header(tcp.Close))
		p.mu.Lock()
		defer p.mu.Unlock()
		p.closed = true
		p.end()
		return true, err
	}
	return moved, nil
}

// pushData sends what lies in the channels and fifos.
func (p *Pair) pushData() (moved bool, err error) {
	for n := range p.lanes {
		for k := range p.lanes[n].channels {
			m, err := p.pushChannel(n, k)
			if moved = moved || m; err != nil {
				return moved, err
			}
		}
		m, err := p.pushFifo(n)
		if moved = moved || m; err != nil {
			return moved, err
		}
	}
	return moved, nil
}

// abandon ends the pair because the remote rank has given up. Who finds that goodbye in the shadow may give memory back at once, so it is
// stored last.
func (p *Pair) abandon() (err error) {
	if !p.closing {
		p.closing = true
		err = p.everywhere(p.header(tcp.Close))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if !p.over {
		p.storeGaveUp()
	}
	return err
}

// storeGaveUp ends with the memory of the pair. It does not set detached: the group gives memory back when it finds either word, so only one
// of them can be the last access.
// Requires: the lock; the remote rank has given up, and the pair is not over.
func (p *Pair) storeGaveUp() {
	p.over = true
	p.nothingLeft()
	for n := range p.shadow.Shared {
		p.ownWords(n).WakeAll(p.engine)
	}
	if p.GaveUp != nil {
		copy(p.shadowWords(int(runner.HostLane)).FailureRecord(), p.GaveUp())
	}
	p.left.Store(gaveUp) // who was woken too early for it looks again within 50 ms
}

// end tells the owner of the memory that nothing touches it any more, once both ranks have said so.
// Requires: the lock.
func (p *Pair) end() {
	if !p.over && p.closed && p.all(p.closes) {
		p.over = true
		p.ownWords(int(runner.HostLane)).Detached(p.To).Store(1)
	}
}

// isOver reports whether no frame of the pair comes or goes any more, and nothing touches its memory.
func (p *Pair) isOver() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over && p.closed && p.all(p.closes)
}

// everywhere sends a frame on every connection, behind what was sent there. It sends on all of them, also where the pair is removed meanwhile.
// Requires: pushing, as for bare.
func (p *Pair) everywhere(h tcp.Header) (err error) {
	p.controlling.Lock()
	p.quiet = true
	p.controlling.Unlock()
	removed := false
	for on := 0; err == nil && on <= p.Link.Data(); on++ {
		if err = p.bare(on, &h); errors.Is(err, errRemoved) {
			removed, err = true, nil
		}
	}
	if err == nil && removed {
		err = errRemoved
	}
	return err
}

// find returns the place of n bytes of the group of this rank, of which it has published the offset. A stray store may have changed that: then
// the link ends, since nothing that this rank sends can be trusted.
func (p *Pair) find(what string, offset, n uint64) (unsafe.Pointer, error) {
	if all := uint64(p.Own.Bytes); n > all || offset > all-n || offset%runner.Line != 0 {
		err := fmt.Errorf("shared memory corrupted: the %s of rank %d to rank %d lies at %d of %d bytes; %s", what, p.Rank, p.To, offset, all, runner.StrayPointers)
		p.Link.Break(err)
		return nil, err
	}
	return unsafe.Add(p.Own.Arena, offset), nil
}

func (p *Pair) pushChannel(number, k int) (moved bool, err error) {
	l := &p.lanes[number]
	c := &l.channels[k]
	if offset := c.at.Load(); c.out == nil && offset != 0 {
		if c.out, err = p.find("channel", offset, uint64(p.Geometry.ChannelBytes())); err != nil {
			return false, err
		}
	}
	if c.out != nil {
		for {
			next := c.sent.Load() + 1
			place := p.Geometry.PlaceOf(c.out, next)
			if place.Filled.Load() != next {
				break
			}
			if err := p.pushMessage(number, k, next, *place.Hash, *place.Block, place.Data[:*place.Bytes]); err != nil {
				return moved, err
			}
			moved = true
		}
	}
	if taken := c.taken.Load(); taken-c.told >= runner.ChannelPlaces/2 {
		h := p.header(tcp.Room)
		h.Lane, h.Channel, h.Taken = uint8(number), uint8(k), taken
		before := c.told
		c.told, moved = taken, true
		if err := p.bare(p.connection(number, k), &h); err != nil {
			c.told = before
			return moved, err
		}
	}
	return moved, nil
}

// pushMessage sends the next message of a channel.
func (p *Pair) pushMessage(number, k int, next, hash, block uint64, payload []byte) error {
	c := &p.lanes[number].channels[k]
	h := p.header(tcp.Message)
	h.Lane, h.Channel, h.Number, h.Hash, h.Block = uint8(number), uint8(k), next, hash, block
	h.Taken = c.taken.Load()
	c.sent.Store(next) // the remote rank may have taken it before Send returns
	if err := p.send(p.connection(number, k), &h, payload); err != nil {
		c.sent.Store(next - 1)
		return err
	}
	c.told = h.Taken
	return nil
}
