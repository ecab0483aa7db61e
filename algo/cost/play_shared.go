package cost

// event is the arrival of a message at a shared link, which is number stage of the message's route.
type event struct {
	at      Femto
	line    int32
	message uint32 // number of the message in its line
	stage   uint32
}

// before orders events by time; other fields decide between events at the same time.
func (e event) before(o event) bool {
	switch {
	case e.at != o.at:
		return e.at < o.at
	case e.line != o.line:
		return e.line < o.line
	case e.message != o.message:
		return e.message < o.message
	}
	return e.stage < o.stage
}

// pass moves a message over a shared link, as soon as that is free, and on to the next one.
func (p *play) pass(e event) {
	l := &p.lines[e.line]
	link, s := &p.links[l.class], p.place(e.line, e.message)
	p.route = p.costs.Route(int(l.from), int(l.to), p.route[:0])
	via := p.route[e.stage]
	begins := max(e.at, p.free[via])
	p.free[via] = p.plus(begins, s.bytes, p.shared[via])
	ahead := Femto(0) // latency that comes before the next link
	if e.stage+1 == uint32(len(p.route)+1)/2 {
		begins += link.latency
	} else if e.stage+1 < uint32(len(p.route)+1)/2 {
		ahead = link.latency
	}
	s.at = max(s.at, p.plus(begins+ahead, s.bytes, p.shared[via])) // arrival of the last byte, over the slowest link so far
	if e.stage++; e.stage < uint32(len(p.route)) {
		e.at = begins
		p.waiting.push(e)
		return
	}
	in := &p.players[l.to].in[l.class]
	*in = max(s.at, p.plus(max(begins, *in), s.bytes, link.byte))
	s.at = *in
	l.there++
	p.wake(l.to, e.line)
}

// events is a heap with the first event at its head.
type events []event

func (h *events) push(e event) {
	list := append(*h, e)
	i := len(list) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !e.before(list[up]) {
			break
		}
		list[i] = list[up]
		i = up
	}
	list[i] = e
	*h = list
}

func (h *events) pop() event {
	list := *h
	top, e := list[0], list[len(list)-1]
	list = list[:len(list)-1]
	*h = list
	if len(list) == 0 {
		return top
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= len(list) {
			break
		}
		if down+1 < len(list) && list[down+1].before(list[down]) {
			down++
		}
		if !list[down].before(e) {
			break
		}
		list[i] = list[down]
		i = down
	}
	list[i] = e
	return top
}
