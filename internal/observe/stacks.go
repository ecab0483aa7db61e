package observe

import (
	"strconv"
	"strings"
	"sync"

	"sagecomm/internal/env"
	"sagecomm/internal/pickle"
	"sagecomm/internal/runner"
)

// Stacks numbers the texts of call stacks that a group's flight recorder refers to. It never frees a text, because a script
// calls from few places and so the texts are few. The zero Stacks is empty.
type Stacks struct {
	mu      sync.Mutex
	numbers map[string]int
	used    int       // bytes
	stores  []StoreAt // of the lanes that are open
}

// StoreAt stores a text in the recorder of one lane, at a place where there is none yet, and reports whether there is room. All
// lanes of a group have equal room.
type StoreAt func(at int, text string) bool

// mostFrames bounds the frames of one stack. The shim records fewer.
const mostFrames = 64

// AddLane stores all texts so far, and later ones, in the recorder of a further lane too.
func (s *Stacks) AddLane(store StoreAt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stores = append(s.stores, store)
	for text, number := range s.numbers {
		store(number-1, text)
	}
}

// Number returns the number of a text, or 0 if there is no room for the text. It stores a new text in the recorders of all lanes.
func (s *Stacks) Number(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if number, known := s.numbers[text]; known {
		return number
	}
	if text == "" {
		return 0
	}
	stored := len(s.stores) > 0
	for _, store := range s.stores {
		stored = store(s.used, text) && stored
	}
	if !stored {
		Warn("%s: there is no room for more stacks: stacks of new call sites are not recorded", env.FlightStacks.Name())
		return 0
	}
	if s.numbers == nil {
		s.numbers = map[string]int{}
	}
	number := s.used + 1
	s.numbers[text] = number
	s.used += (4 + len(text) + 3) &^ 3
	return number
}

// traceFrames returns the lines of a stack in torch's format of frames, at most mostFrames. It skips lines that are not
// frames, because the text may come from another rank, which may have written anything.
func traceFrames(f *runner.Flight) []pickle.Dict {
	frames := []pickle.Dict{}
	for line := range strings.Lines(strings.ToValidUTF8(f.Stack, "?")) {
		if len(frames) == mostFrames {
			break
		}
		parts := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(parts) != 3 {
			continue
		}
		if n, err := strconv.ParseInt(parts[1], 10, 64); err == nil {
			frames = append(frames, pickle.Dict{{Key: "name", Value: parts[2]}, {Key: "filename", Value: parts[0]}, {Key: "line", Value: n}})
		}
	}
	return frames
}
