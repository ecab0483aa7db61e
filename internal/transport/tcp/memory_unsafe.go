package tcp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendMemory returns how much memory the send queue of a socket takes, and may take. That is what the kernel compares before it takes more: more than
// the bytes in the queue where packets are short, and nothing behind a reset.
func sendMemory(fd uintptr) (queued, most uint32, err error) {
	var info [9]uint32 // SK_MEMINFO_VARS of linux/sock_diag.h
	const sendBuffer, sendQueued = 3, 5
	n := uint32(unsafe.Sizeof(info))
	_, _, no := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&n)), 0)
	if no != 0 {
		return 0, 0, no
	}
	return info[sendQueued], info[sendBuffer], nil
}
