package devices

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Streams of recvs have a queue of the hardware each: there are fewer where processes share the device.
func TestQueuesOfRecvs(t *testing.T) {
	for name, c := range map[string]struct {
		variables []string
		queues    int
	}{
		"alone":  {nil, 8},
		"named":  {[]string{"CUDA_DEVICE_MAX_CONNECTIONS=4"}, 4},
		"shared": {[]string{"FAKE_CUDA_MPS=1"}, 2},
		"both":   {[]string{"FAKE_CUDA_MPS=1", "CUDA_DEVICE_MAX_CONNECTIONS=4"}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			onCUDA(t, c.variables, func(t *testing.T, b *cudaBed) { require.Equal(t, c.queues, b.RecvQueues()) })
		})
	}
}
