package bootstrap

import (
	"container/list"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"sagecomm/internal/handshake"
)

// Limits of a server.
const (
	maxStrangers  = 256  // connections that have proved nothing yet; the oldest one makes room for a new one
	maxIdleSpaces = 1024 // key spaces without clients; the one that has had none for the longest makes room for a new one
)

// keepAlive notices that the other end's machine has gone, within about half a minute.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// Server is the TCP server of the stores of unique ids: one for a process, with a key space for each id. It listens
// while it has key spaces or users. A key space whose ranks have met takes no further connections. Those that its claimers
// have are answered until they end, also when nothing listens any more.
type Server struct {
	descriptors Descriptors

	mu        sync.Mutex
	listeners []net.Listener
	addresses []netip.Addr // where the newest of them listen
	port      uint16
	users     int // calls of Listen without Release
	spaces    map[[spaceBytes]byte]*space
	clients   map[net.Conn]struct{} // connections that have proved that they have a secret
	strangers *list.List            // of net.Conn, the oldest one first
	events    uint64
	greeting  time.Duration // handshake.Timeout, shorter in tests
}

// NewServer returns a server that does not listen yet.
func NewServer(d Descriptors) *Server {
	return &Server{descriptors: d, spaces: map[[spaceBytes]byte]*space{}, clients: map[net.Conn]struct{}{}, strangers: list.New(), greeting: handshake.Timeout}
}

// Listen makes the server listen until Release, and returns where. A server that listens already stays where it is, and
// listens elsewhere too only if the endpoint is to be beyond loopback.
func (s *Server) Listen(at Endpoint) ([]netip.Addr, uint16, error) {
	s.lockFor(&at)
	defer s.mu.Unlock()
	if err := s.listen(at); err != nil {
		return nil, 0, err
	}
	s.users++
	return s.addresses, s.port, nil
}

// Release ends what Listen began.
func (s *Server) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = max(s.users-1, 0) // 0 after Close
	s.rest()
}

// NewID returns an id with a key space of its own. job is the secret of the job, nil without one.
func (s *Server) NewID(at Endpoint, job []byte) (ID, error) {
	s.lockFor(&at)
	defer s.mu.Unlock()
	if err := s.listen(at); err != nil {
		return ID{}, err
	}
	id := newID(s.addresses, s.port)
	s.serve(id, job)
	return id, nil
}

// Serve adds the key space of an id that was derived, unless the server has it.
// Requires: Listen.
func (s *Server) Serve(id ID, job []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spaces[id.Space] == nil {
		s.serve(id, job)
	}
}

// serve adds a key space.
// Requires: the lock.
func (s *Server) serve(id ID, job []byte) {
	if idle, oldest := s.idle(); idle >= maxIdleSpaces {
		delete(s.spaces, oldest)
	}
	s.events++
	space := newSpace(id.key(job))
	space.idle = s.events
	s.spaces[id.Space] = space
}

// idle returns the number of key spaces without clients, and the name of the one that has had none for the longest.
// Requires: the lock.
func (s *Server) idle() (n int, oldest [spaceBytes]byte) {
	since := uint64(math.MaxUint64)
	for name, space := range s.spaces {
		if space.clients > 0 {
			continue
		}
		n++
		if space.idle < since {
			since, oldest = space.idle, name
		}
	}
	return n, oldest
}

// lockFor takes the lock for listen. If the server listens on loopback and is to listen elsewhere too, it finds the
// addresses before. That may ask a name server, for which nobody else waits.
func (s *Server) lockFor(at *Endpoint) {
	for {
		s.mu.Lock()
		if !at.Beyond || at.Find == nil || len(s.listeners) == 0 || !AllLoopback(s.addresses) {
			return
		}
		s.mu.Unlock()
		at.Addresses, at.Find = at.Find(), nil
	}
}

// listen begins to listen, unless the server does so where it is to listen.
// Requires: lockFor.
func (s *Server) listen(at Endpoint) error {
	if len(s.listeners) > 0 && (!at.Beyond || !AllLoopback(s.addresses) || AllLoopback(at.Addresses)) {
		return nil
	}
	listeners, err := at.Open()
	if err != nil {
		return err
	}
	s.listeners, s.addresses = append(s.listeners, listeners...), nil
	for _, l := range listeners {
		handshake.WithDescriptor(l, s.descriptors.Opened)
		a := l.Addr().(*net.TCPAddr).AddrPort()
		s.addresses, s.port = append(s.addresses, a.Addr().Unmap()), a.Port()
		go s.accept(l)
	}
	return nil
}

