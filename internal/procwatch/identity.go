package procwatch

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// BootID returns the kernel's random number of this boot. All containers on one machine see the same number.
func BootID() (string, error) {
	id, err := read("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(id)), nil
}

// read reads a short file by system calls. The package os would make the Go runtime create its poller, which ends the process if
// there are no descriptors for it, and this package is used before that can be checked.
func read(name string) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	defer unix.Close(fd)
	var text [4096]byte
	for {
		n, err := unix.Read(fd, text[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		return text[:n], nil
	}
}

// PIDNamespace returns the inode number of this process's pid namespace. A pid means the same process to two processes
// only if their namespaces are equal.
func PIDNamespace() (uint64, error) { return namespace("/proc/self/ns/pid") }

// NetworkNamespace returns the inode number of this process's network namespace. Two processes of one boot reach each other's loopback
// addresses only if their namespaces are equal.
func NetworkNamespace() (uint64, error) { return namespace("/proc/self/ns/net") }

func namespace(name string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		return 0, fmt.Errorf("stat %s: %w", name, err)
	}
	return st.Ino, nil
}

// StartTime returns the time at which a process started, in clock ticks since boot. The error wraps [fs.ErrNotExist] if there
// is no process with this pid or this process may not see it.
func StartTime(pid int) (uint64, error) {
	name := "/proc/" + strconv.Itoa(pid) + "/stat"
	stat, err := read(name)
	if errors.Is(err, unix.ESRCH) { // the process ended between open and read
		err = fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	if err != nil {
		return 0, err
	}
	ticks, ok := parseStartTime(stat)
	if !ok {
		return 0, fmt.Errorf("%s has no start time: %q", name, stat)
	}
	return ticks, nil
}

// parseStartTime returns field 22 of /proc/<pid>/stat. The command name, field 2, may contain spaces and parentheses, so the
// fields are counted from its last closing parenthesis.
func parseStartTime(stat []byte) (uint64, bool) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, false
	}
	fields := bytes.Fields(stat[end+1:])
	const index = 22 - 3
	if len(fields) <= index {
		return 0, false
	}
	ticks, err := strconv.ParseUint(string(fields[index]), 10, 64)
	return ticks, err == nil
}

// Gone reports whether the process with that pid and start time has certainly ended. A zombie counts as not ended.
func Gone(pid int, startTime uint64) bool {
	if err := unix.Kill(pid, 0); errors.Is(err, unix.ESRCH) {
		return true
	}
	now, err := StartTime(pid)
	return err == nil && now != startTime
}

// ID identifies a process of this host; no other process ever has the same ID.
type ID struct {
	Namespace uint64 // namespace of the pid
	PID       int
	StartTime uint64
}
