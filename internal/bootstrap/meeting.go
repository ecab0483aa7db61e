package bootstrap

import (
	"context"

	"sagecomm/internal/handshake"
)

// Meeting is the store of an id as the process has it that serves it. A rank in that process sees the others off
// before its caller may end the process.
type Meeting struct{ space *space }

// Meeting returns the meeting of an id, nil unless this server has its key space.
func (s *Server) Meeting(id ID) *Meeting {
	s.mu.Lock()
	defer s.mu.Unlock()
	if space := s.spaces[id.Space]; space != nil {
		return &Meeting{space}
	}
	return nil
}

// Wait waits until no rank needs the store to meet the others: all have met, or the connections of those that have not
// have ended. It reports false if the context ends before, or over is closed.
func (m *Meeting) Wait(ctx context.Context, over <-chan struct{}) bool {
	for {
		m.space.mu.Lock()
		unneeded, changed := m.space.met || len(m.space.guests) == 0, m.space.changed
		m.space.mu.Unlock()
		if unneeded {
			return true
		}
		select {
		case <-changed:
		case <-over:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// End tells the ranks that meet over connections which they have now why the group is not made: their requests fail
// with a [*GaveUpError]. What the store holds stays, for ranks that come later.
func (m *Meeting) End(why error) {
	record := failure(why)
	m.space.mu.Lock()
	defer m.space.mu.Unlock()
	for g := range m.space.guests {
		if !g.hasEnded() {
			g.why = record
			close(g.ended)
		}
	}
}

// readEnd returns the error that End has told.
func readEnd(record []byte) error {
	if len(record) > 0 {
		if told := readFailure(0, record); told != nil {
			return &GaveUpError{Reason: told.Reason, Detail: told.Detail}
		}
	}
	return handshake.ErrFrame
}
