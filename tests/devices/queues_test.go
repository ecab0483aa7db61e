package devices

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Streams of recvs have a queue of the hardware each: there are fewer where processes share the device, and none where the device has no priority
// for them alone, beside those of inputs, of outputs and of the streams of others.
func TestQueuesOfRecvs(t *testing.T) {
	for name, c := range map[string]struct {
		variables []string
		queues    int
	}{
		"alone":            {nil, 8},
		"named":            {[]string{"CUDA_DEVICE_MAX_CONNECTIONS=4"}, 4},
		"shared":           {[]string{"FAKE_CUDA_MPS=1"}, 2},
		"two priorities":   {[]string{"FAKE_CUDA_PRIORITIES=2"}, 0},
		"three priorities": {[]string{"FAKE_CUDA_PRIORITIES=3"}, 0},
		"four priorities":  {[]string{"FAKE_CUDA_PRIORITIES=4"}, 8},
		"both":             {[]string{"FAKE_CUDA_MPS=1", "CUDA_DEVICE_MAX_CONNECTIONS=4"}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			onCUDA(t, c.variables, func(t *testing.T, b *cudaBed) { require.Equal(t, c.queues, b.RecvQueues()) })
		})
	}
}
