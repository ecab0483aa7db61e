package bootstrap

import (
	"fmt"

	"golang.org/x/sys/unix"

	"sagecomm/internal/procwatch"
)

// HostID names the host of this process in messages and groups ranks by host: the setting (SAGECOMM_HOSTID) if there is
// one, else host name and boot id, so that two machines of one name differ. It does not decide whether
// two ranks can share memory: they try.
func HostID(setting string) string {
	if setting != "" {
		return setting
	}
	name := HostName()
	boot, err := procwatch.BootID()
	if err != nil { // without /proc only the name is known
		return name
	}
	return fmt.Sprintf("%s-%s", name, boot)
}

// HostName returns the kernel's name of this host (uname -n), for messages.
func HostName() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil || u.Nodename[0] == 0 {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Nodename[:])
}
