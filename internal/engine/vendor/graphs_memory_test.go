package vendor

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"sagecomm/internal/device"
	"sagecomm/internal/engine/staged"
)

// roomy is a device whose memory is noted.
type roomy struct {
	graphsOf
	left map[uintptr]bool
	mu   sync.Mutex
}

type room struct {
	of *roomy
	at uintptr
}

func (r *roomy) Relaxed(f func() error) error { return f() }

func (r *roomy) Allocate(uint64, bool) (device.Memory, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := uintptr(len(r.left) + 1)
	r.left[at] = true
	return room{r, at}, nil
}

func (r room) Address() uintptr { return r.at }

func (r room) Release() {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.of.left[r.at] = false
}

// has returns the addresses of memory that was not given back.
func (r *roomy) has() (list []uintptr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for at, here := range r.left {
		if here {
			list = append(list, at)
		}
	}
	slices.Sort(list)
	return list
}

type quiet struct{ freed }

func (quiet) Free(func(func())) {}

// goroutinesIn returns how many goroutines are in a function, and how many of these hold a thread of the system.
func goroutinesIn(function string) (n, threads int) {
	text := make([]byte, 1<<20)
	text = text[:runtime.Stack(text, true)]
	for stack := range strings.SplitSeq(string(text), "\n\n") {
		if !strings.Contains(stack, function) {
			continue
		}
		n++
		if first, _, _ := strings.Cut(stack, "\n"); strings.Contains(first, "locked to thread") {
			threads++
		}
	}
	return n, threads
}

// Memory of captured operations is given back when no graph uses it any more: what is too small at the next capture, and all when the
// communicator is closed. It stays where the driver does not tell when graphs end.
func TestMemoryOfGraphs(t *testing.T) {
	for _, untold := range []error{nil, errors.New("not told")} {
		synctest.Test(t, func(t *testing.T) {
			p := NewPool()
			others := staged.New(nil, nil, 0, 2, staged.NewPool(), nil)
			e := New(Calls(nil), alone, others, others, p, nil)
			c := &communicator{engine: e, joined: quiet{}, ended: make(chan struct{}), stop: make(chan struct{}), current: func(f func() error) error { return f() }}
			r := &roomy{left: map[uintptr]bool{}, graphsOf: graphsOf{untold: untold, number: 1}}
			capture := func(number, bytes uint64) {
				_, err := c.takeCaptured(r, bytes)
				require.NoError(t, err)
				_, err = c.counting(r, device.Stream{}, number, func() (bool, error) { return true, nil })
				require.NoError(t, err)
				c.captured.number = number
				synctest.Wait()
			}
			capture(1, 1)
			capture(2, 4*leastScratch)
			capture(3, 1)
			require.Equal(t, []uintptr{1, 2}, r.has(), "graphs use it")
			r.live.Store(0)
			capture(4, 1)
			if untold == nil {
				require.Equal(t, []uintptr{2}, r.has())
			} else {
				require.Equal(t, []uintptr{1, 2}, r.has())
			}
			before := len(r.has())
			c.close()
			<-c.ended
			synctest.Wait()
			require.Len(t, r.has(), before, "a graph uses it")
			waits, threads := goroutinesIn("awaitGraphs")
			require.Equal(t, untold == nil, waits == 1)
			require.Zero(t, threads)
			r.live.Store(0)
			time.Sleep(time.Second) // of the bubble's clock
			synctest.Wait()
			if untold == nil {
				require.Empty(t, r.has())
			} else {
				require.Len(t, r.has(), before)
			}
		})
	}
}
