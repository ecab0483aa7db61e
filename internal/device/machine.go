package device

import (
	"fmt"
	"os"
	"strings"
)

// OfMachine returns the identity of a device from what names it among the devices of its machine. Containers of one machine have
// the same boot id, and virtual machines have their own.
func OfMachine(name string) (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("cannot tell the machines of devices apart: %w", err)
	}
	return strings.TrimSpace(string(boot)) + "/" + name, nil
}
