package tcp

// TryFlush sends the rest of a frame that TrySend has taken, and does not wait. It reports whether nothing is left of it here; where somebody
// else is sending, he sends the rest before anything else. Within TLS it reports whether the kernel has all that was sent.
func (l *Link) TryFlush(on int) (sent bool, err error) {
	if err := l.Err(); err != nil {
		return false, err
	}
	c := l.conns[on]
	if c.out != nil {
		return c.out.empty(), nil
	}
	s := &c.sending
	if !s.TryLock() {
		return false, nil
	}
	err = c.tryFlush()
	sent = len(s.rest) == 0
	s.Unlock()
	if err != nil {
		l.lose(err)
		return false, l.Err()
	}
	return sent, nil
}
