package env

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChoiceOfInterfaces(t *testing.T) {
	at := netip.MustParseAddr("10.1.2.3")
	for text, want := range map[string]map[string]bool{
		"eth":         {"eth0": true, "eth1": true, "lo": false},
		"=eth0":       {"eth0": true, "eth01": false},
		"^docker,lo":  {"eth0": true, "docker0": false, "lo": false},
		"^=lo":        {"lo": false, "lo1": true},
		"ib0, eth":    {"ib0": true, "eth3": true, "lo": false},
		"10.0.0.0/8":  {"any": true},
		"10.1.2.3":    {"any": true},
		"10.1.2.4,ib": {"any": false, "ib0": true},
		"fd00::/8":    {"any": false},
		"^10.0.0.0/8": {"any": false},
	} {
		c, err := parseInterfaces(text)
		require.NoError(t, err, text)
		for name, takes := range want {
			require.Equal(t, takes, c.Takes(name, at), "%s: %s", text, name)
		}
	}
	for _, bad := range []string{"", ",", "eth0,", "a b", "10.0.0.0/99", "eth0,^lo"} {
		_, err := Resolve([]string{"SAGECOMM_SOCKET_IFNAME=" + bad}, nil)
		if bad == "" { // counts as not set
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "SAGECOMM_SOCKET_IFNAME", bad)
	}
}

func TestRangesOfPorts(t *testing.T) {
	for text, want := range map[string]Ports{"29500": {29500, 29500}, "1-65535": {1, 65535}, " 7-7 ": {7, 7}} {
		require.Equal(t, Optional[Ports]{want, true}, PortRange.Get(resolve(t, []string{"SAGECOMM_PORT_RANGE=" + text}, nil)))
	}
	for _, bad := range []string{"0", "9-8", "65536", "-1", "1-", "a"} {
		_, err := Resolve([]string{"SAGECOMM_PORT_RANGE=" + bad}, nil)
		require.ErrorContains(t, err, "SAGECOMM_PORT_RANGE", bad)
	}
	require.False(t, PortRange.Get(nil).Given)
}
