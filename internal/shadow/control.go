package shadow

import (
	"errors"

	"sagecomm/internal/runner"
	"sagecomm/internal/transport/tcp"
)

// What crosses on the control connection: entries of control exchanges (docs/protocol.md, section 13), and the state of a rank, which a
// diagnosis asks for.

// asking is what this rank wants of the state of the remote one.
type asking int

const (
	askNothing asking = iota
	askSoon           // ASK is to be sent
	askSent           // its answer has not come
)

// Ask asks the remote rank for its state: records of calls, progress, and for whom it waits. It lies in the shadow when Config.Stated is
// called. A question that is not answered yet stands for this one as well, so there is at most one on the way. A rank that has left answers
// nothing. For whom the rank waited before the question is forgotten: it may have gone on, and be stopped since.
//
// noted is told whether a question begins or one stands. It is called with the lock with which Config.Stated is called, so no state comes
// between the two; it calls no method of the pair or the set and waits for nothing. It is not called where nothing is asked any more. It may be
// nil.
func (s *Set) Ask(p *Pair, noted func(begins bool)) {
	if p.ask(noted) {
		p.Wake()
	}
}

func (p *Pair) ask(noted func(begins bool)) (begins bool) {
	if made, wanted := p.side.open(p, false); !made && !wanted {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	begins = p.asking == askNothing
	if begins {
		p.asking = askSoon
		for n := range p.shadow.Shared {
			p.shadowWords(n).ForgetAwaited()
		}
	}
	if noted != nil {
		noted(begins)
	}
	return begins
}

// pushState sends what is to be asked, and answers. It reports whether there was anything.
func (p *Pair) pushState() (moved bool, err error) {
	p.mu.Lock()
	ask, asked := p.asking == askSoon, p.asked
	if ask {
		p.asking = askSent
	}
	p.asked = false
	p.mu.Unlock()
	if ask {
		h := p.header(tcp.Ask)
		if err := p.bare(0, &h); err != nil {
			return true, err
		}
	}
	if asked {
		if err := p.pushOwnState(); err != nil {
			return true, err
		}
	}
	return ask || asked, nil
}

// pushOwnState sends the state of this rank.
func (p *Pair) pushOwnState() error {
	h := p.header(tcp.State)
	return p.bare(0, &h, runner.CopyState(p.words(func(l *lane) runner.Words { return l.own }), p.To))
}

func (p *Pair) words(of func(*lane) runner.Words) (list [runner.Lanes]runner.Words) {
	for n := range p.lanes {
		list[n] = of(&p.lanes[n])
	}
	return list
}

// ErrEnded is the error of an entry for a pair for which nothing is sent any more, because this rank has left or the pair was removed.
var ErrEnded = errors.New("nothing is sent for this pair any more")

// SendEntry sends EXCHANGE: an entry of a control exchange, or what was taken. It does not wait, and reports
// whether the frame was taken. Lane, group and ranks of the header are set here.
func (p *Pair) SendEntry(h tcp.Header, payload ...[]byte) (taken bool, err error) {
	if made, wanted := p.side.open(p, true); wanted {
		return false, nil
	} else if !made {
		return false, ErrEnded
	}
	if !p.controlling.TryLock() {
		return false, nil
	}
	defer p.controlling.Unlock()
	if p.quiet {
		return false, ErrEnded
	}
	pair := p.header(tcp.Exchange)
	h.Kind, h.Lane, h.Group, h.From, h.To = pair.Kind, 0, pair.Group, pair.From, pair.To
	return p.Link.TrySend(0, &h, payload...)
}

// acceptControl compares the header of a frame of the control connection with what may come, and returns where its payload goes.
// Requires: the lock.
func (p *Pair) acceptControl(h *tcp.Header) ([][]byte, error) {
	switch {
	case h.Kind == tcp.State && (h.Bytes != runner.StateBytes || p.asking != askSent && p.unasked):
		return nil, p.wrong(h, "%d bytes of %d, asked for: %t", h.Bytes, runner.StateBytes, p.asking == askSent)
	case h.Kind == tcp.Exchange && p.Control == nil:
		return nil, p.wrong(h, "it is of no use here")
	}
	if h.Bytes == 0 {
		return nil, nil
	}
	p.payload = make([]byte, h.Bytes)
	return [][]byte{p.payload}, nil
}

// storeControl stores what such a frame says. rings: the pump has to answer.
// Requires: the lock.
func (p *Pair) storeControl(h *tcp.Header) (rings bool, err error) {
	payload := p.payload
	p.payload = nil
	switch h.Kind {
	case tcp.Ask:
		p.asked = true
		return true, nil
	case tcp.State:
		if p.asking == askSent {
			p.asking = askNothing
		} else { // the one before a goodbye, which answers no question
			p.unasked = true
		}
		return false, p.putState(h, payload)
	default:
		if err := p.Control(h, payload); err != nil {
			return false, p.wrong(h, "%v", err)
		}
	}
	return false, nil
}

// putState stores a state in the shadow, which need not be made: the words lie where they will then.
// Requires: the lock.
func (p *Pair) putState(h *tcp.Header, state []byte) error {
	var words [runner.Lanes]runner.Words
	for n := range words {
		words[n] = p.shadowWords(n)
	}
	if !runner.PutState(words, p.Rank, state) {
		return p.wrong(h, "no rank has such a state")
	}
	if p.Stated != nil {
		p.Stated()
	}
	return nil
}

// service is who takes frames of the verdict of a group that come over a link.
type service struct {
	group   group
	take    func(h *tcp.Header, payload []byte) error
	payload []byte // which is being read
}

// group is a group as far as one link serves it.
type group struct {
	link   *tcp.Link
	number uint64
}

// Serve gives the frames of the verdict of a group that come over a link to a function, also where no pair of the group uses the link. The
// payload belongs to the function, the header only until it returns. It waits for nothing, sends nothing, and calls no method of the set; an
// error of it ends the link. Without a function, such frames are dropped. When the stop that Serve returns has returned, the function is not
// called any more: who calls stop holds no lock that the function takes.
func (s *Set) Serve(l *tcp.Link, number uint64, take func(h *tcp.Header, payload []byte) error) (stop func(), err error) {
	g := group{l, number}
	v := &service{group: g, take: take}
	s.serving.Lock()
	defer s.serving.Unlock()
	if err := l.Err(); err != nil { // the set may have forgotten the link before
		return nil, err
	}
	s.services[g] = v
	return func() {
		s.serving.Lock()
		defer s.serving.Unlock()
		if s.services[g] == v {
			delete(s.services, g)
		}
	}, nil
}

// placeVerdict is Place for a frame of the verdict.
func (s *Set) placeVerdict(l *tcp.Link, h *tcp.Header) ([][]byte, error) {
	s.serving.Lock()
	defer s.serving.Unlock()
	v := s.services[group{l, h.Group}]
	if v == nil {
		return nil, tcp.ErrDrop
	}
	v.payload = nil
	if h.Bytes == 0 {
		return nil, nil
	}
	v.payload = make([]byte, h.Bytes)
	return [][]byte{v.payload}, nil
}

// takeVerdict is Arrived for a frame of the verdict. Frames of a link come on its control connection, so one at a time.
func (s *Set) takeVerdict(l *tcp.Link, h *tcp.Header) error {
	s.serving.Lock()
	defer s.serving.Unlock()
	v := s.services[group{l, h.Group}]
	if v == nil || len(v.payload) != int(h.Bytes) { // stopped, or begun, while the payload came
		return nil
	}
	payload := v.payload
	v.payload = nil
	return v.take(h, payload)
}

// isVerdict reports whether a member passes frames of a kind to its group, whatever pair of ranks they name.
func isVerdict(k tcp.Kind) bool { return k >= tcp.Declare && k <= tcp.Lost || k == tcp.Want }