// rest stops listening if nothing needs the server.
// Requires: the lock.
func (s *Server) rest() {
	if s.users > 0 || len(s.spaces) > 0 {
		return
	}
	for _, l := range s.listeners {
		handshake.WithDescriptor(l, s.descriptors.Closing)
		_ = l.Close()
	}
	s.listeners = nil
	for e := s.strangers.Front(); e != nil; e = e.Next() {
		_ = e.Value.(net.Conn).Close()
	}
}

// Close ends all connections and stops listening. Ids of the server are of no use afterwards.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = 0
	clear(s.spaces)
	s.rest()
	for c := range s.clients {
		_ = c.Close()
	}
}

// accept runs until the listener is closed.
func (s *Server) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no descriptors, or a connection that was reset
			time.Sleep(20 * time.Millisecond)
		default:
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetKeepAliveConfig(keepAlive)
			}
			h := s.descriptors.hold(c)
			go s.meet(h, s.stranger(h))
		}
	}
}

// stranger notes a new connection and closes the oldest stranger if there are too many.
func (s *Server) stranger(c net.Conn) *list.Element {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.strangers.Len() >= maxStrangers {
		oldest := s.strangers.Front()
		s.strangers.Remove(oldest)
		_ = oldest.Value.(net.Conn).Close()
	}
	return s.strangers.PushBack(c)
}

// meet makes the handshake and serves the client.
func (s *Server) meet(c net.Conn, e *list.Element) {
	defer c.Close()
	client, name, err := storeProtocol.Admit(c, s.greeting, s.keyOf)
	s.mu.Lock()
	s.strangers.Remove(e) // does nothing if the stranger has made room for another one
	space := s.spaces[name]
	if err != nil || space == nil || len(s.listeners) == 0 {
		s.mu.Unlock()
		return
	}
	space.clients++
	s.clients[c] = struct{}{}
	s.mu.Unlock()
	left := space.talk(client)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients, c)
	s.events++
	space.clients--
	space.idle = s.events
	if left && s.spaces[name] == space {
		delete(s.spaces, name)
	}
	s.rest()
}

func (s *Server) keyOf(name [spaceBytes]byte) (key [sha256.Size]byte, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if space := s.spaces[name]; space != nil && !space.isComplete() {
		return space.key, true
	}
	return key, false
}

// talk answers the requests of a client until it goes away or sends what no client sends. It reports whether all ranks
// have met.
func (s *space) talk(client *session) (left bool) {
	me := newGuest()
	defer s.removeGuest(me)
	requests, gone := make(chan request), make(chan struct{})
	done := make(chan struct{})
	defer close(done)
	// A goroutine of its own reads, so that a wait ends when the client goes away.
	go func() {
		defer close(gone)
		for {
			body, err := client.Receive()
			if err != nil {
				return
			}
			r, err := parseRequest(body)
			if err != nil {
				return
			}
			select {
			case requests <- r:
			case <-done:
				return
			}
		}
	}()
	defer client.Close() // ends the goroutine
	for {
		select {
		case r := <-requests:
			last, err := s.answer(client, r, me, gone)
			left = left || last
			if err != nil {
				return left
			}
		case <-gone:
			return left
		}
	}
}

// answerTimeoutOfPeer is the time that a client has to take an answer.
const answerTimeoutOfPeer = 30 * time.Second

// answer answers a request.
func (s *space) answer(client *session, r request, me *guest, gone <-chan struct{}) (last bool, err error) {
	var values [][]byte
	meets := r.ask == askSet || r.ask == askGet
	if meets {
		s.addGuest(me)
	}
	switch r.ask {
	case askSet:
		values, err = [][]byte{nil}, s.set(r.keys[0], r.value)
	case askGet:
		values, err = s.get(r.keys, r.timeout, me, gone)
	case askClaim:
		var first []byte
		first, err = s.claim(r.keys[0], r.value)
		values = [][]byte{first}
	case askLeave:
		values, last = [][]byte{nil}, s.leave(r.ranks)
		s.removeGuest(me)
	}
	if e := client.SetWriteDeadline(time.Now().Add(answerTimeoutOfPeer)); e != nil {
		return last, e
	}
	switch {
	case meets && me.hasEnded():
		return last, client.Send(append([]byte{answerGaveUp}, me.why...))
	case errors.Is(err, ErrTimeout):
		return last, client.Send([]byte{answerTimeout})
	case err != nil:
		return last, client.Send(fmt.Append([]byte{answerRefused}, err))
	}
	for _, v := range values {
		if err := client.Send(append([]byte{answerOK}, v...)); err != nil {
			return last, err
		}
	}
	return last, nil
}
