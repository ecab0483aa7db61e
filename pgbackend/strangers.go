package pgbackend

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sagecomm/internal/observe"
	"sagecomm/internal/transport/tcp"
)

// strangerPause is the least time between two lines of the log about connections that were not admitted: anybody can
// make them.
const strangerPause = time.Second

// strangers logs why connections to the port of links were not admitted.
type strangers struct {
	info bool // SAGECOMM_DEBUG of the group that has opened the port
	log  func(level, text string)
	now  func() time.Time

	mu       sync.Mutex
	last     time.Time // of a line
	since    int       // connections without a line since then
	starving bool      // it was told that there are no descriptors
}

// logStranger writes to the log. Tests replace it.
var logStranger = observe.Log

func newStrangers(info bool) *strangers {
	return &strangers{info: info, log: logStranger, now: time.Now}
}

// refused is tcp.Config.Refused. What this process has to be helped with is a warning.
func (s *strangers) refused(from netip.AddrPort, why error) {
	if errors.Is(why, tcp.ErrPanic) {
		s.log("WARN", fmt.Sprintf("links to other hosts: a connection from %v was not admitted: %v; please report this", from, why))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if isAny(unix.EMFILE, unix.ENFILE)(why) {
		if !s.starving {
			s.starving = true
			s.log("WARN", fmt.Sprintf("links to other hosts: this process cannot take connections of others, and their groups are not made until it can: raise `ulimit -n`: %v", why))
		}
		return
	}
	if !s.info {
		return
	}
	now := s.now()
	if now.Sub(s.last) < strangerPause {
		s.since++
		return
	}
	text := fmt.Sprintf("links to other hosts: a connection from %v was not admitted: %v", from, why)
	if s.since > 0 {
		text += fmt.Sprintf("; %d more since the last one that was logged", s.since)
	}
	s.last, s.since = now, 0
	s.log("INFO", text)
}
