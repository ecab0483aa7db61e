package verify

// slab hands out slices of larger allocations, each of which is twice as large as the one before.
type slab[T any] struct {
	free []T
	size int
}

func (s *slab[T]) take(n int) []T {
	if n > len(s.free) {
		s.size = max(n, min(2*s.size, 4096), 16)
		s.free = make([]T, s.size)
	}
	taken := s.free[:n:n]
	s.free = s.free[n:]
	return taken
}
