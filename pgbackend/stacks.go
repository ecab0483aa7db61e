package pgbackend

import (
	"strconv"
	"strings"
	"sync"

	"sagecomm/internal/env"
	"sagecomm/internal/pickle"
	"sagecomm/internal/runner"
)

// stacks are the texts that a group's flight recorder refers to by number. They are few, since a script calls from few
// places, and are never given back.
type stacks struct {
	mu      sync.Mutex
	numbers map[string]int
	used    int // bytes
}

// mostFrames is more than the shim takes of a stack.
const mostFrames = 64

// RecordsStacks says whether the flight recorder keeps who called.
func (g *Group) RecordsStacks() bool { return g.flights > 0 && env.FlightStacks.Get(g.settings) }

// Stack is the number of a text, 0 if there is no room for it.
func (g *Group) Stack(text string) int {
	if !g.acquire() {
		return 0
	}
	defer g.release()
	s := &g.stacks
	s.mu.Lock()
	defer s.mu.Unlock()
	if number, known := s.numbers[text]; known {
		return number
	}
	if text == "" {
		return 0
	}
	if !g.run.PutStack(s.used, text) {
		g.process.warn("%s: there is no room for more stacks: those of new call sites are not recorded", env.FlightStacks.Name())
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

// traceFrames are the lines of a text as torch has frames. What is no such line is left out, and there are as many as the
// shim gives at most, since another rank may have written anything.
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
