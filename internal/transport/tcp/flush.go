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

// AfterSent calls a function, once, when the kernel has all that was sent until now: within TLS, where a goroutine sends. Else it does nothing, and
// TryFlush is to be called again. The function waits for nothing. It may not be called where the link is lost.
func (l *Link) AfterSent(on int, call func()) {
	if c := l.conns[on]; c.out != nil {
		c.out.after(call)
	}
}
