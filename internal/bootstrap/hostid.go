package bootstrap

import (
	"fmt"

	"golang.org/x/sys/unix"

	"sagecomm/internal/procwatch"
)

// HostID names the host of this process in messages and groups ranks by host: the setting (SAGECOMM_HOSTID) if there is
// one, else host name and boot id, so that two machines of one name differ. Whether two ranks can share memory is not
// decided by it, but by trying.
func HostID(setting string) string {
	if setting != "" {
		return setting
	}
	name := HostName()
	boot, err := procwatch.BootID()
	if err != nil { // no /proc: the name has to do
		return name
	}
	return fmt.Sprintf("%s-%s", name, boot)
}

// HostName is the name of this host as the kernel has it (uname -n), for people.
func HostName() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil || u.Nodename[0] == 0 {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Nodename[:])
}
