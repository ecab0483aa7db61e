package bootstrap

import "golang.org/x/sys/unix"

// HostName returns the kernel's name of this host (uname -n), for messages.
func HostName() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil || u.Nodename[0] == 0 {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Nodename[:])
}
