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
	used    int // bytes
}

// mostFrames bounds the frames of one stack. The shim records fewer.
const mostFrames = 64

// Number returns the number of a text, or 0 if there is no room for the text. It calls put to store a new text at a free
// place; put reports whether there is room.
func (s *Stacks) Number(text string, put func(at int, text string) bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if number, known := s.numbers[text]; known {
		return number
	}
	if text == "" {
		return 0
	}
	if !put(s.used, text) {
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
