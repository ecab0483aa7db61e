package device

import "sync"

// Reserve has streams that were made ahead. A driver may wait for the device when it makes one (CUDA's 580.159.04 does now and then), and
// all other threads that call it wait meanwhile. So a stream that waits for a peer could keep this process from calling what the peer waits
// for. The first streams are made before any of them waits. The zero Reserve has none.
type Reserve struct {
	mu      sync.Mutex
	streams []Stream
}

// Add makes a stream ahead, and reports whether it could. The error comes again when a stream is needed that was not made.
func (r *Reserve) Add(stream func() (Stream, error)) bool {
	s, err := stream()
	if err != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams = append(r.streams, s)
	return true
}

// Take returns the stream that was made first, or makes one if there is none.
func (r *Reserve) Take(stream func() (Stream, error)) (Stream, error) {
	if s, ok := r.first(); ok {
		return s, nil
	}
	return stream()
}

func (r *Reserve) first() (s Stream, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.streams) == 0 {
		return s, false
	}
	s, r.streams = r.streams[0], r.streams[1:]
	return s, true
}
