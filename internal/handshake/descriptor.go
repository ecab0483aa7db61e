package handshake

import "syscall"

// WithDescriptor calls do with the descriptor of a connection or listener, unless it is closed. do may be nil.
func WithDescriptor(c any, do func(fd uintptr)) {
	if s, ok := c.(syscall.Conn); ok && do != nil {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(do)
		}
	}
}
