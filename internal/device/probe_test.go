package device

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// hostWords is memory for words. It is not zero.
type hostWords [probeBytes]byte

func (h *hostWords) Address() unsafe.Pointer { return unsafe.Pointer(h) }

// fakeDevice has one stream. Its commands run when somebody looks whether the stream has settled.
type fakeDevice struct {
	Waiter
	ignoresWaits, seesNothing, writesNothing bool

	words   hostWords
	tries   int
	awaited *uint32
	writes  []func()
}

func (f *fakeDevice) Pin(uint64) (Pinned, error) {
	f.tries++
	for i := range f.words {
		f.words[i] = 0xff
	}
	return &f.words, nil
}

func (f *fakeDevice) NewStream(Role) (Stream, error) { return Stream{Handle: 1}, nil }

func (f *fakeDevice) WaitValue(_ Stream, word *uint32, _ uint32) error {
	f.awaited = word
	return nil
}

func (f *fakeDevice) WriteValue(_ Stream, word *uint32, value uint32) error {
	f.writes = append(f.writes, func() { *word = value })
	return nil
}

func (f *fakeDevice) Settled(Stream, time.Duration) bool {
	if !f.ignoresWaits && (f.seesNothing || *f.awaited == 0) {
		return false
	}
	if !f.writesNothing {
		for _, write := range f.writes {
			write()
		}
	}
	return true
}

// A device counts as waiting for words of host memory if it does all three: wait, see what the host writes, and write what the host sees.
// It is tried once.
func TestProbeOfWordsInHostMemory(t *testing.T) {
	for name, c := range map[string]struct {
		device fakeDevice
		want   error
	}{
		"works":          {fakeDevice{}, nil},
		"does not wait":  {fakeDevice{ignoresWaits: true}, errNotAwaited},
		"does not see":   {fakeDevice{seesNothing: true}, errNotSeen},
		"does not write": {fakeDevice{writesNothing: true}, errNotWritten},
	} {
		t.Run(name, func(t *testing.T) {
			var probes Probes
			for range 2 {
				require.Equal(t, c.want, probes.Check(0, &c.device))
			}
			require.Equal(t, 1, c.device.tries)
			_, has := probes.Take(1)
			require.False(t, has, "of another device")
			_, has = probes.Take(0)
			require.Equal(t, c.want == nil, has, "the stream of the probe is for inputs, unless it may hang")
			_, has = probes.Take(0)
			require.False(t, has, "somebody has it")
		})
	}
}
